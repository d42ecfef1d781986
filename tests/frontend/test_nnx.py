"""NNX objects as arguments of a planned step: updated in place, shared as before, traced once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxplan

BATCH, WIDTH = 16, 32
TX = optax.adam(1e-2, eps=1e-4)


class Net(nnx.Module):
    """A layer, statistics of the batch, a layer that shares the first one's weights, and dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.blocks = nnx.List([self.first, nnx.Linear(WIDTH, WIDTH, rngs=rngs)])
        self.dropout = nnx.Dropout(0.25, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.norm(jnp.tanh(self.first(x)))
        for block in self.blocks:
            x = jnp.tanh(block(x))
        return self.dropout(x)


def _loss(model: Net, x: jax.Array) -> jax.Array:
    return jnp.mean((model(x) - 0.5) ** 2)


def train_step(model: Net, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
    loss, gradients = nnx.value_and_grad(_loss)(model, x)
    optimizer.update(model, gradients)
    return loss


def owning_step(model: Net, optimizer: nnx.ModelAndOptimizer, x: jax.Array) -> jax.Array:
    loss, gradients = nnx.value_and_grad(_loss)(model, x)
    optimizer.update(gradients)
    return loss


def _make(owning: bool = False) -> tuple[Net, Any]:
    model = Net(nnx.Rngs(0))
    return model, nnx.ModelAndOptimizer(model, TX) if owning else nnx.Optimizer(model, TX, wrt=nnx.Param)


def _batch() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype(np.float32)


def _assert_same(node: Any, expected: Any) -> None:
    for leaf, other in zip(
        jax.tree.leaves(nnx.state(node)), jax.tree.leaves(nnx.state(expected)), strict=True
    ):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("owning", [False, True], ids=["optimizer", "optimizer-that-owns-the-model"])
def test_a_step_updates_model_and_optimizer_in_place_as_under_nnx_jit(owning: bool) -> None:
    step = owning_step if owning else train_step
    traces = []

    def counted(model: Any, optimizer: Any, x: Any) -> Any:
        traces.append(1)
        return step(model, optimizer, x)

    planned, alone = jaxplan.auto(counted, memory="1GiB", choose="leanest"), nnx.jit(step)
    model, optimizer = _make(owning)
    expected_model, expected_optimizer = _make(owning)
    kernel, x = model.first.kernel, _batch()
    for _ in range(4):
        loss, expected = planned(model, optimizer, x), alone(expected_model, expected_optimizer, x)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert len(traces) == planned.counts.plans == planned.counts.compiles == 1
    assert model.first.kernel is kernel and model.blocks[0] is model.first
    if owning:
        assert optimizer.model is model
    _assert_same(model, expected_model)
    _assert_same(optimizer, expected_optimizer)
    assert int(optimizer.step[...]) == 4
    assert len(kernel[...].sharding.device_set) == 8
    assert "[0].blocks[1].kernel" in planned.plan.in_paths
    assert (
        sum(path.startswith("[1].opt_state") for path in planned.plan.in_paths) == 13
    )  # count, mu and nu of six


def test_what_a_step_changes_is_donated_and_what_it_reads_is_kept() -> None:
    model, optimizer = _make()
    x = _batch()
    program = (
        jaxplan.plan(train_step, model, optimizer, x, topology="cpu:8", memory="1GiB").fastest().graph.program
    )
    donated = {path[:3] for path, d in zip(program.in_paths, program.donated, strict=True) if d}
    assert donated == {"[0]", "[1]"}
    assert len(program.aliases) == len(jax.tree.leaves((nnx.state(model), nnx.state(optimizer))))

    model.eval()
    evaluate = jaxplan.auto(lambda model, x: model(x), memory="1GiB")
    kernel = model.first.kernel[...]
    np.testing.assert_allclose(evaluate(model, x), model(x), rtol=1e-5, atol=1e-6)
    assert not any(evaluate.plan.graph.program.donated)
    assert len(evaluate.plan.out_paths) == 1
    assert model.first.kernel[...] is kernel
    model.train()
    evaluate(model, x)
    assert evaluate.counts.plans == 2  # another structure: dropout is on, statistics change


def test_objects_in_containers_keywords_and_results() -> None:
    def step(parts: dict[str, Any], *, scale: nnx.Param, x: jax.Array) -> tuple[Any, Any, jax.Array]:
        scale[...] = scale[...] * 2
        return parts["model"], nnx.Param(scale[...] + 1), jnp.sum(parts["model"].first(x))

    model, _ = _make()
    scale = nnx.Param(jnp.ones(WIDTH))
    for round_number in (1, 2):
        same, new, total = jaxplan.auto(step)({"model": model, "n": 3.0}, scale=scale, x=_batch())
        assert same is model
        np.testing.assert_array_equal(scale[...], np.full(WIDTH, 2.0**round_number))
        np.testing.assert_array_equal(new[...], np.full(WIDTH, 2.0**round_number + 1))
    np.testing.assert_allclose(total, jnp.sum(model.first(_batch())), rtol=1e-5)


def test_abstract_models_are_planned_and_the_plan_runs_on_real_ones() -> None:
    model, optimizer = nnx.eval_shape(_make)
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
    plan = jaxplan.plan(train_step, model, optimizer, x, topology="cpu:8", memory="1GiB").leanest()
    assert isinstance(plan.in_specs[0], nnx.State)
    assert all(isinstance(spec, jax.sharding.PartitionSpec) for spec in jax.tree.leaves(plan.in_specs))
    model, optimizer = _make()
    expected_model, expected_optimizer = _make()
    placed_model, placed_optimizer, placed_x = plan.shard((model, optimizer, _batch()))
    assert placed_model.blocks[0] is placed_model.first
    assert placed_model.first.kernel[...].sharding.spec == plan.in_specs[0]["blocks"][0]["kernel"].get_value()
    loss = plan.jit()(placed_model, placed_optimizer, placed_x)
    np.testing.assert_allclose(loss, train_step(expected_model, expected_optimizer, _batch()), rtol=1e-5)
    _assert_same(placed_model, expected_model)


def test_the_functional_style_stays_a_plain_tree() -> None:
    model, _ = _make()
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    @jaxplan.auto(memory="1GiB")
    def step(params: nnx.State, rest: nnx.State, x: jax.Array) -> tuple[nnx.State, jax.Array]:
        def loss_fn(params: nnx.State) -> jax.Array:
            return _loss(nnx.merge(graphdef, params, rest, copy=True), x)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    expected = _loss(nnx.merge(graphdef, params, rest, copy=True), _batch())
    new, loss = step(params, rest, _batch())
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert isinstance(new, nnx.State)
    assert jax.tree.structure(new) == jax.tree.structure(params)
    step(new, rest, _batch())
    assert step.counts.plans == 1


@pytest.mark.slow
def test_flax_is_not_imported_for_a_step_without_it() -> None:
    program = """
import sys, jax, jaxplan, jax.numpy as jnp
x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
jaxplan.plan(lambda x: x @ x, x, topology="cpu:8")
assert not any(name.split(".")[0] == "flax" for name in sys.modules), sorted(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
