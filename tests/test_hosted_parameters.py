"""Plans that keep parameters in the memory of the host, and copy them to the devices where they are read."""

from __future__ import annotations

import json
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.plans._plan_json import plan_from_json
from tests.sampling import sampled
from tests.test_offload import OPTIMIZERS, arguments, frontier_of, on_host, step_of

HOST = "pinned_host"


def with_parameters(frontier):
    """The leanest plan with parameters on the host."""
    return next(p for p in frontier.points if p.offload and p.offload.parameters)


def assert_equal(found, expected):
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        ours, theirs = (np.asarray(a, np.float32) for a in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * max(np.abs(theirs).max(), 1e-30))


@pytest.mark.parametrize("backend", ["jit", "shard_map"])
@pytest.mark.parametrize("name", sampled(OPTIMIZERS))
def test_three_steps_equal_one_device_and_return_parameters_to_the_host(name, backend):
    optimizer, plan = OPTIMIZERS[name], with_parameters(frontier_of(name, offload=True))
    run, reference = plan.jit(backend=backend), jax.jit(step_of(optimizer))
    params, slots, x = arguments(optimizer)
    mine = run.shard(params, slots, x)[:2]
    for _ in range(3):
        assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(mine[0])} == {HOST}
        *mine, value = run(*mine, x)
        params, slots, expected = reference(params, slots, x)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert_equal(mine, (params, slots))


def layers(params, x, cast=lambda w: w):
    for layer in params:
        x = x + jnp.tanh(x @ cast(layer["up"])) @ cast(layer["down"])
    return jnp.mean(x**2)


def stacked(params, x, cast=lambda w: w):
    def layer(x, w):
        return x + jnp.tanh(x @ cast(w["up"])) @ cast(w["down"]), None

    return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)


def cast_first(params, x):
    """All parameters are cast before the loop over the layers."""
    return stacked(jax.tree.map(lambda w: w.astype(jnp.float16), params), x.astype(jnp.float16)).astype(jnp.float32)


def checkpointed(params, x):
    layer = jax.checkpoint(lambda x, w: (x + jnp.tanh(x @ w["up"]) @ w["down"], None))
    return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)


def tied(params, x):
    """The first matrix is read at both ends of the step."""
    return layers(params, x) + jnp.mean((x @ params[0]["up"]) ** 2)


def over_time(params, x):
    """A loop over time reads its kernels whole in each trip."""
    up, down = params[0]["up"], params[0]["down"]
    x, _ = jax.lax.scan(lambda h, _: (h + jnp.tanh(h @ up) @ down, None), x, None, length=3)
    return layers(params[1:], x)


FORMS = {
    "layers": (layers, False, {}),
    "cast": (lambda params, x: layers(params, x, lambda w: w.astype(jnp.float32)), False, {}),
    "stacked": (stacked, True, {}),
    "cast-first": (cast_first, True, {}),
    "checkpointed": (checkpointed, True, {}),
    "tied": (tied, False, {}),
    "over-time": (over_time, False, {}),
    "micro-batches": (layers, False, {"microbatches": 2}),
    "stacked-micro-batches": (stacked, True, {"microbatches": 2}),
    "recomputed": (layers, False, {"remat": True}),
}


def parameters_of(is_stacked, width, num_layers=3):
    params = [
        {
            "up": jax.random.normal(jax.random.key(i), (width, 4 * width)) / width,
            "down": jax.random.normal(jax.random.key(9 + i), (4 * width, width)) / width,
        }
        for i in range(num_layers)
    ]
    return jax.tree.map(lambda *of: jnp.stack(of), *params) if is_stacked else params


def sgd(loss):
    def step(params, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients), value

    return step


@pytest.mark.sample(10)
@pytest.mark.parametrize("backend", sampled(["shard_map", "jit"]))
@pytest.mark.parametrize("form", FORMS)
def test_whatever_reads_the_parameters_results_equal_one_device(form, backend):
    loss, is_stacked, options = FORMS[form]
    step, params, x = sgd(loss), parameters_of(is_stacked, 32), jax.random.normal(jax.random.key(20), (32, 32))
    frontier = jaxplan.plan(step, params, x, topology="cpu:8", offload=True, progress=False, **options)
    found = with_parameters(frontier).jit(backend=backend)(jax.tree.map(jnp.copy, params), x)
    expected = jax.jit(step)(params, x)
    tolerance = 1e-4 if form != "cast-first" else 1e-2
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


