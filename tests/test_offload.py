"""Plans that keep state of the optimizer in the memory of the host."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxplan
from jaxplan.cost import KEEP, REPEAT, ModelBuilder, Predictor
from jaxplan.ir import Offload, hosted_updates
from jaxplan.search._make_plan import make_plan
from tests.sampling import sampled

OPTIMIZERS = {
    "adam": optax.adam(1e-2, eps=1e-4),
    "momentum": optax.sgd(1e-2, momentum=0.9),
    "clipped": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, eps=1e-3)),
}
HOST = "pinned_host"


def loss(params, x):
    for layer in params:
        x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
    return jnp.mean(x**2)


def step_of(optimizer):
    def train_step(params, slots, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, slots = optimizer.update(grads, slots, params)
        return optax.apply_updates(params, updates), slots, value

    return train_step


def arguments(optimizer, width=32, batch=64):
    params = [
        {
            "up": jax.random.normal(jax.random.key(i), (width, 4 * width)) / width,
            "down": jax.random.normal(jax.random.key(9 + i), (4 * width, width)) / width,
        }
        for i in range(3)
    ]
    return params, optimizer.init(params), jax.random.normal(jax.random.key(20), (batch, width))


def frontier_of(name="adam", topology="cpu:8", shapes=None, **options):
    optimizer = OPTIMIZERS[name]
    args = arguments(optimizer) if shapes is None else jax.eval_shape(lambda: arguments(optimizer, **shapes))
    return jaxplan.plan(step_of(optimizer), *args, topology=topology, progress=False, **options)


def plan_of(name="adam", **options):
    """The fastest plan with all of the state on the host."""
    frontier = frontier_of(name, offload=True, **options)
    return next(p for p in reversed(frontier.points) if p.offload and len(p.offload.inputs) == p.offload.of)


@pytest.mark.sample(3)
@pytest.mark.parametrize("backend", ["jit", "shard_map"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_steps_with_state_on_the_host_equal_one_device(name, backend):
    optimizer, plan = OPTIMIZERS[name], plan_of(name)
    run, reference = plan.jit(backend=backend), jax.jit(step_of(optimizer))
    params, slots, x = arguments(optimizer)
    mine = run.shard(params, slots, x)[:2]
    on_host = [leaf for leaf in jax.tree.leaves(mine[1]) if leaf.sharding.memory_kind == HOST]
    assert plan.offload is not None and len(on_host) == plan.offload.of
    for _ in range(3):
        *mine, value = run(*mine, x)
        params, slots, expected = reference(params, slots, x)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(mine), jax.tree.leaves((params, slots)), strict=True):
        ours, theirs = (np.asarray(a, np.float32) for a in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * max(np.abs(theirs).max(), 1e-30))
    kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(mine[1]) if leaf.ndim}
    assert kinds == {HOST}


def test_bytes_on_the_host_are_those_of_the_moments_and_cost_the_link():
    """Adam's two moments of 6 matrices of 32 x 128 in float32, over the ways that they are split."""
    plan = plan_of()
    ways = [int(np.prod(plan.input_shardings[i].num_splits(plan.topology.axes))) for i in plan.offload.inputs]
    assert plan.host_bytes == sum(32 * 128 * 4 // n for n in ways) and len(ways) == 12
    assert plan.host_seconds == pytest.approx(plan.host_bytes / plan.topology.chip.host_bytes_per_second)
    assert plan.time_seconds == pytest.approx(plan.compute_seconds + plan.communication_seconds + plan.host_seconds)


def test_a_faster_link_makes_the_same_plan_faster():
    slow = jaxplan.Topology.parse("cpu:8")
    fast = dataclasses.replace(slow, chip=dataclasses.replace(slow.chip, host_bytes_per_second=450e9))
    one, other = (plan_of(topology=topology) for topology in (slow, fast))
    assert one.host_bytes / one.host_seconds == pytest.approx(10e9)
    assert other.host_bytes / other.host_seconds == pytest.approx(450e9)


def test_without_the_option_nothing_is_on_the_host_unless_nothing_fits():
    shapes = {"width": 512, "batch": 512}
    with_room = frontier_of(topology="h100:8", shapes=shapes)
    assert not any(plan.offload for plan in with_room.points)
    leanest = with_room.leanest()
    limit = leanest.memory_bytes - leanest.memory_parts["optimizer state"] // 2
    with pytest.raises(jaxplan.InfeasibleError):
        frontier_of(topology="h100:8", shapes=shapes, memory=limit, offload=False, microbatches=False)
    short = frontier_of(topology="h100:8", shapes=shapes, memory=limit, microbatches=False)
    assert all(plan.offload and plan.memory_bytes <= limit for plan in short.points)


def test_a_plan_with_state_on_the_host_reads_back_and_says_so(tmp_path):
    optimizer = OPTIMIZERS["adam"]
    plan, args = plan_of(), arguments(optimizer)
    plan.save(tmp_path / "p.json")
    alone, bound = (jaxplan.load(tmp_path / "p.json", *of) for of in ((), (step_of(optimizer), *args)))
    for loaded in (alone, bound):
        assert loaded.offload == plan.offload and loaded.is_same_program(plan)
        assert (loaded.host_bytes, loaded.host_seconds) == (plan.host_bytes, plan.host_seconds)
        assert "optimizer state on the host" in loaded.summary and "on the host" in loaded.explain()
    assert bound.to_json() == plan.to_json()
    bound.jit()(*args)
    other = frontier_of().fastest()
    assert "link to the host" in str(other.diff(plan))


def test_state_can_be_created_where_it_lives():
    optimizer, plan = OPTIMIZERS["adam"], plan_of()
    slots = plan.init(optimizer.init, arguments(optimizer)[0])
    wanted = plan.in_shardings()[1]
    for leaf, sharding in zip(jax.tree.leaves(slots), jax.tree.leaves(wanted), strict=True):
        assert leaf.sharding.memory_kind == sharding.memory_kind or sharding.memory_kind is None


def test_an_argument_on_the_host_must_be_donated():
    with pytest.raises(jaxplan.PlanMismatchError, match="donate_argnums leaves out"):
        plan_of().jit(donate_argnums=())


def test_a_planned_step_inside_of_jit_keeps_its_values():
    optimizer, plan = OPTIMIZERS["adam"], plan_of()
    args = arguments(optimizer)
    run = plan.jit()
    found = jax.jit(lambda *args: run(*args)[2])(*args)
    np.testing.assert_allclose(found, step_of(optimizer)(*args)[2], rtol=1e-5)


def test_state_alone_may_live_on_the_host():
    plan = plan_of()
    roles = {plan.in_roles[i] for i in plan.offload.inputs}
    assert roles == {"state"}


@pytest.mark.parametrize("value", ["yes", 2])
def test_other_values_of_the_option_are_refused(value):
    with pytest.raises(jaxplan.ArgumentError, match="offload is"):
        frontier_of(offload=value)


def with_recomputed_blocks(**options):
    """The leanest plan in which operands of recomputed blocks wait on the host."""
    frontier = frontier_of(offload=True, remat=True, **options)
    return next(p for p in frontier.points if p.offload and p.offload.regions)


@pytest.mark.sample(1)
@pytest.mark.parametrize("backend", ["jit", "shard_map"])
def test_a_step_whose_activations_wait_on_the_host_equals_one_device(backend):
    optimizer, plan = OPTIMIZERS["momentum"], with_recomputed_blocks(name="momentum")
    args = arguments(optimizer)
    found = plan.jit(backend=backend)(*jax.tree.map(jnp.copy, args))
    expected = jax.jit(step_of(optimizer))(*args)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * max(np.abs(theirs).max(), 1e-30))
    assert "recomputed blocks on the host" in plan.summary


