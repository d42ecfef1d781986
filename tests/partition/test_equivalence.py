"""Planned and single-device training agree, step by step, wherever on the frontier the plan lies."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.cost import Predictor, build_cost_model, plan_transfers
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology
from jaxplan.search._make_plan import make_plan
from jaxplan.search._traced import analyse_step
from jaxplan.xla import Target, analyse_buffers
from tests.sampling import sampled
from tests.small_steps import VOCABULARY, gpt_init, token_batch, train_step

NUM_STEPS = 20
BATCH = 16
POINTS = ("fastest", "knee", "leanest")
LOSS_TOLERANCE = {"float32": 1e-4, "float64": 1e-9}  # relative
# Absolute, of parameters that take 20 steps of 1e-3 and are of size 0.1 to 1.
PARAM_TOLERANCE = {"float32": 1e-3, "float64": 1e-7}


@pytest.fixture(scope="module", params=sampled(["float64", "float32"]))
def dtype(request: pytest.FixtureRequest) -> Iterator[Any]:
    with jax.enable_x64(request.param == "float64"):
        yield jnp.dtype(request.param)


@pytest.fixture(scope="module")
def init(dtype: Any) -> Any:
    return gpt_init(dtype)


@pytest.fixture(scope="module")
def frontier(init: Any) -> jaxplan.Frontier:
    return jaxplan.plan(
        train_step,
        jax.eval_shape(init),
        token_batch(BATCH),
        topology="cpu:8",
        memory="1GiB",
        donate_argnums=(0,),
    )


def _batches() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    shape = token_batch(BATCH).shape
    return [rng.integers(0, VOCABULARY, shape, dtype=np.int32) for _ in range(NUM_STEPS)]


def _train(run: Any, state: Any) -> tuple[list[float], Any]:
    losses = []
    for batch in _batches():
        state, loss = run(state, batch)
        losses.append(float(loss))
    return losses, jax.device_get(state.params)


@pytest.fixture(scope="module")
def alone(init: Any) -> tuple[list[float], Any]:
    return _train(jax.jit(train_step), jax.jit(init)())


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_training_agrees_with_one_device(
    point: str, dtype: Any, init: Any, frontier: Any, alone: Any
) -> None:
    losses, params = _train(frontier.choose(point).jit(), jax.jit(init)())
    expected_losses, expected_params = alone
    assert expected_losses[-1] < expected_losses[0] - 0.1  # it learns, so the steps depend on each other
    np.testing.assert_allclose(losses, expected_losses, rtol=LOSS_TOLERANCE[dtype.name])
    for leaf, expected in zip(jax.tree.leaves(params), jax.tree.leaves(expected_params), strict=True):
        assert leaf.dtype == dtype
        np.testing.assert_allclose(leaf, expected, atol=PARAM_TOLERANCE[dtype.name], rtol=0)


def test_the_three_plans_differ_and_hold_what_is_hard(frontier: Any) -> None:
    """A contraction split where it sums, partial sums resolved in two ways, and sharded optimizer state."""
    plans = [frontier.choose(point) for point in POINTS]
    assert len({plan.configurations for plan in plans}) == 3
    found: set[str] = set()
    for plan in plans:
        found |= _hard_things(plan)
    assert found == {
        "contraction split",
        "all-reduce of a partial sum",
        "reduce-scatter of a partial sum",
        "sharded slot",
    }


def _hard_things(plan: jaxplan.Plan) -> set[str]:
    graph: StepGraph = plan.require_program()
    found = set()
    for eqn in graph.program.equations:
        group = graph.grouping.equation_group[eqn.index]
        if graph.rules[eqn.index].family == "contraction" and group >= 0:
            classes = graph.spaces[group].factor_class[eqn.index]
            for factor, c in zip(graph.rules[eqn.index].factors, classes, strict=True):
                if factor.kind == "reduce" and c >= 0 and plan.configurations[group][c]:
                    found.add("contraction split")
    for transfer in _transfers(plan):
        for step in transfer.path.steps:
            if step.source.partial and step.kind in ("all-reduce", "reduce-scatter"):
                found.add(f"{step.kind} of a partial sum")
    for path, sharding in zip(plan.in_paths, plan.input_shardings, strict=True):
        if ".mu" in path and math.prod(sharding.num_splits(plan.topology.axes)) > 1:
            found.add("sharded slot")
    return found


def _transfers(plan: jaxplan.Plan) -> Any:
    from jaxplan.cost import find_reads

    graph = plan.require_program()
    buffers = analyse_buffers(graph, Target.of(plan.topology.chip))
    reads = find_reads(graph)
    return plan_transfers(graph, plan.topology, reads, plan.configurations, frozenset(plan.repeated), buffers)


# A forced plan: flexible meshes and a resharding of two hops.

WIDTH = 32


def _two_layer_loss(params: Any, x: jax.Array) -> jax.Array:
    hidden = jnp.sin(x @ params["w1"])
    return jnp.sum(jnp.cos(hidden @ params["w2"]))


def _two_layer_step(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    loss, grads = jax.value_and_grad(_two_layer_loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), loss


@functools.cache
def _forced_plan() -> jaxplan.Plan:
    """First contraction [8] on the batch, second [2, 4] on rows and columns: the hidden layer cannot get from one
    to the other in a single step."""
    shapes = {name: jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32) for name in ("w1", "w2")}
    x = jax.ShapeDtypeStruct((16, WIDTH), jnp.float32)
    graph = analyse_step(_two_layer_step, (shapes, x), {}, donate_argnums=(0,), static_argnums=())
    model = build_cost_model(graph, Topology.parse("cpu:8"))
    forward = [e for e in graph.program.equations if e.name == "dot_general" and e.phase == "forward"]
    first, second = (graph.grouping.equation_group[e.index] for e in forward)
    assignment = [0] * len(model.configurations)
    rows, columns = (
        graph.spaces[second].factor_class[forward[1].index][f] for f in _rows_and_columns(graph, forward[1])
    )
    assignment[first] = _configuration(model, first, {_rows_class(graph, first, forward[0]): 8})
    assignment[second] = _configuration(model, second, {rows: 2, columns: 4})
    return make_plan(Predictor(model), assignment, [0] * len(model.problem.edges), name="forced")


def _rows_and_columns(graph: StepGraph, eqn: Any) -> tuple[int, int]:
    """Factors of the result's two dimensions."""
    rows, columns = graph.rules[eqn.index].results[0]
    return rows[0], columns[0]