def test_the_link_carries_a_parameter_for_each_pass_and_its_update():
    """Three layers of two matrices and their two moments. No gradient of the input is asked for, so the backward pass
    does not read the first matrix; copies back to the host run beside the others."""
    plan = with_parameters(frontier_of(offload=True))
    local = [
        32 * 128 * 4 // int(np.prod(plan.input_shardings[i].num_splits(plan.topology.axes)))
        for i in plan.offload.arguments
    ]
    assert plan.host_bytes == sum(local) and len(local) == 18
    down_up = local[:6]
    read = sum(3 * n for n in down_up) - down_up[1] + sum(local[6:])
    assert plan.host_seconds == pytest.approx(read / plan.topology.chip.host_bytes_per_second)


def adapted(adapters, params, x):
    for layer, adapter in zip(params, adapters, strict=True):
        x = x + jnp.tanh(x @ layer["up"] + x @ adapter["a"] @ adapter["b"]) @ layer["down"]
    return jnp.mean(x**2)


def test_parameters_that_are_not_trained_stay_on_the_host_and_are_not_donated():
    """Adapters of rank 2 are trained; the matrices beside them are read in both passes."""

    def step(adapters, params, x):
        value, gradients = jax.value_and_grad(adapted)(adapters, params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, adapters, gradients), value

    params, x = parameters_of(False, 32), jax.random.normal(jax.random.key(20), (64, 32))
    adapters = [{"a": jnp.ones((32, 2)) / 32, "b": jnp.ones((2, 128)) / 2} for _ in params]
    frontier = jaxplan.plan(step, adapters, params, x, topology="cpu:8", offload=True, progress=False)
    plan = with_parameters(frontier)
    assert "parameters on the host" in plan.summary
    run, state = plan.jit(), jax.tree.map(jnp.copy, adapters)
    placed = run.shard(state, params, x)[1]
    for _ in range(2):
        state, value = run(state, placed, x)
        adapters, expected = jax.jit(step)(adapters, params, x)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert_equal(state, adapters)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(placed)} == {HOST}


def test_a_forward_pass_may_read_its_parameters_from_the_host():
    params, x = parameters_of(True, 32), jax.random.normal(jax.random.key(20), (64, 32))
    plan = with_parameters(jaxplan.plan(stacked, params, x, topology="cpu:8", offload=True, progress=False))
    np.testing.assert_allclose(plan.jit()(params, x), stacked(params, x), rtol=1e-5)


def test_on_tpus_parameters_stay_on_the_devices():
    """Compiled programs copied all of them when the step began."""
    shapes = {"width": 512, "batch": 512}
    frontier = frontier_of(topology="v5e:2x4", shapes=shapes, offload=True)
    offloads = [plan.offload for plan in frontier.points if plan.offload]
    assert offloads and not any(offload.parameters for offload in offloads)


def test_parameters_given_on_the_host_stay_there():
    optimizer = OPTIMIZERS["adam"]
    params, slots, x = arguments(optimizer)
    frontier = jaxplan.plan(step_of(optimizer), on_host(params), slots, x, topology="cpu:8", progress=False)
    assert all(plan.offload.parameters == tuple(range(6)) for plan in frontier.points)
    found = frontier.fastest().jit()(on_host(params), slots, x)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(found[0])} == {HOST}
    assert_equal(found, jax.jit(step_of(optimizer))(*arguments(optimizer)))


def test_a_plan_with_parameters_on_the_host_reads_back_and_says_so(tmp_path):
    optimizer, frontier = OPTIMIZERS["adam"], frontier_of(offload=True)
    plan, args = with_parameters(frontier), arguments(optimizer)
    plan.save(tmp_path / "p.json")
    bound = jaxplan.load(tmp_path / "p.json", step_of(optimizer), *args)
    assert bound.offload == plan.offload and bound.to_json() == plan.to_json()
    assert "parameters and optimizer state on the host" in bound.summary
    assert re.search(r"leanest +data 8 +1/8 host +once host", frontier.table())
    assert_equal(bound.jit()(*arguments(optimizer)), jax.jit(step_of(optimizer))(*args))
    made = plan.init(lambda: args[0])
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(made)} == {HOST}


