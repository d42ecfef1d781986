"""Rematerialisation chosen by plans: values as on one device, plans as files, and when it is looked for."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.search._recompute import ends, rungs_between
from tests.sampling import sampled

WIDTH, BATCH, LAYERS = 16, 4096, 2


def train_step(params, key, x, y):
    """Residual blocks with dropout: the residuals of a block depend on random bits."""

    def loss_fn(params):
        h = x
        for layer, p in enumerate(params):
            up = jnp.tanh(h @ p["up"] + p["bias"])
            mask = jax.random.bernoulli(jax.random.fold_in(key, layer), 0.7, up.shape)
            h = h + jnp.where(mask, up / 0.7, 0.0) @ p["down"]
        return jnp.mean((h - y) ** 2), h

    (loss, h), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss, h


def make_args():
    draw = np.random.default_rng(0)

    def array(*shape):
        return jnp.asarray(draw.normal(size=shape) / 4, jnp.float64)

    params = [
        {"up": array(WIDTH, 4 * WIDTH), "bias": array(4 * WIDTH), "down": array(4 * WIDTH, WIDTH)}
        for _ in range(LAYERS)
    ]
    return params, jax.random.key(0), array(BATCH, WIDTH), array(BATCH, WIDTH)


@pytest.fixture(scope="module", autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def frontier(double_precision):
    options = {"topology": "cpu:8", "donate_argnums": (), "progress": False}
    return jaxplan.plan(train_step, *make_args(), remat=True, **options)


def test_a_plan_with_blocks_again_equals_one_device(frontier, tmp_path):
    args = make_args()
    wanted = jax.jit(train_step)(*args)
    plan = frontier.leanest()
    assert (
        plan.remat is not None and plan.remat.num_all and plan.remat.num_contractions
    )  # both ways in one plan
    plan.save(tmp_path / "plan.json")
    loaded = jaxplan.load(tmp_path / "plan.json", train_step, *args)
    assert loaded.remat == plan.remat and loaded.to_json() == plan.to_json()
    got = loaded.jit()(*loaded.shard(args))  # another mask in the copy would be seen in the parameters
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), got, wanted)


def accumulated(params, key, x, y):
    """A loop over micro-batches of the step's own: forward and backward pass of each stand in its body."""

    def add(total, slices):
        step = train_step(params, key, *slices)
        return jax.tree.map(jnp.add, total, step[0]), step[1]

    zeros = jax.tree.map(jnp.zeros_like, params)
    slices = x.reshape(4, -1, WIDTH), y.reshape(4, -1, WIDTH)
    return jax.lax.scan(add, zeros, slices)


@pytest.mark.parametrize("step, num", sampled([(train_step, 2), (accumulated, None)]))
def test_blocks_in_a_loop_over_micro_batches_are_recomputed(step, num, tmp_path):
    """Residuals of blocks are the larger part of a slice; a plan without them takes less and gives the same."""
    args = make_args()
    options = {"topology": "cpu:8", "donate_argnums": (), "progress": False, "microbatches": num or False}
    frontier = jaxplan.plan(step, *args, remat=True, **options)
    plan, kept = frontier.leanest(), jaxplan.plan(step, *args, remat=False, **options).leanest()
    assert plan.remat is not None and plan.memory_bytes < kept.memory_bytes
    plan.save(tmp_path / "plan.json")
    loaded = jaxplan.load(tmp_path / "plan.json", step, *args)
    assert loaded.remat == plan.remat and loaded.microbatches == plan.microbatches
    got, wanted = loaded.jit()(*loaded.shard(args)), jax.jit(step)(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), got, wanted)


def test_a_plan_says_what_it_computes_again(frontier):
    plan = frontier.leanest()
    said = "block 1 of 2 recomputed, block 2 of 2 recomputed but for dots"
    assert said in plan.summary and said in plan.explain()
    assert "1 2*" in frontier.table(width=100).splitlines()[3]
    assert plan.gap is None  # bounds are of the step as it is
    assert plan.simulate().time_seconds <= plan.time_seconds * (1 + 1e-9)


def test_files_with_another_choice_are_refused(frontier, tmp_path):
    data = {**frontier.leanest().to_json(), "lowering": None}  # which would be of another program
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**data, "remat": {"num_all": 1, "num_contractions": 0, "of": 7}}))
    with pytest.raises(jaxplan.PlanMismatchError, match=r"some of 7 repeated blocks.*finds 2"):
        jaxplan.load(path, train_step, *make_args())
    path.write_text(json.dumps({**data, "remat": {"num_all": 3, "num_contractions": 0, "of": 2}}))
    with pytest.raises(jaxplan.PlanFileError, match="expected some of 2 blocks"):
        jaxplan.load(path)


def test_it_is_looked_for_where_memory_is_short():
    options = {"topology": "cpu:8", "progress": False}
    plain = jaxplan.plan(train_step, *make_args(), remat=False, **options)
    roomy = jaxplan.plan(train_step, *make_args(), **options)
    assert not any(plan.remat for plan in (*plain, *roomy))
    limit = int(0.8 * plain.leanest().memory_bytes)  # no plan without it has so little
    with pytest.raises(jaxplan.InfeasibleError):
        jaxplan.plan(train_step, *make_args(), remat=False, microbatches=False, memory=limit, **options)
    assert jaxplan.plan(train_step, *make_args(), memory=limit, **options).fastest().remat is not None


def test_an_option_that_is_no_truth_value_is_refused():
    with pytest.raises(jaxplan.ArgumentError, match="remat is 'blocks'; expected True"):
        jaxplan.plan(train_step, *make_args(), topology="cpu:8", remat="blocks")


@pytest.mark.parametrize("light", [True, False])
def test_the_ladder_has_nothing_twice_and_leaves_no_way_out_that_saves(light):
    for num_blocks in (1, 2, 5, 24):
        rungs = [*ends(num_blocks), *rungs_between(num_blocks, light=light, heavy=True)]
        assert len(set(rungs)) == len(rungs)
        assert {remat.num_all for remat in rungs} > {0, num_blocks} or num_blocks == 1
        assert all(len(remat.policies) == num_blocks for remat in rungs if remat.num_all and light)
        assert not rungs_between(num_blocks, light=False, heavy=False)
    assert ends(0) == []