def test_activations_on_the_host_read_back(tmp_path):
    plan = with_recomputed_blocks()
    plan.save(tmp_path / "p.json")
    args = arguments(OPTIMIZERS["adam"])
    bound = jaxplan.load(tmp_path / "p.json", step_of(OPTIMIZERS["adam"]), *args)
    assert bound.offload == plan.offload and bound.to_json() == plan.to_json()


@pytest.mark.slow
def test_operands_of_a_checkpointed_region_may_wait_on_the_host():
    """Three layers under `jax.checkpoint`: the operand of each is kept; the last stays, because it is read at once."""

    def checkpointed(params, x):
        layer = jax.checkpoint(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w.T))
        for w in params:
            x = layer(x, w)
        return jnp.mean(x**2)

    def step(params, x):
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(checkpointed)(params, x))

    params = [jax.random.normal(jax.random.key(i), (32, 32)) / 6 for i in range(4)]
    x = jax.random.normal(jax.random.key(9), (4096, 32))
    frontier = jaxplan.plan(step, params, x, topology="cpu:8", offload=True, remat=False, progress=False)
    plan = next(p for p in frontier.points if p.offload and p.offload.regions)
    assert not plan.offload.inputs and plan.host_bytes % (4096 * 32 * 4 // 8) == 0
    for a, b in zip(plan.jit(donate_argnums=())(params, x), step(params, x), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
@pytest.mark.gpu_aot
def test_activations_of_compiled_programs_wait_on_the_host():
    """Data parallel, blocks recomputed: the bytes of two blocks' kept operands, float32, over 8 devices."""
    frontier = frontier_of("momentum", topology="h100:8", shapes={"width": 256, "batch": 2**18}, remat=True)
    lean = next(p for p in frontier.points if p.remat and p.outline.splits[0].text == "data 8")
    graph = dataclasses.replace(lean.graph, offload=Offload(regions=2, regions_of=len(lean.graph.waiting)))
    model = ModelBuilder(graph, lean.topology).build([(config,) for config in lean.configurations])
    choices = [REPEAT if set(reads) & set(lean.repeated) else KEEP for reads in model.edge_reads]
    plan = make_plan(Predictor(model), [0] * len(lean.configurations), choices, name="plan")
    tensors = graph.program.tensors
    waiting = sum(tensors[w.tensor].num_bytes // 8 for of in graph.waiting[:2] for w in of)
    audit = plan.audit()
    assert audit.compiled_host_bytes == plan.host_bytes == waiting > 0, audit.table()
    on_device = lean.audit()
    saved = on_device.compiled_memory_bytes - audit.compiled_memory_bytes
    assert saved == pytest.approx(lean.memory_bytes - plan.memory_bytes, abs=0.1 * waiting)


@pytest.mark.gpu_aot
def test_programs_compiled_for_gpus_have_the_bytes_on_the_host_that_were_planned():
    """Bytes on the device within 7 %, the moments' on the host exactly."""
    frontier = frontier_of(topology="h100:8", shapes={"width": 2048, "batch": 2048}, offload=True)
    for plan in {len(p.offload.inputs): p for p in frontier.points if p.offload}.values():
        audit = plan.audit()
        assert audit.compiled_host_bytes == plan.host_bytes == audit.predicted_host_bytes > 0
        assert audit.compiled_memory_bytes == pytest.approx(plan.memory_bytes, rel=0.07)
        assert audit.host_ok, audit.table()


@pytest.mark.gpu_aot
@pytest.mark.parametrize(("name", "slots"), sampled([("clipped", 2), ("adam", 2), ("momentum", 1)]))
def test_compiled_programs_have_the_state_of_three_updates_on_the_device(name, slots):
    """Six equal matrices: the state of three updates is saved at least; the prediction is no more than 10 % low."""
    width = 2048
    optimizer = OPTIMIZERS[name]

    def loss_of(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def step(params, slots, x):
        updates, slots = optimizer.update(jax.grad(loss_of)(params, x), slots, params)
        return optax.apply_updates(params, updates), slots

    params = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * 6
    args = params, jax.eval_shape(optimizer.init, params), jax.ShapeDtypeStruct((256, width), jnp.float32)
    frontier = jaxplan.plan(step, *args, topology="h100:1", offload=True, remat=False, progress=False)
    plan = next(p for p in frontier.points if p.offload and len(p.offload.inputs) == p.offload.of == 6 * slots)
    on_host, on_device = plan.audit(), frontier.fastest().audit()
    saved = on_device.compiled_memory_bytes - on_host.compiled_memory_bytes
    assert saved >= 0.95 * 3 * slots * 4 * width**2
    assert plan.memory_bytes >= 0.9 * on_host.compiled_memory_bytes


def test_updates_that_read_arrays_on_the_host_begin_with_the_last_gradient():
    """The backward pass makes the gradient of the last layer first; each update holds both moments of one matrix."""
    plan = plan_of("adam")
    program, values = plan.graph.program, plan.graph.values
    updates = hosted_updates(program, values, plan.offload)
    paths = [[program.in_paths[program.inputs.index(t)] for t in update.inputs] for update in updates]
    assert len(paths) == 6 and all(len(of) == 2 for of in paths)
    assert all({"mu" in of[0], "mu" in of[1]} == {True, False} for of in paths)
    layers = [int(of[0].split("mu")[1].split("[")[1].split("]")[0]) for of in paths]
    assert layers == sorted(layers, reverse=True)
    assert all(program.equations[values.producer[u.waits_for[1]]].phase == "backward" for u in updates)


@pytest.mark.gpu_aot
def test_an_audit_refuses_a_program_with_other_bytes_on_the_host():
    frontier = frontier_of(topology="h100:8", shapes={"width": 512, "batch": 512}, offload=True)
    audit = next(plan for plan in frontier.points if plan.offload).audit()
    assert audit.host_ok
    dropped = dataclasses.replace(audit, compiled_host_bytes=0)
    assert not dropped.ok and "differs" in dropped.table()


def on_host(tree):
    """The arrays of a tree that have dimensions, in the memory of the host."""
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding.with_memory_kind(HOST)) if x.ndim else x, tree)


@pytest.mark.parametrize("is_abstract", [False, True])
def test_state_that_is_given_on_the_host_stays_there(is_abstract):
    optimizer = OPTIMIZERS["adam"]
    params, slots, x = arguments(optimizer)
    given = params, on_host(slots), x
    if is_abstract:
        given = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), given)
    frontier = jaxplan.plan(step_of(optimizer), *given, topology="cpu:8", progress=False)
    hosted = {i for i, leaf in enumerate(jax.tree.leaves(given)) if leaf.sharding.memory_kind == HOST}
    assert len(hosted) == 12 and all(hosted <= set(plan.offload.inputs) for plan in frontier.points)
    results = frontier.fastest().jit()(params, on_host(slots), x)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(results[1]) if leaf.ndim} == {HOST}


