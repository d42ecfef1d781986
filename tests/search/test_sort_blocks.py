"""A mixture that sorts its tokens, planned with a sort for each device too."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from tests.ir.local_sorts.routed import WHOLE, WIDTH, dense, parameters, routed, sorted_back
from tests.sampling import sampled

BATCH, LENGTH, LAYERS = 16, 8, 2


def train_step(params, x, mixture=sorted_back):
    def loss(params):
        y = x
        for layer in params:
            y = y + mixture(layer, y.reshape(-1, WIDTH)).reshape(y.shape)
        return jnp.mean(y**2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value


def arguments():
    return [parameters(seed) for seed in range(LAYERS)], jax.random.normal(jax.random.key(9), (BATCH, LENGTH, WIDTH))


@pytest.fixture(scope="module")
def frontier():
    return jaxplan.plan(train_step, *arguments(), topology="cpu:8", progress=False)


def check(run):
    expected = jax.tree.leaves(train_step(*arguments(), dense))
    for a, b in zip(jax.tree.leaves(run(*arguments())), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * float(jnp.max(jnp.abs(b))))


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["fsdp", "experts", "data", "zero2", "data4_tensor2"], 2))
def test_references_run_as_one_device_does(frontier, name):
    check(frontier.references[name].jit())


@pytest.mark.parametrize("backend", ["jit", "shard_map"])
def test_the_fastest_and_the_leanest_run_as_one_device_does(frontier, backend):
    for plan in (frontier.fastest(), frontier.leanest(), frontier.references["fsdp"]):
        check(plan.jit(backend=backend))


def test_each_device_sorts_and_multiplies_its_own_tokens(frontier):
    """Under `data` an eighth of the arithmetic; without a sort for each device nothing of the experts is split so."""
    plan = frontier.references["data"]
    assert plan.sort_blocks is not None
    assert "rows sorted in 8 blocks" in plan.summary
    alone = jaxplan.plan(train_step, *arguments(), topology="cpu:1", progress=False).fastest()
    assert plan.prediction.flops == pytest.approx(alone.prediction.flops / 8, rel=0.02)


def test_a_saved_plan_sorts_in_as_many_blocks(frontier, tmp_path):
    path = tmp_path / "plan.json"
    frontier.references["fsdp"].save(path)
    plan = jaxplan.load(path, train_step, *arguments())
    assert plan.sort_blocks == frontier.references["fsdp"].sort_blocks
    check(plan.jit())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sort_blocks": 1}))
    with pytest.raises(jaxplan.PlanFileError, match="sort_blocks is 1; expected at least 2"):
        jaxplan.load(path, train_step, *arguments())


def test_what_depends_on_the_order_of_all_rows_is_planned_as_it_is():
    def step(params, x):
        return train_step(params, x, routed(WHOLE["sums up to a row"]))

    frontier = jaxplan.plan(step, *arguments(), topology="cpu:8", progress=False)
    assert all(plan.sort_blocks is None for plan in frontier.points)
    assert "'sort' mixes" in frontier.absent["data"]


@pytest.mark.slow
def test_micro_batches_sort_their_own_tokens(tmp_path):
    """In two slices of the batch each device sorts those of its part of a slice."""
    frontier = jaxplan.plan(train_step, *arguments(), topology="cpu:4", microbatches=2, progress=False)
    plan = frontier.references["fsdp"]
    assert plan.summary.endswith("rows sorted in 4 blocks, 2 micro-batches")
    for backend in ("jit", "shard_map"):
        check(plan.jit(backend=backend))
    plan.save(tmp_path / "plan.json")
    check(jaxplan.load(tmp_path / "plan.json", train_step, *arguments()).jit())


@pytest.mark.slow
def test_slices_with_too_few_rows_to_sort_are_left_out():
    """Eight slices of 32 tokens are four tokens each: eight rows, too few for eight devices."""
    args = [parameters(0)], jax.random.normal(jax.random.key(9), (32, WIDTH))
    frontier = jaxplan.plan(train_step, *args, topology="cpu:8", microbatches=True, progress=False)
    found, expected = frontier.leanest().jit()(*args), train_step(*args, dense)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * float(jnp.max(jnp.abs(b))))


def test_another_batch_is_planned_in_blocks(frontier):
    other = frontier.what_if(batch=2 * BATCH)
    assert other.references["data"].sort_blocks is not None
    assert other.references["megatron"].time_seconds > frontier.references["megatron"].time_seconds


@pytest.mark.slow
def test_a_kept_frontier_is_planned_for_another_batch_too(tmp_path):
    """Its second search reads the file, and plans neither program."""
    for _ in range(2):
        frontier = jaxplan.plan(train_step, *arguments(), topology="cpu:8", cache_dir=tmp_path, progress=False)
    assert frontier.what_if(batch=2 * BATCH).references["data"].sort_blocks is not None
