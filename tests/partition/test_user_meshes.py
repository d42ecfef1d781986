"""A planned step under meshes that a person has set, and on arrays that lie on them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxplan


def step(w: Any, x: jax.Array) -> Any:
    def loss(w: Any) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ w["up"]) @ w["down"] + jnp.arange(32)) ** 2)

    value, grads = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value


def arguments() -> Any:
    rng = np.random.default_rng(0)
    w = {"up": rng.normal(size=(32, 64)), "down": rng.normal(size=(64, 32))}
    return jax.tree.map(lambda x: x.astype(np.float32), (w, rng.normal(size=(16, 32))))


@pytest.fixture(scope="module", params=[AxisType.Explicit, AxisType.Auto], ids=["explicit", "auto"])
def mesh(request: pytest.FixtureRequest) -> Any:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(request.param,) * 2)


@pytest.fixture(scope="module")
def auto() -> Any:
    return jaxplan.auto(step, memory="1GiB", choose="leanest", donate_argnums=())


def placed(mesh: Any) -> Any:
    w, x = arguments()
    w = jax.tree.map(lambda v: jax.device_put(v, NamedSharding(mesh, P(None, "model"))), w)
    return w, jax.device_put(x, NamedSharding(mesh, P("data")))


@contextlib.contextmanager
def maybe_set(mesh: Any, is_set: bool) -> Iterator[None]:
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        yield


@pytest.mark.parametrize("is_set", [False, True], ids=["without-context", "under-set_mesh"])
def test_arrays_of_another_mesh_are_accepted_eagerly_and_inside_jit(mesh: Any, auto: Any, is_set: bool) -> None:
    expected = step(*arguments())
    with maybe_set(mesh, is_set):
        results = [auto(*placed(mesh)), jax.jit(lambda w, x: auto(w, x))(*placed(mesh))]
    for result in results:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), result, expected)


def test_result_inside_jit_is_typed_by_the_argument_that_it_succeeds(auto: Any) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)

    @jax.jit
    def two_steps(w: Any, x: jax.Array) -> Any:
        w, loss = auto(w, x)
        assert jax.typeof(w["up"]).sharding.spec == P(None, "model")
        return auto(w, x)[0], loss

    with jax.set_mesh(mesh):
        w, _ = two_steps(*placed(mesh))
    assert w["up"].sharding == NamedSharding(mesh, P(None, "model"))


def test_gradient_through_a_planned_function_under_explicit_axes() -> None:
    def loss(w: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ w["up"]) @ w["down"]) ** 2)

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    planned = jaxplan.auto(loss, memory="1GiB", choose="leanest", donate_argnums=())
    with jax.set_mesh(mesh):
        gradient = jax.jit(jax.grad(lambda w, x: planned(w, x)))(*placed(mesh))
    expected = jax.grad(loss)(*arguments())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient, expected)