@pytest.mark.parametrize("backend", sampled(["shard_map", "jit"]))
def test_updates_from_the_host_run_behind_the_loop_of_micro_batches(backend):
    """Products of the moments with a constant stand before that loop in the program."""
    optimizer = OPTIMIZERS["adam"]
    params, slots, x = arguments(optimizer)
    plan = jaxplan.plan(
        step_of(optimizer), params, on_host(slots), x, topology="cpu:8", microbatches=2, progress=False
    ).fastest()
    found = plan.jit(backend=backend)(jax.tree.map(jnp.copy, params), on_host(slots), x)
    expected = jax.jit(step_of(optimizer))(*arguments(optimizer))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        ours, theirs = (np.asarray(a, np.float32) for a in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * max(np.abs(theirs).max(), 1e-30))


@pytest.mark.parametrize("backend", sampled(["jit", "shard_map"]))
def test_an_update_between_two_backward_passes_waits_for_no_constant(backend):
    """The critic's loss is a mean less another: the gradient of its scores is a constant."""
    optimizer = OPTIMIZERS["adam"]

    def score(critic, x):
        return jnp.tanh(x @ critic["up"] + critic["bias"]) @ critic["down"]

    def step(critic, generator, critic_slots, slots, x, noise):
        def gap(critic):
            return score(critic, noise @ generator).mean() - score(critic, x).mean()

        updates, critic_slots = optimizer.update(jax.grad(gap)(critic), critic_slots, critic)
        critic = optax.apply_updates(critic, updates)
        gradient = jax.grad(lambda generator: -score(critic, noise @ generator).mean())(generator)
        updates, slots = optimizer.update(gradient, slots, generator)
        return critic, optax.apply_updates(generator, updates), critic_slots, slots

    shapes = {"up": (8, 16), "bias": (16,), "down": (16, 1), "generator": (4, 8), "x": (16, 8), "noise": (16, 4)}
    arrays = {name: jax.random.normal(jax.random.key(i), shape) / 4 for i, (name, shape) in enumerate(shapes.items())}
    x, noise, generator = (arrays.pop(name) for name in ("x", "noise", "generator"))
    args = arrays, generator, optimizer.init(arrays), optimizer.init(generator), x, noise
    frontier = jaxplan.plan(step, *args, topology="cpu:8", offload=True, progress=False)
    expected = jax.jit(step)(*args)
    for plan in [plan for plan in frontier.points if plan.offload]:
        found = plan.jit(backend=backend)(*jax.tree.map(jnp.copy, args))
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("backend", ["jit", "shard_map"])
def test_updates_in_loops_may_come_before_others(backend):
    """Muon orthogonalises the updates of matrices in a loop; vectors have another optimizer."""
    matrices_and_vectors = {"matrix": optax.contrib.muon(1e-2), "vector": optax.lion(1e-3)}
    optimizer = optax.partition(
        matrices_and_vectors, lambda p: jax.tree.map(lambda a: "matrix" if a.ndim > 1 else "vector", p)
    )

    def step(params, slots, x):
        def loss_of(params):
            h = x
            for layer in params:
                h = jnp.tanh(h @ layer["kernel"] + layer["bias"])
            return jnp.mean(h**2)

        updates, slots = optimizer.update(jax.grad(loss_of)(params), slots, params)
        return optax.apply_updates(params, updates), slots

    params = [{"kernel": jax.random.normal(jax.random.key(i), (16, 16)), "bias": jnp.ones(16)} for i in range(2)]
    args = params, optimizer.init(params), jax.random.normal(jax.random.key(9), (32, 16))
    frontier = jaxplan.plan(step, *args, topology="cpu:8", offload=True, progress=False)
    expected = jax.jit(step)(*args)
    plans = [plan for plan in frontier.points if plan.offload]
    for plan in (plans[0], plans[-1]):
        found = plan.jit(backend=backend)(*jax.tree.map(jnp.copy, args))
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_state_of_a_head_behind_a_loop_over_layers_may_live_on_the_host():
    """The update of the head depends on the forward loop alone, those of the layers on the loop behind its gradient."""
    optimizer = OPTIMIZERS["momentum"]

    def loss_of(params, x):
        x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, params["layers"])
        return jnp.mean(jnp.tanh(x @ params["head"]) ** 2)

    def step(params, slots, x):
        updates, slots = optimizer.update(jax.grad(loss_of)(params, x), slots, params)
        return optax.apply_updates(params, updates), slots

    params = {"layers": jnp.ones((3, 32, 32)) / 32, "head": jnp.ones((32, 64)) / 32}
    args = params, optimizer.init(params), jax.random.normal(jax.random.key(0), (64, 32))
    frontier = jaxplan.plan(step, *args, topology="cpu:8", offload=True, progress=False)
    plan = next(p for p in frontier.points if p.offload and not p.offload.parameters)
    expected = jax.jit(step)(*args)
    for ours, theirs in zip(jax.tree.leaves(plan.jit()(*args)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_arguments_that_no_plan_keeps_on_the_host_are_named():
    optimizer = OPTIMIZERS["adam"]
    params, slots, x = arguments(optimizer)
    step = step_of(optimizer)
    for given, named, options in [
        ((on_host(params), slots, x), r"\[0\]\[0\]\['down'\].* live in the memory of the host", {"donate_argnums": ()}),
        ((params, slots, on_host(x)), r"\[2\] live in the memory of the host", {}),
    ]:
        with pytest.raises(jaxplan.ArgumentError, match=named):
            jaxplan.plan(step, *given, topology="cpu:8", progress=False, **options)
        with pytest.raises(jaxplan.ArgumentError, match=named):
            jaxplan.auto(step, topology="cpu:8", **options)(*given)
    with pytest.raises(jaxplan.ArgumentError, match=r"\[1\]\[0\].mu.*and offload=False"):
        jaxplan.plan(step, params, on_host(slots), x, topology="cpu:8", offload=False)


def test_arrays_on_the_host_are_not_moved_by_a_plan_that_has_them_on_the_devices():
    plan = frontier_of(offload=False).fastest()
    params, slots, x = arguments(OPTIMIZERS["adam"])
    for call in (plan.jit(), lambda *args: plan.shard(args)):
        with pytest.raises(jaxplan.PlanMismatchError, match=r"the plan has them on the devices: \[1\]\[0\].mu"):
            call(params, on_host(slots), x)
