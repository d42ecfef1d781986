"""State is saved under one plan and restored under another, bit for bit; a save that dies leaves the last one whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxplan
from tests.sampling import sampled

WIDTH = 32
OPTIMIZER = optax.adam(1e-2)


def loss_of(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jax.nn.relu(x @ params["up"]) @ params["down"] - x) ** 2)


def train(params: Any, slots: Any, x: jax.Array) -> Any:
    grads = jax.grad(loss_of)(params, x)
    updates, opt = OPTIMIZER.update(grads, slots["opt"], params)
    key, _ = jax.random.split(slots["key"])
    return optax.apply_updates(params, updates), {**slots, "opt": opt, "key": key}


def make_state() -> Any:
    random = np.random.default_rng(0)
    params = {"up": random.normal(size=(WIDTH, 64)), "down": random.normal(size=(64, WIDTH))}
    params = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), params)
    return params, {"opt": OPTIMIZER.init(params), "key": jax.random.key(1), "none": jnp.zeros((0, 3))}


X = np.linspace(-1, 1, 16 * WIDTH).astype(np.float32).reshape(16, WIDTH)
PLANS = {"data": "cpu:8", "fsdp": "cpu:8", "megatron": "cpu:4", "leanest": "cpu:2x4"}
"""Names of plans, each with a topology of its own."""


def plan_of(name: str) -> Any:
    frontier = jaxplan.plan(train, *jax.eval_shape(make_state), X, topology=PLANS[name], memory="1GiB")
    return frontier.choose(name)


@pytest.fixture(scope="module")
def plans() -> dict[str, Any]:
    return {}


def bits(tree: Any) -> list[bytes]:
    def data(leaf: Any) -> Any:
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    return [np.asarray(data(leaf)).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize(("saved", "restored"), sampled([(a, b) for a in PLANS for b in PLANS]))
def test_what_one_plan_saves_another_restores(saved, restored, plans, tmp_path) -> None:
    one, other = (plans.get(name) or plans.setdefault(name, plan_of(name)) for name in (saved, restored))
    state = one.jit()(*one.init(make_state), X)
    with one.checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(7, *state)
    found = other.restore(tmp_path / "run")
    assert bits(found) == bits(state)
    assert jax.tree.map(lambda a: a.sharding, found) == other.in_shardings()[:2]
    again = other.jit()(*found, X)
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in jax.tree.leaves(again[0]))


def test_the_plan_lies_beside_and_the_latest_are_kept(tmp_path) -> None:
    plan = plan_of("leanest")
    state = plan.init(make_state)
    with plan.checkpoints(tmp_path, keep=2) as checkpoints:
        for number in (1, 2, 3):
            checkpoints.save(number, *state)
    with plan.checkpoints(tmp_path) as checkpoints:
        assert checkpoints.numbers == (2, 3) and checkpoints.latest == 3
    step = jaxplan.auto(train, plan=tmp_path / "plan.json")
    assert step.plan_for(*state, X).is_same_program(plan)


def test_errors_name_the_difference(tmp_path) -> None:
    plan = plan_of("leanest")
    with pytest.raises(jaxplan.ArgumentError, match="no checkpoint in"):
        plan.restore(tmp_path)
    params, slots = plan.init(make_state)
    with plan.checkpoints(tmp_path) as checkpoints:
        with pytest.raises(jaxplan.ArgumentError, match="params: 2 arrays"):
            checkpoints.save(0, slots, params)
        checkpoints.save(1, params, slots)
        with pytest.raises(jaxplan.ArgumentError, match="no checkpoint 5"):
            checkpoints.restore(5)

    def other(params: Any, slots: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda p: p * 2, params), slots

    wider = {"up": jax.ShapeDtypeStruct((WIDTH, 128), jnp.bfloat16), "down": params["down"]}
    with pytest.raises(jaxplan.PlanMismatchError, match=r"params/up is \(32, 64\)"):
        jaxplan.plan(other, wider, slots, X, topology="cpu:8").fastest().restore(tmp_path)


def test_objects_come_back_as_objects(tmp_path) -> None:
    """NNX models and optimizers, and Equinox modules with functions among their leaves."""

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.up = nnx.Linear(WIDTH, 64, rngs=rngs)

    def step(model: Model, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m.up(x) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    def create() -> Any:
        model = Model(nnx.Rngs(0))
        return model, nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)

    plan = jaxplan.plan(step, *create(), X, topology="cpu:8", memory="1GiB").leanest()
    state = plan.init(create)
    plan.jit()(*state, X)
    with plan.checkpoints(tmp_path / "nnx") as checkpoints:
        checkpoints.save(1, *state)
    model, optimizer = plan.restore(tmp_path / "nnx")
    assert bits(nnx.state(model)) == bits(nnx.state(state[0])) and isinstance(model, Model)
    assert np.isfinite(plan.jit()(model, optimizer, X))

    def equinox_step(mlp: Any, x: jax.Array) -> Any:
        grads = eqx.filter_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(mlp)
        return eqx.apply_updates(mlp, jax.tree.map(lambda g: -0.1 * g, grads))

    mlp = eqx.nn.MLP(WIDTH, WIDTH, 64, 1, key=jax.random.key(1))
    plan = jaxplan.plan(equinox_step, mlp, X, topology="cpu:8", memory="1GiB").leanest()
    with plan.checkpoints(tmp_path / "equinox") as checkpoints:
        checkpoints.save(1, mlp)
    found = plan.restore(tmp_path / "equinox")
    assert found.activation is mlp.activation
    assert bits(eqx.filter(found, eqx.is_array)) == bits(eqx.filter(mlp, eqx.is_array))


_SAVES = """
import sys, numpy as np, jax, jaxplan
jax.config.update("jax_num_cpu_devices", 4)
def step(w, x):
    return w - 0.1 * jax.grad(lambda w: (x @ w).mean())(w)
w = np.zeros((1024, 1024), np.float32)
plan = jaxplan.plan(step, w, np.ones((8, 1024), np.float32), topology="cpu:4", donate_argnums=0).leanest()
with plan.checkpoints(sys.argv[1]) as checkpoints:
    for number in range(10_000):
        checkpoints.save(number, w + number)
        print("SAVED", number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.03, 0.11])
def test_a_killed_save_leaves_the_last_one_whole(seconds, tmp_path: Path) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2]), "XLA_FLAGS": ""}
    process = subprocess.Popen(
        [sys.executable, "-c", _SAVES, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("SAVED 3"):
            break
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.communicate()
    w, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1024, 1024), (8, 1024)))

    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: (x @ w).mean())(w)

    plan = jaxplan.plan(step, w, x, topology="cpu:8", donate_argnums=0).leanest()
    with plan.checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest is not None and checkpoints.latest >= 2
        for number in checkpoints.numbers:
            np.testing.assert_array_equal(checkpoints.restore(number), np.full((1024, 1024), number, np.float32))
