"""ZeRO, FSDP and Megatron are found, not named: the search alone, its reference strategies switched off.

Each is tried where arithmetic says that it is the optimum, and where it says that it is not.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.cost import CostModel, Predictor, build_cost_model
from jaxplan.frontend._options import Options
from jaxplan.mesh import Topology
from jaxplan.search._assemble import shown_plans
from jaxplan.search._make_plan import make_plan
from jaxplan.search._price import Priced
from jaxplan.search._score import score
from jaxplan.search._solve import solve
from jaxplan.search._traced import analyse_step
from jaxplan.strategies import apply_strategies, reference_solution


def _loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for w in params:
        x = jax.nn.relu(x @ w)
    return jnp.mean(x**2)


def adam_step(params: Any, first: Any, second: Any, x: jax.Array) -> Any:
    """Two slots per parameter, as Adam has; returns params, slots and loss."""
    loss, grads = jax.value_and_grad(_loss)(params, x)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, grads)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return params, first, second, loss


@functools.cache
def mlp(widths: tuple[int, ...], batch: int, topology: str) -> CostModel:
    """A perceptron without biases, ``widths`` from the inputs to the outputs."""
    params = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in itertools.pairwise(widths)]
    x = jax.ShapeDtypeStruct((batch, widths[0]), jnp.float32)
    graph = analyse_step(
        adam_step, (params, params, params, x), {}, donate_argnums=(0, 1, 2), static_argnums=()
    )
    return build_cost_model(graph, Topology.parse(topology))


def searched(model: CostModel, memory_limit_bytes: int | None = None) -> jaxplan.Plan:
    """The fastest plan that the search finds by itself within a limit."""
    options, quiet = Options(memory_limit_bytes=memory_limit_bytes, remat=False), lambda *_: None
    candidates = score(solve(Priced(model=model), options, quiet), options, quiet)
    assert not candidates.references
    plans = shown_plans(candidates, memory_limit_bytes)
    return min(plans, key=lambda plan: plan.time_seconds)


def named(model: CostModel, name: str) -> jaxplan.Plan:
    strategy_plan = apply_strategies(model.graph, model.topology).plans[name]
    return make_plan(Predictor(model), *reference_solution(model, strategy_plan), name=name)


def splits(plan: jaxplan.Plan, argument: int) -> list[tuple[int, ...]]:
    """Into how many parts each dimension of each leaf of an argument is split."""
    prefix = f"[{argument}]"
    return [
        sharding.num_splits(plan.topology.axes)
        for path, sharding in zip(plan.in_paths, plan.input_shardings, strict=True)
        if path.startswith(prefix)
    ]


def test_megatron_emerges_where_weights_outweigh_activations() -> None:
    """64 MiB weights, 2 MiB activations: their sums are a thirtieth of the traffic of data parallelism or FSDP."""
    model = mlp((4096, 16384, 4096, 16384, 4096), 128, "h100:8")
    plan = searched(model)
    assert splits(plan, 0) == [(1, 8), (8, 1), (1, 8), (8, 1)]
    weight_bytes = 4 * 4096 * 16384
    assert all(c.num_bytes < weight_bytes / 16 for c in plan.prediction.collectives)
    assert plan.time_seconds <= named(model, "megatron").time_seconds


def test_megatron_does_not_emerge_where_activations_outweigh_weights() -> None:
    """1 MiB weights, 256 MiB activations."""
    plan = searched(mlp((512, 512, 512), 131072, "h100:8"))
    assert splits(plan, 3) == [(8, 1)]
    assert all(c.kind != "all-to-all" and c.num_bytes <= 4 * 512 * 512 for c in plan.prediction.collectives)


LAYERS = (2048,) * 7
BATCH = 65536


def test_zero1_emerges_where_the_update_takes_its_time() -> None:
    """A scatter and a gather send as much as one sum, and each device updates an eighth of the state. Parameters that
    are in use when most memory is are stored whole: a split one would be there beside its gathered copy."""
    model = mlp(LAYERS, BATCH, "h100:8")
    plan = searched(model)
    assert splits(plan, 3) == [(8, 1)]
    for slot in (1, 2):
        assert all(a * b == 8 for a, b in splits(plan, slot))
    assert splits(plan, 0).count((1, 1)) >= len(LAYERS) // 2
    assert not plan.repeated
    assert named(model, "data").time_seconds > plan.time_seconds
    assert plan.time_seconds <= named(model, "zero1").time_seconds
    assert plan.memory_bytes <= min(named(model, name).memory_bytes for name in ("zero1", "zero2"))


def test_zero1_does_not_emerge_where_latency_is_all_there_is() -> None:
    """Two collectives of 64 KiB for one: the batch is split, the state is not."""
    plan = searched(mlp((128, 128, 128), 1 << 20, "h100:8"))
    assert splits(plan, 3) == [(8, 1)]
    assert splits(plan, 1) == [(1, 1)] * 2


def test_zero3_emerges_where_gathered_parameters_do_not_fit() -> None:
    """Nothing but FSDP's memory is given; then parameters are gathered for each pass."""
    model = mlp(LAYERS, BATCH, "h100:8")
    wanted = named(model, "fsdp")
    plan = searched(model, wanted.memory_bytes)
    assert all(a * b == 8 for argument in (0, 1, 2) for a, b in splits(plan, argument))
    assert splits(plan, 3) == [(8, 1)]
    assert plan.repeated
    assert plan.time_seconds <= wanted.time_seconds
    assert plan.memory_bytes < named(model, "zero2").memory_bytes < named(model, "data").memory_bytes


def test_zero3_does_not_emerge_where_there_is_room() -> None:
    """A copy that fits may be kept, and gathering once is quicker than twice."""
    model = mlp(LAYERS, BATCH, "h100:8")
    plan = searched(model, named(model, "data").memory_bytes)
    assert not plan.repeated
    assert plan.time_seconds < named(model, "fsdp").time_seconds


@pytest.mark.parametrize("topology", ["h100:4", "v100:4", "a100-pcie:4", "1080ti:4"])
def test_the_perceptron_on_which_a_published_searcher_lost_to_data_parallelism(topology: str) -> None:
    """Eight layers of 2304, a batch of 16384, four devices."""
    model = mlp((2304,) * 9, 16384, topology)
    plan, data = searched(model), named(model, "data")
    assert plan.time_seconds <= data.time_seconds
    assert plan.memory_bytes <= data.memory_bytes
