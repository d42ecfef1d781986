"""A planned step in ten situations: under meshes of either kind, eagerly, inside jit, grad, vmap and scan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxplan


def loss(w: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ w["up"]) @ w["down"]) ** 2)


def step(w: Any, x: jax.Array) -> Any:
    value, gradients = jax.value_and_grad(loss)(w, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradients), value


def arguments() -> Any:
    rng = np.random.default_rng(3)
    w = {"up": rng.normal(size=(32, 64)) / 6, "down": rng.normal(size=(64, 32)) / 8}
    return jax.tree.map(lambda a: a.astype(np.float32), (w, rng.normal(size=(16, 32))))


def explicit(*names: str) -> Any:
    sizes = {1: (8,), 2: (2, 4)}[len(names)]
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Explicit,) * len(names))


def automatic(*names: str) -> Any:
    return Mesh(np.array(jax.devices()[:8]).reshape(4, 2), names)


def placed(mesh: Any, spec: P) -> Any:
    w, x = arguments()
    return jax.device_put(w, NamedSharding(mesh, P())), jax.device_put(x, NamedSharding(mesh, spec))


@pytest.fixture(scope="module")
def plan() -> jaxplan.Plan:
    axes = {"data": 4, "tensor": 2}
    pins = {"w/up": P(None, "tensor"), "w/down": P("tensor", None), "x": P("data", None)}
    return jaxplan.plan(step, *arguments(), topology="cpu:8", axes=axes, pins=pins, donate_argnums=()).fastest()


def under_another_explicit_mesh(plan: jaxplan.Plan) -> Any:
    with jax.set_mesh(explicit("x", "y")):
        return plan.jit()(*arguments())


def under_an_auto_mesh_of_the_plans_own_names(plan: jaxplan.Plan) -> Any:
    with jax.set_mesh(plan.mesh()):
        return plan.jit()(*arguments())


def on_arrays_of_an_explicit_mesh_of_one_axis(plan: jaxplan.Plan) -> Any:
    mesh = explicit("batch")
    with jax.set_mesh(mesh):
        return plan.jit()(*placed(mesh, P("batch")))


def inside_jit_under_an_auto_mesh(plan: jaxplan.Plan) -> Any:
    mesh = automatic("a", "b")
    with jax.set_mesh(mesh):
        return jax.jit(plan.jit())(*placed(mesh, P("a", "b")))


def inside_jit_with_shardings_of_a_named_mesh(plan: jaxplan.Plan) -> Any:
    mesh = plan.mesh(names={"data": 4, "tensor": 2})
    run = jax.jit(plan.jit(), in_shardings=plan.in_shardings(mesh), out_shardings=plan.out_shardings(mesh))
    result = run(*arguments())
    assert result[0]["up"].sharding.spec == P(None, "tensor")
    return result


def inside_jit_under_an_explicit_mesh_with_out_shardings(plan: jaxplan.Plan) -> Any:
    mesh = explicit("x", "y")
    wanted = NamedSharding(mesh, P("y", None))
    with jax.set_mesh(mesh):
        result = jax.jit(plan.jit(), out_shardings=({"up": wanted, "down": wanted}, None))(*placed(mesh, P("x")))
    assert result[0]["up"].sharding == wanted
    return result


def inside_a_scan_of_one_step(plan: jaxplan.Plan) -> Any:
    run = plan.jit()
    w, x = arguments()
    w, values = jax.jit(lambda w, xs: jax.lax.scan(run, w, xs))(w, x[None])
    return w, values[0]


def beside_other_work_inside_jit(plan: jaxplan.Plan) -> Any:
    run = plan.jit()

    @jax.jit
    def twice(w: Any, x: jax.Array) -> Any:
        w, value = run(jax.tree.map(lambda p: p * 1.0, w), x + 0.0)
        return jax.tree.map(lambda p: p / 1.0, w), value * 1.0

    with jax.set_mesh(automatic("a", "b")):
        return twice(*arguments())


def on_arrays_of_a_transposed_mesh(plan: jaxplan.Plan) -> Any:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2).T, ("b", "a"))
    return plan.jit()(*placed(mesh, P("a", "b")))


def manual_program_under_an_explicit_mesh(plan: jaxplan.Plan) -> Any:
    mesh = explicit("x", "y")
    with jax.set_mesh(mesh):
        return plan.jit(backend="shard_map")(*placed(mesh, P("y")))


SITUATIONS: list[Callable[[jaxplan.Plan], Any]] = [
    under_another_explicit_mesh,
    under_an_auto_mesh_of_the_plans_own_names,
    on_arrays_of_an_explicit_mesh_of_one_axis,
    inside_jit_under_an_auto_mesh,
    inside_jit_with_shardings_of_a_named_mesh,
    inside_jit_under_an_explicit_mesh_with_out_shardings,
    inside_a_scan_of_one_step,
    beside_other_work_inside_jit,
    on_arrays_of_a_transposed_mesh,
    manual_program_under_an_explicit_mesh,
]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda f: f.__name__)
def test_results_are_those_of_one_device(plan: jaxplan.Plan, situation: Callable[[jaxplan.Plan], Any]) -> None:
    for found, expected in zip(*map(jax.tree.leaves, (situation(plan), step(*arguments()))), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [functools.partial(explicit, "x", "y"), functools.partial(automatic, "x", "y")])
def test_gradients_through_a_planned_loss(make: Callable[[], Any]) -> None:
    planned = jaxplan.plan(loss, *arguments(), topology="cpu:8", donate_argnums=()).leanest().jit()
    mesh = make()
    with jax.set_mesh(mesh):
        gradients = jax.jit(jax.grad(lambda w, x: 2 * planned(w, x)))(*placed(mesh, P("y")))
    expected = jax.tree.map(lambda g: 2 * g, jax.grad(loss)(*arguments()))
    for found, wanted in zip(*map(jax.tree.leaves, (gradients, expected)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