@pytest.mark.parametrize("parameters", [[2, 1], [1, 1], [99]])
def test_positions_of_parameters_that_no_plan_can_have_are_refused(parameters):
    data = json.loads(json.dumps(with_parameters(frontier_of(offload=True)).to_json()))
    data["offload"]["parameters"] = parameters
    with pytest.raises(jaxplan.PlanFileError, match="offload is"):
        plan_from_json(data)


def test_an_exported_script_reads_parameters_from_the_host(tmp_path):
    optimizer, plan = OPTIMIZERS["adam"], with_parameters(frontier_of(offload=True))
    args = arguments(optimizer)
    plan.export(tmp_path / "planned.py")
    script = runpy.run_path(str(tmp_path / "planned.py"))
    assert_equal(script["train_step"](*arguments(optimizer)), jax.jit(step_of(optimizer))(*args))


def test_a_planned_step_inside_of_jit_keeps_its_values():
    optimizer, plan = OPTIMIZERS["adam"], with_parameters(frontier_of(offload=True))
    args, run = arguments(optimizer), plan.jit()
    found = jax.jit(lambda *args: run(*args)[2])(*args)
    np.testing.assert_allclose(found, step_of(optimizer)(*args)[2], rtol=1e-5)


def test_an_operator_that_makes_nan_of_parameters_on_the_host_is_named():
    params, x = parameters_of(False, 32), jax.random.normal(jax.random.key(20), (64, 32))

    def negative(params, x):
        return jnp.log(layers(params, x) - 1e9)

    run = with_parameters(
        jaxplan.plan(sgd(negative), params, x, topology="cpu:8", offload=True, progress=False)
    ).jit()
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"log.*test_hosted_parameters"):
        run(params, x)


COMPILED = [
    ("layers", "float32"),
    ("layers", "bfloat16"),
    ("stacked", "bfloat16"),
    ("micro-batches", "float32"),
    ("recomputed", "bfloat16"),
]


@pytest.mark.gpu_aot
@pytest.mark.parametrize(("form", "dtype"), sampled(COMPILED))
def test_compiled_programs_hold_the_parameters_of_a_layer_at_a_time(form, dtype):
    """Six layers of two matrices of 2048 x 8192: bytes on the host exactly, those on the device within 15 %, no
    collective beside those of the plan, and less than the plan needs with its parameters on the devices."""
    loss, is_stacked, options = FORMS[form]

    params = jax.eval_shape(lambda: parameters_of(is_stacked, 2048, 6))
    params = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, dtype), params)
    x = jax.ShapeDtypeStruct((8192, 2048), dtype)
    frontier = jaxplan.plan(
        sgd(loss), params, x, topology="h100:8", offload=True, progress=False, verify=False, **options
    )
    plan = with_parameters(frontier)
    audit = plan.audit()
    assert audit.compiled_host_bytes == plan.host_bytes > 0, audit.table()
    assert audit.collectives_ok, audit.table()
    assert audit.compiled_memory_bytes == pytest.approx(plan.memory_bytes, rel=0.15), audit.table()
    assert audit.compiled_memory_bytes < min(p.memory_bytes for p in frontier.points if not p.offload)


@pytest.mark.slow
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
    "remat",
    [
        False,
        pytest.param(
            True,
            marks=[
                pytest.mark.slow,
                pytest.mark.xfail(strict=True, reason="gradients of all blocks are predicted to wait: 30 % too high"),
            ],
        ),
    ],
)
def test_adam_keeps_everything_but_three_updates_on_the_host(remat):
    params = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), jax.eval_shape(lambda: parameters_of(False, 2048, 6))
    )
    optimizer = OPTIMIZERS["adam"]
    args = params, jax.eval_shape(optimizer.init, params), jax.ShapeDtypeStruct((8192, 2048), jnp.float32)
    options = {"topology": "h100:8", "offload": True, "progress": False, "verify": False}
    plan = with_parameters(jaxplan.plan(step_of(optimizer), *args, remat=remat, **options))
    audit = plan.audit()
    assert audit.compiled_host_bytes == plan.host_bytes and audit.collectives_ok, audit.table()
    assert audit.compiled_memory_bytes == pytest.approx(plan.memory_bytes, rel=0.15), audit.table()
