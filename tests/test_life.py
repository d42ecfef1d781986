"""Plans that a decorated step is given, follows or keeps from one kind of arguments to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan

WIDTH = 32


def loss_of(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jax.nn.relu(x @ params["up"]) @ params["down"]) ** 2)


def train(params: Any, x: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def shapes(batch: int = 16) -> Any:
    params = {"up": jax.ShapeDtypeStruct((WIDTH, 4 * WIDTH), "float32")}
    params["down"] = jax.ShapeDtypeStruct((4 * WIDTH, WIDTH), "float32")
    return params, jax.ShapeDtypeStruct((batch, WIDTH), "float32")


def arrays(batch: int = 16) -> Any:
    return jax.tree.map(lambda s: np.full(s.shape, 0.1, s.dtype), shapes(batch))


def auto(step: Any, **options: Any) -> Any:
    return jaxplan.auto(step, **{"memory": "1GiB", "choose": "leanest", **options})


def test_plan_for_and_lower_need_no_arrays_and_the_call_plans_nothing() -> None:
    step = auto(train)
    plan = step.plan_for(*shapes())
    assert step.lower(*shapes()).compile() is not None
    step(*arrays())
    assert step.plan.is_same_program(plan) and step.counts.plans == 1


def test_given_plan_runs_and_another_step_is_refused(tmp_path: Path) -> None:
    plan = jaxplan.plan(train, *shapes(), topology="cpu:8", memory="1GiB").leanest()
    plan.save(tmp_path / "plan.json")
    step = auto(train, plan=tmp_path / "plan.json")
    _, loss = step(*arrays())
    assert step.plan.is_same_program(plan)
    np.testing.assert_allclose(loss, loss_of(*arrays()), rtol=1e-5)


def test_another_batch_than_that_of_the_given_plan_keeps_its_layout_of_the_state(tmp_path: Path, caplog: Any) -> None:
    """Whether the batch of the plan was seen before or not."""
    plan = jaxplan.plan(train, *shapes(), topology="cpu:8", memory="1GiB").references["fsdp"]
    plan.save(tmp_path / "plan.json")
    for first in (16, 64):
        step = auto(train, plan=tmp_path / "plan.json")
        params, _ = step(*arrays(first))
        params, loss = step(params, arrays(64)[1])
        assert step.plan.input_shardings[:2] == plan.input_shardings[:2]
        assert (step.counts.plans, step.plan.in_avals[2]) == (1 + (first == 16), "float32[64,32]")
        np.testing.assert_allclose(loss, loss_of(train(*arrays(first))[0], arrays(64)[1]), rtol=1e-5)
    (line,) = [m for m in caplog.messages if "another batch" in m]
    assert "x is float32[64,32], and float32[16,32] in the plan" in line and "layout of the state" in line


def test_a_given_plan_is_not_replaced_where_more_than_the_batch_differs(tmp_path: Path) -> None:
    jaxplan.plan(train, *shapes(), topology="cpu:8").leanest().save(tmp_path / "plan.json")

    def faster(params: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        return jax.tree.map(lambda p, g: p - 0.2 * g, params, grads), loss

    with pytest.raises(jaxplan.PlanMismatchError, match=r"x is float32\[32,32\]"):
        auto(faster, plan=tmp_path / "plan.json")(*arrays(32))
    with pytest.raises(jaxplan.PlanMismatchError, match=r"params/up is"):
        wider = {"up": np.ones((WIDTH, 64), "float32"), "down": np.ones((64, WIDTH), "float32")}
        auto(train, plan=tmp_path / "plan.json")(wider, arrays()[1])


def test_evaluation_like_training_has_its_parameter_layout() -> None:
    step = auto(train)
    params, _ = step(*arrays())
    evaluate = auto(loss_of, like=step)
    evaluate(params, arrays()[1])
    assert evaluate.plan.in_shardings()[0] == jax.tree.map(lambda p: p.sharding, params)


def test_a_dimension_that_cannot_be_laid_out_alike_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Running sums need all of their dimension, which training splits."""
    split = jaxplan.plan(train, *arrays(), topology="cpu:8").references["fsdp"]
    name = "down"
    dimension = next(d for d, axes in enumerate(split.in_specs[0][name]) if axes)

    def smooth(params: Any, x: Any) -> Any:
        return jnp.cumsum(params[name], dimension).sum() + x.sum()

    evaluate = auto(smooth, like=split)
    for batch in (16, 24):
        evaluate(arrays()[0], arrays(batch)[1])
    (line,) = [m for m in caplog.messages if f"params/{name}" in m]
    assert f"split into 8 parts along dimension {dimension}" in line and "never split it" in line
    assert line in evaluate.plan.explain() and line in evaluate.frontier.notes
    assert jaxplan.Plan.from_json(evaluate.plan.to_json()).not_kept == (line,)


def test_a_layout_of_another_machine_cannot_be_followed() -> None:
    other = jaxplan.plan(train, *arrays(), topology="cpu:4").fastest()
    with pytest.raises(jaxplan.JaxplanError, match=r"(?s)cpu:4.*cpu:8.*expected.*likely cause.*fix"):
        auto(loss_of, like=other, topology="cpu:8")(*arrays())


def test_new_batch_size_keeps_the_layout_of_the_state() -> None:
    step = auto(train)
    params, _ = step(*arrays())
    before = jax.tree.map(lambda p: p.sharding, params)
    params, _ = step(params, arrays(64)[1])
    assert jax.tree.map(lambda p: p.sharding, params) == before
