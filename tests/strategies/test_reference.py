"""The reference strategies follow their definitions, on a perceptron with bytes counted by hand."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan

DEVICES = 8
BATCH, WIDTH, NUM_LAYERS = 64, 256, 3
LEAF_BYTES = 4 * WIDTH * WIDTH
BATCH_BYTES = 4 * BATCH * WIDTH


def momentum_step(params: Any, slots: Any, x: jax.Array) -> Any:
    def loss_fn(params: Any) -> jax.Array:
        h = x
        for w in params:
            h = jnp.tanh(h @ w)
        return jnp.sum(h**2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, slots), slots, loss


@pytest.fixture(scope="module")
def frontier() -> jaxplan.Frontier:
    leaf = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    return jaxplan.plan(
        momentum_step, [leaf] * NUM_LAYERS, [leaf] * NUM_LAYERS, x, topology=f"cpu:{DEVICES}", memory="1GiB"
    )


def communicated(plan: jaxplan.Plan) -> dict[str, tuple[int, int]]:
    """Kind -> (how many, bytes), of all that is larger than a scalar."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for c in plan.prediction.collectives:
        if c.num_bytes > 4:
            assert math.prod(plan.topology.axes[a].size for a in c.axes) == DEVICES
            count, size = found[c.kind]
            found[c.kind] = count + c.count, size + c.count * c.num_bytes
    return dict(found)


def test_data_parallelism_sums_each_gradient_once_and_does_nothing_else(frontier: jaxplan.Frontier) -> None:
    assert communicated(frontier.references["data"]) == {"all-reduce": (NUM_LAYERS, NUM_LAYERS * LEAF_BYTES)}


def test_data_parallelism_splits_the_batch_and_copies_the_state(frontier: jaxplan.Frontier) -> None:
    plan = frontier.references["data"]
    params, slots, x = plan.in_specs
    assert all(entry is None for spec in (*params, *slots) for entry in spec)
    assert x[0] == tuple(axis.name for axis in plan.topology.axes)
    assert plan.memory_parts["parameters"] == NUM_LAYERS * LEAF_BYTES
    assert plan.memory_parts["optimizer state"] == NUM_LAYERS * LEAF_BYTES
    assert plan.memory_parts["batch and other arguments"] == BATCH_BYTES // DEVICES


def test_fsdp_gathers_for_each_pass_and_scatters_each_gradient_once(frontier: jaxplan.Frontier) -> None:
    """The first layer is not read in the backward pass: nobody wants the gradient of the batch."""
    gathers = 2 * NUM_LAYERS - 1
    assert communicated(frontier.references["fsdp"]) == {
        "all-gather": (gathers, gathers * LEAF_BYTES),
        "reduce-scatter": (NUM_LAYERS, NUM_LAYERS * LEAF_BYTES),
    }


def test_fsdp_holds_an_eighth_of_the_state(frontier: jaxplan.Frontier) -> None:
    plan = frontier.references["fsdp"]
    assert plan.memory_parts["parameters"] == NUM_LAYERS * LEAF_BYTES // DEVICES
    assert plan.memory_parts["optimizer state"] == NUM_LAYERS * LEAF_BYTES // DEVICES
    assert plan.memory_parts["batch and other arguments"] == BATCH_BYTES // DEVICES
    for sharding in plan.input_shardings:
        assert math.prod(sharding.num_splits(plan.topology.axes)) == DEVICES


def test_both_split_the_work_evenly(frontier: jaxplan.Frontier) -> None:
    """Forward and weight gradient of every layer, input gradient of all but the first."""
    total = 2 * BATCH * WIDTH * WIDTH * (3 * NUM_LAYERS - 1)
    for plan in frontier.references.values():
        assert plan.prediction.flops == total / DEVICES, plan.name


def test_no_reference_beats_the_frontier(frontier: jaxplan.Frontier) -> None:
    for reference in frontier.references.values():
        assert frontier.fastest().time_seconds <= reference.time_seconds
        assert frontier.leanest().memory_bytes <= reference.memory_bytes
        assert any(
            p.memory_bytes <= reference.memory_bytes and p.time_seconds <= reference.time_seconds
            for p in frontier
        )


@pytest.mark.parametrize("name", ["data", "fsdp"])
def test_references_compute_the_same(name: str, frontier: jaxplan.Frontier) -> None:
    rng = np.random.default_rng(1)
    params, slots = (
        [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 16 for _ in range(NUM_LAYERS)] for _ in range(2)
    )
    x = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
    expected = jax.jit(momentum_step)(params, slots, x)
    found = frontier.references[name].jit()(params, slots, x)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_strategy_is_chosen_by_name_or_says_why_it_is_not_there(frontier: jaxplan.Frontier) -> None:
    assert frontier.choose("zero2") is frontier.references["zero2"]
    with pytest.raises(jaxplan.JaxplanError, match=r"'experts' does not apply to this step: .*no experts"):
        frontier.choose("experts")
    with pytest.raises(jaxplan.JaxplanError, match=r"expected: 'fastest', .*'megatron'.* or a number"):
        frontier.choose("mesh_tensorflow")
    assert "megatron" in frontier.table()


def test_a_batch_that_nothing_divides_has_no_data_parallelism() -> None:
    leaf, x = jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((7, 8), jnp.float32)
    planned = jaxplan.plan(momentum_step, [leaf], [leaf], x, topology="cpu:8", memory="1GiB")
    for name in ("data", "zero2", "fsdp"):
        assert planned.absent[name] == "the batch (7) does not divide by any of the 8 devices"


@pytest.mark.sample(12)
@pytest.mark.parametrize("solver", ["auto", "ft", "pase"])
@pytest.mark.parametrize("topology", ["h100:8", "a100-pcie:8", "h100:2x4", "cpu:6"])
@pytest.mark.parametrize("batch", [24, 4096])
def test_the_ends_of_a_frontier_are_never_predicted_worse_than_a_reference(
    batch: int, topology: str, solver: str
) -> None:
    leaf, x = jax.ShapeDtypeStruct((192, 192), jnp.float32), jax.ShapeDtypeStruct((batch, 192), jnp.float32)
    frontier = jaxplan.plan(momentum_step, [leaf] * 2, [leaf] * 2, x, topology=topology, solver=solver)
    references = frontier.references.values()
    assert {"data", "zero2", "fsdp", "megatron"} <= set(frontier.references)
    assert frontier.fastest().time_seconds <= min(plan.time_seconds for plan in references)
    assert frontier.leanest().memory_bytes <= min(plan.memory_bytes for plan in references)
