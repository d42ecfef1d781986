"""Plans that recompute layers of a loop."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.ir import LoopRemat, analyse, trace
from jaxplan.ir.microbatch import NotSeparableError
from jaxplan.search._loops import plan_with_loops

LAYERS, BATCH, WIDTH = 6, 64, 16
POLICIES = ("contractions", "all")


def train_step(weights, x):
    def layer(x, w):
        return x + jnp.tanh(jax.nn.gelu(x @ w["up"]) @ w["down"]), None

    def loss(weights):
        y, _ = jax.lax.scan(layer, x, weights)
        return jnp.mean(y**2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def arguments():
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"up": (LAYERS, WIDTH, 4 * WIDTH), "down": (LAYERS, 4 * WIDTH, WIDTH)}
    weights = {name: jax.random.normal(key, shape) / 8 for key, (name, shape) in zip(keys, shapes.items())}
    return weights, jax.random.normal(keys[2], (BATCH, WIDTH))


@pytest.fixture(scope="module")
def frontier():
    return jaxplan.plan(train_step, *arguments(), topology="cpu:8", remat=True, microbatches=2, progress=False)


def test_the_leanest_plan_recomputes_layers_and_equals_one_device(frontier, tmp_path):
    """In two slices of the batch, and read from a file."""
    plan = frontier.leanest()
    assert plan.recomputed_loops is not None
    assert "recomputes layers of loops" in plan.summary
    plan.save(tmp_path / "plan.json")
    again = jaxplan.load(tmp_path / "plan.json", train_step, *arguments())
    expected = jax.tree.leaves(jax.jit(train_step)(*arguments()))
    for run in (plan.jit(), again.jit()):
        for a, b in zip(jax.tree.leaves(run(*arguments())), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.max(jnp.abs(b))))


def test_it_needs_less_memory_than_any_plan_of_the_step_as_it_is(frontier):
    as_it_is = jaxplan.plan(train_step, *arguments(), topology="cpu:8", remat=False, microbatches=2, progress=False)
    assert all(plan.recomputed_loops is None for plan in as_it_is.points)
    assert frontier.leanest().memory_bytes < as_it_is.leanest().memory_bytes


@pytest.mark.slow
def test_it_is_looked_for_where_nothing_fits_otherwise(frontier):
    as_it_is = jaxplan.plan(train_step, *arguments(), topology="cpu:8", remat=False, microbatches=2, progress=False)
    limit = (frontier.leanest().memory_bytes + as_it_is.leanest().memory_bytes) // 2
    alone = {"microbatches": 2, "stages": False, "offload": False}
    options = {"topology": "cpu:8", "memory": limit, "progress": False, **alone}
    found = jaxplan.plan(train_step, *arguments(), **options)
    assert all(plan.recomputed_loops is not None for plan in found.points)
    with pytest.raises(jaxplan.InfeasibleError):
        jaxplan.plan(train_step, *arguments(), remat=False, **options)


def test_as_many_layers_are_recomputed_as_the_limit_asks_for():
    """With a large batch stacks are most of the memory. Midway between the leanest plans of both ways, some layers keep
    contractions and others nothing, and the plans are between both in time."""
    leaves = arguments()[0], jax.random.normal(jax.random.key(1), (256 * BATCH, WIDTH))
    options = {"topology": "cpu:8", "stages": False, "microbatches": False, "progress": False}
    every = jaxplan.plan(train_step, *leaves, remat=True, **options).points
    leanest = {policy: min(plan.memory_bytes for plan in every if _recomputes(plan) == policy) for policy in POLICIES}
    limit = sum(leanest.values()) // 2
    found = jaxplan.plan(train_step, *leaves, memory=limit, **options)
    some = [plan for plan in found.points if plan.recomputed_loops.share < 1]
    assert some and all(plan.recomputed_loops.rest == "contractions" for plan in some)
    assert all(leanest["all"] < plan.memory_bytes <= limit for plan in some)
    assert "of layers of loops, the others but contractions" in some[0].summary
    all_of_them = min(plan.time_seconds for plan in found.points if plan.recomputed_loops.share == 1)
    assert min(plan.time_seconds for plan in some) < all_of_them
    expected = jax.tree.leaves(jax.jit(train_step)(*leaves))
    for a, b in zip(jax.tree.leaves(some[0].jit()(*leaves)), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.max(jnp.abs(b))))


def test_layers_inside_of_an_accumulation_are_recomputed():
    """The step adds up gradients of four slices of its batch in a loop of its own."""
    weights, _ = arguments()
    slices = jax.random.normal(jax.random.key(1), (4, 16 * BATCH, WIDTH))

    def accumulating(weights, slices):
        def add(total, x):
            changed, value = train_step(weights, x)
            return jax.tree.map(lambda t, new, w: t + new - w, total, changed, weights), value

        total, values = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, weights), slices)
        return jax.tree.map(lambda w, t: w + t / 4, weights, total), jnp.mean(values)

    options = {"topology": "cpu:8", "stages": False, "microbatches": False, "progress": False}
    plan = jaxplan.plan(accumulating, weights, slices, remat=True, **options).leanest()
    as_it_is = jaxplan.plan(accumulating, weights, slices, remat=False, **options).leanest()
    assert plan.recomputed_loops is not None
    assert plan.memory_bytes < 0.6 * as_it_is.memory_bytes
    expected = jax.tree.leaves(jax.jit(accumulating)(weights, slices))
    for a, b in zip(jax.tree.leaves(plan.jit()(weights, slices)), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.max(jnp.abs(b))))


def _recomputes(plan):
    loops = plan.recomputed_loops
    return loops.policy if loops and loops.share == 1 else None


@pytest.mark.parametrize("chosen", [3, {"policy": "most"}, {"policy": "all", "share": 0}])
def test_a_file_with_other_layers_is_refused(frontier, chosen, tmp_path):
    data = frontier.leanest().to_json() | {"recomputed_loops": chosen}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(jaxplan.PlanFileError, match=r"share of the layers|recomputed_loops"):
        jaxplan.load(tmp_path / "plan.json")


def test_a_file_that_names_the_policy_alone_means_all_layers(frontier, tmp_path):
    plan = frontier.leanest()
    data = plan.to_json() | {"recomputed_loops": plan.recomputed_loops.policy}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    assert jaxplan.load(tmp_path / "plan.json").recomputed_loops == LoopRemat(policy=plan.recomputed_loops.policy)


def test_the_step_is_traced_once_where_a_plan_fits():
    traces = []

    def counted(weights, x):
        traces.append(None)
        return train_step(weights, x)

    found = jaxplan.plan(counted, *arguments(), topology="cpu:8", progress=False)
    assert found.fastest().recomputed_loops is None
    assert len(traces) == 1


@pytest.mark.slow
def test_a_kernel_that_all_layers_share_is_recomputed_in_slices_too():
    """Its gradient is added up from layer to layer, and where the loop is cut from loop to loop."""

    def loss(weights, x):
        def layer(x, w):
            return x + jnp.tanh(jax.nn.gelu(x @ w["up"]) @ w["down"] @ weights["shared"]), None

        return jnp.mean(jax.lax.scan(layer, x, weights["layers"])[0] ** 2)

    def step(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    layers, x = arguments()
    args = {"layers": layers, "shared": jnp.eye(WIDTH)}, x
    found = jaxplan.plan(step, *args, topology="cpu:8", remat=True, microbatches=2, progress=False)
    recomputed = [plan for plan in found.points if plan.recomputed_loops]
    assert recomputed
    expected = jax.tree.leaves(jax.jit(step)(*args))
    for plan in recomputed:
        for a, b in zip(jax.tree.leaves(plan.jit(donate_argnums=())(*args)), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.max(jnp.abs(b))))


def test_a_form_that_is_not_separable_leaves_the_plans_of_the_step_as_it_is(frontier):
    planned = []

    def plan_graph(graph):
        planned.append(graph.program.recomputed_loops)
        if graph.program.recomputed_loops is not None:
            raise NotSeparableError("a sum over the batch is read before it is complete")
        return frontier

    found = plan_with_loops(analyse(trace(train_step, arguments())), True, plan_graph)
    assert found.points == frontier.points
    assert planned[0] is None and len(planned) > 1


def test_a_step_that_is_not_separable_itself_is_refused():
    def plan_graph(graph):
        raise NotSeparableError("a sum over the batch is read before it is complete")

    with pytest.raises(NotSeparableError, match="before it is complete"):
        plan_with_loops(analyse(trace(train_step, arguments())), True, plan_graph)