def _rows_class(graph: StepGraph, group: int, eqn: Any) -> int:
    return graph.spaces[group].factor_class[eqn.index][_rows_and_columns(graph, eqn)[0]]


def _configuration(model: Any, group: int, parts: dict[int, int]) -> int:
    """The configuration that splits exactly the given classes into so many parts."""
    for k, config in enumerate(model.configurations[group]):
        if {c: 2 ** len(axes) for c, axes in enumerate(config) if axes} == parts:
            return k
    raise AssertionError(f"no configuration {parts} among {model.configurations[group]}")


def test_a_forced_plan_holds_two_hops_and_two_mesh_shapes() -> None:
    plan = _forced_plan()
    shapes = {tuple(sorted(2 ** len(a) for a in config if a)) for config in plan.configurations}
    assert {(8,), (2, 4)} <= shapes
    hops = [sum(step.kind != "slice" for step in t.path.steps) for t in _transfers(plan)]
    assert max(hops) >= 2


def test_a_forced_plan_computes_the_same() -> None:
    rng = np.random.default_rng(3)
    params = {name: rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8 for name in ("w1", "w2")}
    x = rng.normal(size=(16, WIDTH)).astype(np.float32)
    expected_params, expected_loss = jax.jit(_two_layer_step)(params, x)
    new_params, loss = _forced_plan().jit()(params, x)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for name, expected in expected_params.items():
        np.testing.assert_allclose(new_params[name], expected, rtol=1e-4, atol=1e-6)
