"""Plans in stages of a pipeline."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from benchmarks.models import MODELS

WIDTH = 16


def block(w, x):
    h = jnp.tanh(x @ w["up"]) @ w["down"]
    return x + h / (1e-3 + jnp.sqrt(jnp.mean(h**2, axis=-1, keepdims=True)))


def loss(params, batch):
    x = params["tokens"][batch["tokens"]]
    for k in range(4):
        x = block(params[f"block_{k}"], x)
    logits = x @ params["tokens"].T  # tied
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][..., None], axis=-1)
    return -jnp.mean(picked)


def train_step(state, batch):
    value, grads = jax.value_and_grad(loss)(state["params"], batch)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g / jnp.maximum(1.0, norm), state["momentum"], grads)
    rate = 0.1 / (1.0 + state["count"])
    params = jax.tree.map(lambda p, m: p - rate * m, state["params"], momentum)
    return {"params": params, "momentum": momentum, "count": state["count"] + 1}, value


def make_state(key):
    keys = jax.random.split(key, 9)
    params = {"tokens": jax.random.normal(keys[8], (32, WIDTH)) / 4}
    for k in range(4):
        up = jax.random.normal(keys[2 * k], (WIDTH, 4 * WIDTH)) / 4
        params[f"block_{k}"] = {"up": up, "down": jax.random.normal(keys[2 * k + 1], (4 * WIDTH, WIDTH)) / 8}
    return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params), "count": jnp.zeros((), "int32")}


def arguments(batch=32):
    tokens = jax.random.randint(jax.random.key(1), (2, batch, 8), 0, 32)
    return make_state(jax.random.key(0)), {"tokens": tokens[0], "labels": tokens[1]}


def assert_equal(found, expected, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.max(np.abs(a - b)) <= tolerance * max(np.max(np.abs(b)), 1e-30)


def planned(num, micro_batches=4, topology="cpu:4", **options):
    return jaxplan.plan(train_step, *arguments(), topology=topology, stages=num, microbatches=micro_batches, **options)


@pytest.fixture(scope="module")
def in_two():
    return planned(2)


def test_two_steps_in_stages_equal_one_device(in_two):
    state, batch = arguments()
    expected, value = jax.jit(train_step)(*jax.jit(train_step)(state, batch)[:1], batch)
    run = in_two.fastest().jit()
    placed, batch = run.shard(state, batch)
    found, first = run(placed, batch)
    found, second = run(found, batch)
    assert_equal((found, second), (expected, value))
    assert first > second


def test_state_lives_on_the_devices_of_its_stage(in_two):
    plan = in_two.fastest()
    state, _ = plan.shard(arguments())
    devices = [set(jax.devices()[stage.devices.start : stage.devices.stop]) for stage in plan.stages]
    places = [state["params"][f"block_{k}"]["up"].sharding.device_set for k in range(4)]
    assert places[0] == devices[0] and places[3] == devices[1] and not devices[0] & devices[1]
    assert state["momentum"]["block_3"]["down"].sharding.device_set == devices[1]


def test_the_bubble_is_that_of_the_schedule():
    """m micro-batches take the sum of all stages once and m - 1 times the slowest (Alpa, section 5.1)."""

    def step(w, x):
        def loss(w):
            h = x
            for k in range(8):
                h = h + jnp.tanh(h @ w[k])
            return jnp.mean(h.astype("float32"))

        return jax.tree.map(lambda p, g: p - g, w, jax.grad(loss)(w))

    w = [jax.ShapeDtypeStruct((16384, 16384), "bfloat16")] * 8
    x = jax.ShapeDtypeStruct((16 * 4096, 16384), "bfloat16")
    plan = jaxplan.plan(step, w, x, topology="h100:8", stages=4, microbatches=16).fastest()
    seconds = [stage.forward_seconds + stage.backward_seconds for stage in plan.stages]
    makespan = sum(seconds) + 15 * max(seconds)
    assert plan.bubble == pytest.approx(1 - 16 * sum(seconds) / (4 * makespan), rel=0.05)
    assert makespan < plan.time_seconds < 1.02 * makespan + max(stage.update_seconds for stage in plan.stages)
    assert [stage.num_devices for stage in plan.stages] == [2] * 4


def test_a_plan_in_stages_reads_back_and_runs(in_two, tmp_path):
    plan, args = in_two.fastest(), arguments()
    plan.save(tmp_path / "plan.json")
    bare = jaxplan.load(tmp_path / "plan.json")
    assert bare.memory_bytes == plan.memory_bytes and bare.time_seconds == plan.time_seconds
    loaded = jaxplan.load(tmp_path / "plan.json", train_step, *args)
    assert loaded.is_same_program(plan) and loaded.summary == plan.summary
    assert_equal(loaded.jit(donate_argnums=())(*args), jax.jit(train_step)(*args))


def test_a_step_under_auto_runs_in_stages():
    step = jaxplan.auto(topology="cpu:4", stages=4, microbatches=8)(train_step)
    state, batch = arguments()
    expected = jax.jit(train_step)(state, batch)
    assert_equal(step(state, batch), expected)
    assert len(step.plan.stages) == 4 and step.plan.num_microbatches == 8
    places = dict(zip(step.plan.in_paths, step.plan.in_stages, strict=True))
    assert places["[0]['params']['tokens']"] == places["[1]['tokens']"] == 0  # the first stage has the tied table
    assert places["[0]['params']['block_3']['up']"] > 0 and places["[1]['labels']"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("num", [2, 4])
@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny", "vit-tiny"])
def test_models_in_stages_equal_one_device(name, num):
    """Biases of keys have gradients of zero but for rounding (they shift all scores of a row): those of queries are the
    scale of their differences."""
    spec = MODELS[name].override(dtype="float32", optimizer="sgd")
    args = (*spec.make_state(spec.config), spec.make_batch(spec.config, jax.random.key(0)))
    step = spec.make_step(spec.config)
    plan = jaxplan.plan(step, *args, topology="cpu:8", stages=num, microbatches=4).fastest()
    found, expected = (f(*args) for f in (plan.jit(donate_argnums=()), jax.jit(step)))
    by_path = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(expected)}
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        name = jax.tree_util.keystr(path)
        if "['key']['bias']" in name:
            scale = np.abs(by_path[name.replace("['key']", "['query']")]).max()
            assert np.abs(np.asarray(a) - np.asarray(b)).max() <= 1e-4 * scale
        else:
            assert_equal(a, b, tolerance=1e-4)


@pytest.mark.slow
def test_every_stage_is_audited(in_two):
    plan = in_two.fastest()
    audits = plan.audit()
    assert len(audits) == len(plan.stages) == 2
    for audit in audits:
        assert audit.predicted_flops == audit.compiled_flops > 0, audit.table()


def test_state_is_created_on_its_stage(in_two):
    plan = in_two.fastest()
    created = plan.init(make_state, jax.random.key(0))
    assert_equal(created, make_state(jax.random.key(0)), tolerance=1e-6)
    wanted = plan.in_shardings()[0]
    assert all(a.sharding == s for a, s in zip(jax.tree.leaves(created), jax.tree.leaves(wanted), strict=True))


@pytest.mark.slow
def test_stages_appear_beside_plans_of_the_whole_step():
    frontier, without = (planned(n, None, topology="cpu:2") for n in (True, False))
    assert frontier.fastest().time_seconds <= without.fastest().time_seconds
    assert frontier.leanest().memory_bytes <= without.leanest().memory_bytes
    assert any(plan.stages for plan in frontier) and not any(plan.stages for plan in without)


def test_sums_inside_of_the_model_are_refused_with_the_reason():
    def step(w, x):
        def loss(w):
            h = jnp.tanh(x @ w[0])
            h = (h - jnp.mean(h, axis=0)) @ w[1]
            return jnp.mean(h**2)

        return jax.tree.map(lambda p, g: p - g, w, jax.grad(loss)(w))

    args = [jnp.zeros((8, 8))] * 2, jnp.zeros((16, 8))
    with pytest.raises(jaxplan.UnsupportedError, match="sums over the whole batch"):
        jaxplan.plan(step, *args, topology="cpu:2", stages=2, microbatches=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 9}, "there are fewer devices"),
        ({"stages": 8}, "units"),
        ({"stages": "two"}, "expected a number of stages"),
        ({"stages": 2, "microbatches": 5}, "32 examples"),
        ({"stages": 2, "microbatches": False}, "microbatches=False"),
        ({"stages": 2, "microbatches": 4, "pins": {"batch": 2}}, "pins"),
    ],
)
def test_stages_that_cannot_be_are_refused(options, message):
    with pytest.raises(jaxplan.JaxplanError, match=message):
        jaxplan.plan(train_step, *arguments(), topology="cpu:8", **options)


def test_calls_on_several_programs(in_two, tmp_path):
    plan = in_two.fastest()
    assert "stage 1: devices 2 to 3" in plan.explain() and "2 stages of" in in_two.table()
    assert plan.simulate().bubble == plan.bubble
    plan.save_timeline(tmp_path / "passes.json")
    names = plan.jit().lower(*arguments()).keys()
    assert {"stage 0 forward", "stage 1 backward", "stage 0 update 0"} <= names
    for refused in (lambda: plan.diff(plan), lambda: plan.export("x.py"), lambda: plan.explain("tokens")):
        with pytest.raises(jaxplan.UnsupportedError, match="2 stages, each a program"):
            refused()
    with pytest.raises(jaxplan.UnsupportedError, match="run in stages"):
        in_two.report(tmp_path / "report.html")


@pytest.mark.slow
def test_state_moves_to_a_plan_of_the_whole_step_through_a_checkpoint(in_two, tmp_path):
    pytest.importorskip("orbax.checkpoint")
    plan, (state, batch) = in_two.fastest(), arguments()
    (state, _) = plan.jit()(*plan.shard((state, batch)))
    with plan.checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(1, state)
    whole = jaxplan.plan(train_step, *arguments(), topology="cpu:2", stages=False).fastest()
    assert_equal(whole.restore(tmp_path / "run"), state, tolerance=0)


def test_a_call_inside_of_another_trace_is_refused(in_two):
    run = in_two.fastest().jit()
    with pytest.raises(jaxplan.UnsupportedError, match="inside of another traced function"):
        jax.jit(lambda *args: run(*args))(*arguments())
