"""Settings, defaults, keywords and donation of a step are those of `jax.jit`, its own `jit` included."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxplan
from jaxplan import ArgumentError, PlanMismatchError

OPTIONS: dict[str, Any] = {"topology": "cpu:8", "memory": "1GiB", "progress": False}
X = jax.random.normal(jax.random.key(1), (32, 16))


def make_params() -> dict[str, Any]:
    return {"w": jax.random.normal(jax.random.key(0), (16, 16))}


def step(params: Any, batch: Any, train: bool = True, *, scale: Any = 1.0) -> tuple[Any, Any]:
    loss = jnp.mean((batch @ params["w"]) ** 2) * (2 if train else 1) * scale
    return {"w": params["w"] - 0.1 * loss}, loss


def power_first(power: int, params: Any, batch: Any) -> tuple[Any, Any]:
    new, loss = step(params, batch)
    return new, loss**power


FORMS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "option by name": (step, {"static_argnames": "train"}),
    "option by number": (step, {"static_argnums": 2}),
    "jitted by name": (jax.jit(step, static_argnames=("train",)), {}),
    "jitted by number": (partial(jax.jit, static_argnums=2)(step), {}),
    "jitted and asked for": (jax.jit(step, static_argnums=(2,)), {"static_argnames": ["train"]}),
    "partial of a jitted step": (
        partial(
            jax.jit(lambda a, *args, **kw: step(*args, **kw), static_argnums=(0, 3), static_argnames="train"),
            "a",
        ),
        {},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_settings_by_position_by_keyword_and_left_at_their_default(form: str) -> None:
    """Each value is planned once, however it is given."""
    function, options = FORMS[form]
    run = jaxplan.auto(function, **options, **OPTIONS)
    calls: list[tuple[bool, Callable[[], Any]]] = [
        (True, lambda: run(make_params(), X)),
        (False, lambda: run(make_params(), X, False)),
        (False, lambda: run(make_params(), X, train=False)),
        (True, lambda: run(make_params(), X, True)),
    ]
    for train, call in calls:
        np.testing.assert_allclose(call()[1], step(make_params(), X, train)[1], rtol=1e-5)
    assert run.counts.plans == 2


@pytest.mark.parametrize("train", [True, False])
def test_a_plan_is_of_the_settings_that_it_was_made_for(train: bool) -> None:
    function = jax.jit(step, static_argnames="train")
    plan = jaxplan.plan(function, make_params(), X, train=train, **OPTIONS).fastest()
    run = plan.jit()
    wanted = step(make_params(), X, train)[1]
    for call in (
        lambda: run(make_params(), X, train),
        lambda: run(make_params(), X, train=train),
        lambda: run(batch=X, params=make_params(), train=train),
    ):
        np.testing.assert_allclose(call()[1], wanted, rtol=1e-5)
    assert run.num_compilations == 1
    with pytest.raises(PlanMismatchError, match=rf"train={not train}, and {train} in the plan"):
        run(make_params(), X, not train)
    if train:
        np.testing.assert_allclose(run(make_params(), X)[1], wanted, rtol=1e-5)


def test_arguments_by_keyword_take_the_places_that_they_were_planned_in() -> None:
    plan = jaxplan.plan(
        step, batch=X, params=make_params(), static_argnames="train", scale=2.0, **OPTIONS
    ).fastest()
    run = plan.jit()
    wanted = step(make_params(), X)[1]
    np.testing.assert_allclose(run(make_params(), X, scale=2.0)[1], 2 * wanted, rtol=1e-5)
    np.testing.assert_allclose(run(make_params(), batch=X, scale=np.float32(3))[1], 3 * wanted, rtol=1e-5)
    np.testing.assert_allclose(run(make_params(), X)[1], wanted, rtol=1e-5)  # its default, as an array
    with pytest.raises(PlanMismatchError, match=r"only in the call: \['train'\]"):
        jaxplan.plan(step, make_params(), X, **OPTIONS).fastest().jit()(make_params(), X, 2.0)


def test_settings_stay_where_they_are_among_placed_arguments() -> None:
    function = jax.jit(power_first, static_argnums=0)
    plan = jaxplan.plan(function, 2, make_params(), X, **OPTIONS).fastest()
    placed = plan.shard((2, make_params(), X))
    assert placed[0] == 2
    wanted = power_first(2, make_params(), X)[1]
    np.testing.assert_allclose(plan.jit()(*placed)[1], wanted, rtol=1e-4)
    np.testing.assert_allclose(partial(plan.jit(), 2)(make_params(), X)[1], wanted, rtol=1e-4)


@pytest.mark.parametrize("planned", [jaxplan.min_devices, jaxplan.scaling])
def test_parts_of_a_machine(planned: Callable[..., Any]) -> None:
    machine = {"topology": "cpu:4", "progress": False}
    for function, options in ((step, {"static_argnames": "train"}), (jax.jit(step, static_argnums=2), {})):
        assert planned(function, make_params(), X, train=False, **options, **machine).points


def test_methods_and_objects() -> None:
    class Trainer:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @partial(jax.jit, static_argnums=0)
        def method(self, params: Any, batch: Any) -> tuple[Any, Any]:
            new, loss = step(params, batch)
            return new, loss * self.factor

        def __call__(self, params: Any, batch: Any, train: bool = False) -> tuple[Any, Any]:
            new, loss = step(params, batch, train)
            return new, loss * self.factor

    wanted = step(make_params(), X)[1]
    run = jaxplan.auto(Trainer(3.0).method, **OPTIONS)
    np.testing.assert_allclose(run(make_params(), X)[1], 3 * wanted, rtol=1e-5)
    run = jaxplan.auto(Trainer(3.0), static_argnums=2, **OPTIONS)
    np.testing.assert_allclose(run(make_params(), X, True)[1], 3 * wanted, rtol=1e-5)
    np.testing.assert_allclose(run(make_params(), X)[1], 1.5 * wanted, rtol=1e-5)


def test_a_step_that_is_jitted_by_nnx() -> None:
    def train(model: nnx.Linear, x: Any, square: bool = True) -> Any:
        def loss_of(m: nnx.Linear) -> Any:
            return jnp.mean((m(x) - 1) ** (2 if square else 4))

        loss, grads = nnx.value_and_grad(loss_of)(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), grads))
        return loss

    def losses(run: Callable[..., Any], **settings: Any) -> list[float]:
        model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
        return [float(run(model, X, **settings)) for _ in range(3)]

    run = jaxplan.auto(nnx.jit(train, static_argnames="square", donate_argnums=0), **OPTIONS)
    for settings in ({}, {"square": False}, {"square": True}):
        np.testing.assert_allclose(losses(run, **settings), losses(train, **settings), rtol=1e-4)
    assert run.counts.plans == 2


# donation


def donated(function: Callable[..., Any], *args: Any, **options: Any) -> list[bool]:
    """Which leaves of parameters and batch are donated, those of keyword arguments in their alphabetical order."""
    plan = jaxplan.plan(function, *args, **options, **OPTIONS).fastest()
    return list(plan.require_program().program.donated)


def test_donation_of_a_jitted_step_is_followed() -> None:
    args = (make_params(), X)
    assert donated(step, *args, static_argnums=2) == [True, False]  # by default, arguments that come back updated
    assert donated(jax.jit(step, static_argnums=2), *args) == [True, False]
    assert donated(jax.jit(step, static_argnums=2, donate_argnums=1), *args) == [False, True]
    assert donated(jax.jit(step, static_argnums=2, donate_argnames=("params", "batch")), *args) == [
        True,
        True,
    ]
    assert donated(jax.jit(power_first, static_argnums=0, donate_argnums=2), 2, *args) == [False, True]
    by_keyword = partial(donated, params=args[0], batch=args[1])
    assert by_keyword(jax.jit(step, static_argnums=2, donate_argnums=1)) == [True, False]
    assert by_keyword(jax.jit(step, static_argnums=2), donate_argnums=1) == [True, False]
    asked_for = partial(donated, jax.jit(step, static_argnums=2, donate_argnums=1), *args)
    assert asked_for(donate_argnums=()) == [False, False]
    assert asked_for(donate_argnums=0) == [True, False]


def test_arrays_that_a_jitted_step_donates_are_consumed_and_no_others() -> None:
    function = jax.jit(step, static_argnums=2, donate_argnums=0)
    plan = jaxplan.plan(function, make_params(), X, **OPTIONS).fastest()
    params, x = plan.shard((make_params(), X))
    jax.block_until_ready(plan.jit()(params, x))
    assert params["w"].is_deleted()
    assert not x.is_deleted()


def test_a_deleted_array_is_named_inside_and_outside_of_jit() -> None:
    run = jaxplan.auto(step, static_argnums=2, donate_argnums=0, **OPTIONS)
    params, _ = run(make_params(), X)
    run(params, X)
    calls: list[Callable[[], Any]] = [
        lambda: run(params, X),
        lambda: jax.jit(lambda x: run(params, x))(X),
        lambda: jax.eval_shape(
            lambda x: jax.lax.scan(lambda c, _: (c, run(params, c)[1]), x, None, length=2), X
        ),
        lambda: jaxplan.auto(step, static_argnums=2, **OPTIONS)(params, X),
        lambda: run.plan.shard((params, X)),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=r"argument \[0\]\['w'\] was deleted"):
            call()
    with pytest.raises(ArgumentError, match=r"closes over an array float32\[16,16\] that was deleted"):
        jaxplan.plan(lambda x: jnp.mean(x @ params["w"]), X, **OPTIONS)


# errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static_argnames": "trian"}, "static_argnames names 'trian'(.|\n)*params, batch, train, scale"),
        ({"static_argnames": 3}, "static_argnames=3 is not understood"),
        ({"static_argnums": 3}, "static_argnums names argument 3, and the step has 3 positional"),
    ],
)
def test_settings_that_a_step_does_not_have(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        jaxplan.auto(step, **options, **OPTIONS)
    with pytest.raises(ArgumentError, match=message):
        jaxplan.plan(step, make_params(), X, **options, **OPTIONS)


def test_settings_are_hashable() -> None:
    run = jaxplan.auto(jax.jit(step, static_argnames="train"), **OPTIONS)
    with pytest.raises(
        ArgumentError, match=r"static argument 'train' is \[1\], of type list, which is not hashable"
    ):
        run(make_params(), X, train=[1])


# weak types


@pytest.mark.parametrize(
    ("planned", "given"), [*itertools.permutations([2.0, np.float32(2), jnp.float32(2)], 2)]
)
def test_numbers_of_one_dtype_serve_where_no_result_depends_on_how_weak_they_are(
    planned: Any, given: Any
) -> None:
    run = jaxplan.plan(step, make_params(), X, scale=planned, static_argnums=2, **OPTIONS).fastest().jit()
    np.testing.assert_allclose(
        run(make_params(), X, scale=given)[1], 2 * step(make_params(), X)[1], rtol=1e-5
    )


def test_a_strong_number_among_narrower_ones_is_another_program() -> None:
    def scaled(x: Any, scale: Any) -> Any:
        return (x @ x) * scale

    x = jnp.ones((16, 16), jnp.bfloat16)
    run = jaxplan.plan(scaled, x, 2.0, **OPTIONS).fastest().jit()
    assert run(x, 2.0).dtype == functools.partial(jax.jit(scaled), x)(2.0).dtype == jnp.bfloat16
    with pytest.raises(PlanMismatchError, match=r"\[1\] is not weakly typed"):
        run(x, jnp.float32(2))
