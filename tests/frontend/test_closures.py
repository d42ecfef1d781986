"""Trees that hold functions: a closure that was made anew is the same step where its program is, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from flax.training.train_state import TrainState

import jaxplan
from jaxplan import ArgumentError, PlanMismatchError

X = jax.random.normal(jax.random.key(5), (32, 16))
OPTIONS: dict[str, Any] = {"topology": "cpu:8", "memory": "1GiB", "progress": False}


def make_state(rate: float = 1e-2, bias: Any = 0.5, optimizer: Callable[..., Any] = optax.adam) -> TrainState:
    """Functions defined in here are other objects every time."""
    return TrainState.create(
        apply_fn=lambda p, x: jnp.tanh(x @ p["w"]) + bias,
        params={"w": jax.random.normal(jax.random.key(2), (16, 16)) / 4},
        tx=optimizer(rate),
    )


def train_step(state: TrainState, x: Any) -> tuple[TrainState, Any]:
    def loss_of(params: Any) -> Any:
        return jnp.mean((state.apply_fn(params, x) - 1) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def trained(run: Callable[..., Any], state: TrainState, steps: int = 3) -> Any:
    for _ in range(steps):
        state, _ = run(state, X)
    return np.asarray(state.params["w"])


@pytest.fixture(scope="module")
def plan() -> jaxplan.Plan:
    return jaxplan.plan(train_step, jax.eval_shape(make_state), X, **OPTIONS).fastest()


def test_a_state_that_was_made_again(plan: jaxplan.Plan, tmp_path: Path) -> None:
    wanted = trained(jax.jit(train_step), make_state())
    plan.save(tmp_path / "plan.json")
    loaded = jaxplan.load(tmp_path / "plan.json", train_step, jax.eval_shape(make_state), X)
    assert isinstance(loaded, jaxplan.Plan)
    for run in (plan.jit(), loaded.jit()):
        for _ in range(2):
            np.testing.assert_allclose(trained(run, make_state()), wanted, rtol=1e-5)
        assert run.num_compilations == 1
    np.testing.assert_allclose(trained(plan.jit(), plan.shard((make_state(), X))[0]), wanted, rtol=1e-5)


def test_the_state_returned_holds_the_functions_of_the_state_given(plan: jaxplan.Plan) -> None:
    run = plan.jit()
    for state in (make_state(), make_state()):
        new, _ = run(state, X)
        assert new.tx is state.tx
        assert new.apply_fn is state.apply_fn


def test_another_learning_rate_is_another_step(plan: jaxplan.Plan) -> None:
    run = plan.jit()
    with pytest.raises(PlanMismatchError) as caught:
        run(make_state(rate=1e-3), X)
    text = str(caught.value)
    assert re.search(r"literal -0\.001 in place of -0\.01 as an operand of mul", text)
    assert f"{__file__}:" in text
    assert "[0].tx" in text and "[0].apply_fn" in text
    with pytest.raises(PlanMismatchError, match=r"literal -0\.001"):
        plan.shard((make_state(rate=1e-3), X))
    with pytest.raises(PlanMismatchError):
        run(make_state(optimizer=optax.sgd), X)
    np.testing.assert_allclose(
        trained(run, make_state()), trained(jax.jit(train_step), make_state()), rtol=1e-5
    )


def test_a_decorated_step_trains_each_state_with_its_own_numbers() -> None:
    run = jaxplan.auto(train_step, **OPTIONS)
    for rate in (1e-2, 1e-1, 1e-2, 1e-1):
        wanted = trained(jax.jit(train_step), make_state(rate=rate))
        np.testing.assert_allclose(trained(run, make_state(rate=rate)), wanted, rtol=1e-5, atol=1e-7)
    assert (run.counts.plans, run.counts.compiles) == (2, 2)


def test_closed_over_arrays_count_by_value(plan: jaxplan.Plan) -> None:
    del plan
    biases = [jnp.arange(16.0), jnp.arange(16.0), np.arange(16.0, dtype=np.float32), jnp.arange(16.0) + 1]
    run = jaxplan.auto(train_step, **OPTIONS)
    for bias in biases:
        wanted = trained(jax.jit(train_step), make_state(bias=bias))
        np.testing.assert_allclose(trained(run, make_state(bias=bias)), wanted, rtol=1e-5)
    assert run.counts.plans == 2
    first = run.plan.jit()
    first(make_state(bias=biases[3]), X)
    with pytest.raises(PlanMismatchError, match=r"closed-over array float32\[16\]"):
        first(make_state(bias=biases[0]), X)


def test_a_kind_of_call_is_traced_once() -> None:
    count = 0

    def step(state: TrainState, x: Any) -> tuple[TrainState, Any]:
        nonlocal count
        count += 1
        return train_step(state, x)

    run = jaxplan.plan(step, make_state(), X, **OPTIONS).fastest().jit()
    states = [make_state(), make_state()]
    count = 0
    for _ in range(3):
        states = [run(state, X)[0] for state in states]
    assert count == 2


def test_a_callback_that_writes_elsewhere_is_another_step() -> None:
    """A list in a closure is changed by it, so that an equal list is not the same one."""

    @struct.dataclass
    class Logged:
        w: Any
        log: Callable[..., None] = struct.field(pytree_node=False)

    def make() -> tuple[Logged, list[float]]:
        written: list[float] = []
        return Logged(w=jnp.ones((16, 16)), log=lambda loss: written.append(float(loss))), written

    def step(state: Logged, x: Any) -> tuple[Logged, Any]:
        loss = jnp.mean(x @ state.w)
        jax.debug.callback(state.log, loss)
        return state.replace(w=state.w - 0.1 * loss), loss

    run = jaxplan.auto(step, **OPTIONS)
    for _ in range(2):
        state, written = make()
        _, loss = run(state, X)
        jax.effects_barrier()
        assert written == [float(loss)]


# leaves that are no arrays


def leafy_step(params: Any, x: Any) -> tuple[Any, Any]:
    def loss_of(weights: Any) -> Any:
        return jnp.mean((params["act"](x @ weights) * (2 if params["mode"] == "double" else 1) - 1) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(params["w"])
    return {**params, "w": params["w"] - 0.1 * gradient}, loss


def make_leafy(mode: str = "double", act: Callable[..., Any] = jnp.tanh) -> dict[str, Any]:
    return {"w": jnp.ones((16, 16)) / 8, "act": act, "mode": mode, "bias": None}


def test_functions_strings_and_none_among_the_leaves() -> None:
    run = jaxplan.auto(leafy_step, **OPTIONS)
    plan = jaxplan.plan(leafy_step, make_leafy(), X, **OPTIONS).fastest()
    results = {}
    for mode in ("double", "single", "double"):
        params, results[mode] = run(make_leafy(mode), X)
        assert (params["act"], params["mode"], params["bias"]) == (jnp.tanh, mode, None)
        wanted = jnp.mean((jnp.tanh(X @ make_leafy()["w"]) * (2 if mode == "double" else 1) - 1) ** 2)
        np.testing.assert_allclose(results[mode], wanted, rtol=1e-5)
    assert run.counts.plans == 2
    assert plan.in_specs[0]["act"] is None
    placed = plan.shard((make_leafy(), X))
    assert placed[0]["act"] is jnp.tanh
    np.testing.assert_allclose(plan.jit()(*placed)[1], results["double"], rtol=1e-5)
    with pytest.raises(PlanMismatchError, match=r"\[0\]\['mode'\]"):
        plan.jit()(make_leafy("single"), X)
    np.testing.assert_allclose(
        plan.jit()(make_leafy(act=lambda x: jnp.tanh(x)), X)[1], results["double"], rtol=1e-5
    )


def test_a_model_that_is_no_pytree_is_refused_and_one_without_arrays_is_a_setting() -> None:
    class Model:
        def __init__(self, **attributes: Any) -> None:
            self.__dict__.update(attributes)

        def __call__(self, x: Any) -> Any:
            return x * 2

    def step(model: Model, x: Any) -> Any:
        return model(x) @ x.T

    with pytest.raises(ArgumentError, match=r"argument \[0\] of step is .*Model.*(.|\n)*register_dataclass"):
        jaxplan.plan(step, Model(layers=[Model(w=jnp.ones((16, 16)))]), X, **OPTIONS)
    run = jaxplan.auto(step, **OPTIONS)
    np.testing.assert_allclose(run(Model(width=16), X), 2 * X @ X.T, rtol=1e-4)


def test_equinox_modules_are_arguments_as_they_are() -> None:
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):
        mlp: Any
        dropout: Any
        name: str

        def __call__(self, x: Any, key: Any) -> Any:
            return self.dropout(self.mlp(x), key=key)

    def make() -> Any:
        mlp = eqx.nn.MLP(16, 16, 32, 2, activation=lambda x: jax.nn.relu(x), key=jax.random.key(0))
        return Net(mlp=mlp, dropout=eqx.nn.Dropout(0.5), name="net")

    optimizer = optax.adam(1e-2)

    def step(model: Any, state: Any, x: Any, key: Any) -> tuple[Any, Any, Any]:
        def loss_of(m: Any) -> Any:
            return jnp.mean((jax.vmap(m)(x, jax.random.split(key, x.shape[0])) - 1) ** 2)

        loss, grads = eqx.filter_value_and_grad(loss_of)(model)
        updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, loss

    def losses(run: Callable[..., Any]) -> list[float]:
        model, found = make(), []
        state = optimizer.init(eqx.filter(model, eqx.is_array))
        for i in range(3):
            model, state, loss = run(model, state, X, jax.random.key(i))
            found.append(float(loss))
        assert model.name == "net"
        return found

    wanted = losses(eqx.filter_jit(step))
    for decorated in (step, eqx.filter_jit(step), eqx.filter_jit(donate="all-except-first")(step)):
        run = jaxplan.auto(decorated, **OPTIONS)
        np.testing.assert_allclose(losses(run), wanted, rtol=1e-4)
        np.testing.assert_allclose(losses(run), wanted, rtol=1e-4)
        assert (run.counts.plans, run.counts.compiles) == (1, 1)
