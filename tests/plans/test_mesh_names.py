"""Meshes with names of one's own over a plan, and shardings in the names of any mesh that groups the plan's axes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxplan


def _step(params: Any, x: jax.Array) -> Any:
    def loss_fn(params: Any) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params))


def _arguments() -> tuple[Any, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    up, down, x = (jax.random.normal(k, s) for k, s in zip(keys, [(16, 32), (32, 16), (64, 16)], strict=True))
    return {"up": up, "down": down}, x


@pytest.fixture(scope="module")
def plan() -> jaxplan.Plan:
    """Rows over 4 devices, features over 2: `data` and `tensor` of a person."""
    pins = {"params/up": P(None, "tensor"), "params/down": P("tensor", None), "x": P("data", None)}
    frontier = jaxplan.plan(_step, *_arguments(), topology="cpu:8", pins=pins, axes={"data": 4, "tensor": 2})
    return frontier.fastest()


def pieces(sharding: NamedSharding, shape: tuple[int, ...]) -> dict[int, Any]:
    return {d.id: index for d, index in sharding.devices_indices_map(shape).items()}


def test_specs_speak_of_the_names_of_a_mesh(plan: jaxplan.Plan) -> None:
    mesh = plan.mesh(names={"data": 4, "tensor": 2})
    assert dict(mesh.shape) == {"data": 4, "tensor": 2}
    in_specs, out_specs = plan.specs(mesh)
    assert in_specs == ({"up": P(None, "tensor"), "down": P("tensor", None)}, P("data", None))
    assert out_specs == in_specs[0]


@pytest.mark.parametrize(
    "names",
    [
        {"data": 4, "tensor": 2},
        {"data": ("cpu0", "cpu1"), "tensor": "cpu2"},
        {"tensor": "cpu2"},
        {"rows": ("cpu0", "cpu1")},
    ],
)
def test_every_device_has_the_piece_that_the_plan_gives_it(plan: jaxplan.Plan, names: Any) -> None:
    mesh = plan.mesh(names=names)
    arguments = _arguments()
    for own, other, leaf in zip(
        *map(jax.tree.leaves, (plan.in_shardings(), plan.in_shardings(mesh), arguments)), strict=True
    ):
        assert pieces(own, leaf.shape) == pieces(other, leaf.shape)
    expected = jax.jit(_step)(*arguments)
    run = jax.jit(_step, in_shardings=plan.in_shardings(mesh), out_shardings=plan.out_shardings(mesh))
    for found, wanted in zip(*map(jax.tree.leaves, (run(*arguments), expected)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_meshes_that_the_plan_did_not_make(plan: jaxplan.Plan) -> None:
    """Those of `jax.make_mesh`, meshes without devices, devices in another order, and with an axis of size 1."""
    expected = ({"up": P(None, "b"), "down": P("b", None)}, P("a", None))
    assert plan.specs(jax.make_mesh((4, 2), ("a", "b")))[0] == expected
    assert plan.specs(AbstractMesh((4, 2), ("a", "b")))[0] == expected
    assert plan.specs(AbstractMesh((4, 1, 2), ("a", "c", "b")))[0] == expected
    transposed = Mesh(np.array(jax.devices()[:8]).reshape(4, 2).T, ("b", "a"))
    assert plan.specs(transposed)[0] == expected
    backwards = plan.mesh(jax.devices()[7::-1], names={"a": 4, "b": 2})
    assert plan.specs(backwards)[0] == expected


def test_axes_in_an_order_of_their_own(plan: jaxplan.Plan) -> None:
    mesh = plan.mesh(names={"b": ("cpu2", "cpu1"), "a": "cpu0"})
    assert list(mesh.shape.items()) == [("a", 2), ("b", 4)]
    assert [d.id for d in mesh.devices.flat] == [0, 2, 1, 3, 4, 6, 5, 7]
    whole = jaxplan.plan(lambda x: x * 2, _arguments()[1], topology="cpu:8", pins={"x": P(("cpu2", "cpu1"), "cpu0")})
    assert whole.fastest().specs(mesh)[0] == (P("b", "a"),)


def test_a_mesh_that_is_too_coarse_is_refused(plan: jaxplan.Plan) -> None:
    with pytest.raises(jaxplan.PlanMismatchError, match=r"(?s)splits it inside of the mesh axis 'all', cpu0 cpu1 cpu2"):
        plan.specs(plan.mesh(names={"all": 8}))
    with pytest.raises(jaxplan.PlanMismatchError, match="does not group the axes of cpu:8"):
        plan.specs(AbstractMesh((4,), ("a",)))


def test_a_mesh_in_another_order_is_refused_with_the_order_that_fits() -> None:
    """The fix that the error names is a mesh over which the plan's pieces have a spec."""
    pins = {"x": P(("cpu2", "cpu1", "cpu0"), None)}
    plan = jaxplan.plan(lambda x: x * 2, _arguments()[1], topology="cpu:8", pins=pins).fastest()
    fix = r"(?s)in another order, cpu2 cpu1 cpu0.*plan.mesh\(names=\{'all': \('cpu2', 'cpu1', 'cpu0'\)\}\)"
    with pytest.raises(jaxplan.PlanMismatchError, match=fix):
        plan.specs(plan.mesh(names={"all": 8}))
    mesh = plan.mesh(names={"all": ("cpu2", "cpu1", "cpu0")})
    assert plan.specs(mesh)[0] == (P("all", None),)
    (own,), (other,) = plan.in_shardings(), plan.in_shardings(mesh)
    assert pieces(own, (64, 16)) == pieces(other, (64, 16))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"data": 3}, "do not divide the devices"),
        ({"data": "gpu0"}, "'gpu0', which is not declared"),
        ({"a": "cpu0", "b": ("cpu0", "cpu1")}, "two names to one axis"),
        ({"cpu2": ("cpu0", "cpu1")}, "a name is that of an axis"),
        ({"a": 2, "b": "cpu1"}, "expected names and sizes"),
        ("data", "expected names and sizes"),
    ],
)
def test_bad_names_are_named(plan: jaxplan.Plan, names: Any, message: str) -> None:
    with pytest.raises(jaxplan.ArgumentError, match=message):
        plan.mesh(names=names)


def test_groups_of_axes_in_pins() -> None:
    """Names may stand for axes of the machine."""
    axes = {"data": "node", "tensor": ("gpu1", "gpu2")}
    plan = jaxplan.plan(
        _step, *_arguments(), topology="h100:2x8", axes=axes, pins={"up": P(None, "tensor"), "x": P("data")}
    ).fastest()
    assert plan.in_specs[0]["up"] == P(None, ("gpu1", "gpu2")) and plan.in_specs[1] == P("node", None)
