"""One clear error for each kind of bad input: given, expected, the likely cause and the fix."""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan import (
    ArgumentError,
    InfeasibleError,
    JaxplanError,
    PlanFileError,
    PlanMismatchError,
    TopologyError,
    TraceError,
)
from jaxplan.core import _log
from jaxplan.cost import build_cost_model
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.search._uneven_dimensions import uneven_dimensions

BATCH, WIDTH, HIDDEN = 30, 32, 128


def train_step(state: Any, batch: dict[str, jax.Array], rate: float = 0.1) -> tuple[Any, jax.Array]:
    """Momentum on a two-layer perceptron."""
    params, slots = state

    def loss_fn(params: Any) -> jax.Array:
        return jnp.mean((jnp.tanh(batch["x"] @ params["in"]) @ params["out"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, grads)
    return (jax.tree.map(lambda p, m: p - rate * m, params, slots), slots), loss


def shapes(batch: int = BATCH, width: int = WIDTH, hidden: int = HIDDEN, dtype: Any = jnp.float32) -> Any:
    params = {
        "in": jax.ShapeDtypeStruct((width, hidden), dtype),
        "out": jax.ShapeDtypeStruct((hidden, width), dtype),
    }
    x = jax.ShapeDtypeStruct((batch, width), dtype)
    return (params, params), {"x": x, "y": x}


def values(**sizes: int) -> Any:
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: rng.normal(0, 0.3, s.shape).astype(s.dtype), shapes(**sizes))


plan = functools.partial(jaxplan.plan, topology="cpu:8", memory="1GiB")


def message_of(kind: type[JaxplanError], call: Callable[[], Any]) -> str:
    """The text of the error that a call ends with; all four parts must be in it."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    for part in ("expected", "likely cause", "fix"):
        assert part in text, text
    return text


@pytest.fixture(autouse=True)
def new_process() -> None:
    _log.forget()


# arguments of the step


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: plan(train_step), ["state and batch missing", "0 positional", "may be left out: rate"]),
        (lambda: plan(train_step, shapes()[0]), ["batch missing", "1 positional", "(train_step, state, batch)"]),
        (lambda: plan(train_step, *shapes(), 0.1, 0.2), ["too many positional arguments", "4 positional"]),
        (lambda: plan(train_step, *shapes(), topolgy="h100:8"), ["'topolgy'", "topology=... instead of"]),
        (lambda: plan(train_step, *shapes(), rat=0.1), ["'rat'", "rate=... instead of"]),
        (lambda: jaxplan.auto(train_step)(values()[0]), ["batch missing", "the decorated step"]),
        (lambda: plan(functools.partial(train_step, rate=0.2)), ["train_step", "state and batch missing"]),
    ],
    ids=["all", "one", "too-many", "option", "keyword", "auto", "partial"],
)  # fmt: skip
def test_missing_arguments_are_named(call: Callable[[], Any], parts: list[str]) -> None:
    text = message_of(ArgumentError, call)
    assert "train_step cannot be called" in text
    for part in parts:
        assert part in text


@pytest.mark.parametrize("via", [plan, lambda step, *args: jaxplan.auto(step)(*args)], ids=["plan", "auto"])
def test_what_is_no_array_is_named_by_its_path(via: Callable[..., Any]) -> None:
    state, batch = values()
    text = message_of(ArgumentError, lambda: via(train_step, state, batch, {1, 2}))
    assert "argument [2] of train_step is {1, 2}, of type set" in text
    assert "static_argnums=(2,)" in text
    text = message_of(ArgumentError, lambda: via(train_step, state, {**batch, "name": object()}))
    assert "argument [1]['name'] of train_step is <object object" in text


@pytest.mark.parametrize("via", [plan, lambda step, *args: jaxplan.auto(step)(*args)], ids=["plan", "auto"])
def test_a_string_is_a_setting_and_named_where_the_step_fails_on_it(via: Callable[..., Any]) -> None:
    text = message_of(TraceError, lambda: via(train_step, *values(), "fast"))
    assert "taken as settings, being no arrays: [2] = 'fast'" in text


def test_a_step_that_does_nothing_with_its_arguments() -> None:
    for step in (lambda x: x, lambda x: jnp.zeros(8)):
        assert "nothing to plan" in message_of(ArgumentError, lambda step=step: plan(step, jnp.ones(8)))


# steps that cannot be traced


def _branch(x: jax.Array) -> Any:
    return x if x.sum() > 0 else -x


def _numpy(x: jax.Array) -> Any:
    return np.sin(x)


def _shape(x: jax.Array) -> Any:
    return jnp.zeros(int(x.sum()))


def _mismatch(x: jax.Array) -> Any:
    return x @ x


@pytest.mark.parametrize(
    ("step", "cause", "fix"),
    [
        (_branch, "Python if", "jax.lax.cond"),
        (_numpy, "NumPy function", "jax.numpy"),
        (_shape, "depends on the value of an array", "static_argnums"),
        (_mismatch, "the step itself fails", "that line"),
    ],
)
def test_a_step_that_cannot_be_traced(step: Callable[..., Any], cause: str, fix: str) -> None:
    line = inspect.getsourcelines(step)[1] + 1
    text = message_of(TraceError, lambda: plan(step, jax.ShapeDtypeStruct((4, 8), jnp.float32)))
    assert f"test_bad_input.py:{line} ({step.__name__})" in text
    assert cause in text and fix in text


# machines


@pytest.mark.parametrize(
    ("topology", "parts"),
    [
        ("h10:8", ["unknown chip 'h10'", "did you mean 'h100'?"]),
        ("h100", ["number of devices is missing", "h100:8, h100:2x8"]),
        ("h100:8x", ["numbers of nodes and devices are malformed"]),
        ("h100:2x2x2", ["(2, 2, 2)", "one to 2 sizes"]),
        ("abacus:3", ["no chip of that name", "chips: gb200 b200 h200 h100"]),
        ("", ["cannot read topology ''"]),
    ],
)
def test_a_topology_that_does_not_parse(topology: str, parts: list[str]) -> None:
    text = message_of(TopologyError, lambda: jaxplan.plan(train_step, *shapes(), topology=topology))
    assert repr(topology) in text
    for part in parts:
        assert part in text


def test_more_devices_than_present() -> None:
    step = jaxplan.auto(train_step, topology="cpu:16")
    text = message_of(PlanMismatchError, lambda: step(*values()))
    assert "needs 16 devices (cpu:16), and 8 are there" in text
    larger = jaxplan.plan(train_step, *shapes(batch=64), topology="cpu:16").fastest()
    assert "needs 16 devices" in message_of(PlanMismatchError, larger.jit)


def test_a_limit_that_nothing_meets_says_what_would_and_what_it_is_made_of() -> None:
    """One device has to hold everything: all sizes are known."""
    with pytest.raises(InfeasibleError) as caught:
        jaxplan.plan(train_step, *shapes(), topology="cpu:1", memory="16KiB", donate_argnums=(0,))
    error = caught.value
    weights = 4 * 2 * WIDTH * HIDDEN
    assert error.memory_parts["parameters"] == weights
    assert error.memory_parts["optimizer state"] == weights
    assert error.memory_parts["batch and other arguments"] == 4 * 2 * BATCH * WIDTH
    assert error.memory_parts["activations"] >= 4 * BATCH * HIDDEN
    assert sum(error.memory_parts.values()) == error.smallest_memory_bytes
    text = str(error)
    for part in ("16.0 KiB", "expected", "likely cause: the largest part is", "fix:", "parameters 32.0 KiB"):
        assert part in text
    assert str(error.smallest_memory_bytes) in text


# plan files


def test_files_that_are_no_plans_of_this_step(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan(train_step, *shapes(batch=64)).fastest().save(path)
    text = message_of(PlanMismatchError, lambda: jaxplan.load(path, train_step, *shapes(batch=32)))
    assert "batch/x is float32[32,32], and float32[64,32] in the plan" in text
    state, batch = shapes(batch=64)
    other = {**batch, "mask": batch["x"]}
    text = message_of(PlanMismatchError, lambda: jaxplan.load(path, train_step, state, other))
    assert "only in the step: batch/mask" in text
    call = functools.partial(jaxplan.load, path, train_step, state, batch, 0.2)
    assert "only in the step: rate" in message_of(PlanMismatchError, call)
    text = message_of(
        PlanMismatchError, lambda: jaxplan.load(path, functools.partial(train_step, rate=0.3), state, batch)
    )
    assert "the arguments are the same; the step's own code" in text
    assert "jaxplan.load(path, train_step, state, batch)" in message_of(
        ArgumentError, lambda: jaxplan.load(path, train_step, state)
    )
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert "cannot read plan file" in message_of(PlanFileError, lambda: jaxplan.load(path))
    path.write_text(json.dumps({**json.loads(whole), "version": 1}))
    current = json.loads(whole)["version"]
    message = rf"version 1, and this jaxplan reads versions 2 to {current}: plan again(.|\n)*likely cause"
    with pytest.raises(PlanFileError, match=message):
        jaxplan.load(path)


# dimensions that the devices do not divide


def test_a_batch_that_no_axis_divides_is_planned_without_that_split_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="jaxplan"):
        frontier = plan(train_step, *shapes(batch=15), donate_argnums=())
    (note,) = frontier.notes
    assert note in caplog.messages
    assert "dimension 'batch' (size 15, axis 0 of batch/x) is split over at most one of 8" in note
    assert "padded to 16 it could be split over 8" in note
    for planned in frontier:
        assert all(spec[0] is None for spec in planned.in_specs[1].values() if spec)
    arguments = values(batch=15)
    _, loss = frontier.leanest().jit()(*arguments)
    np.testing.assert_allclose(loss, jax.jit(train_step)(*arguments)[1], rtol=1e-5)
    assert plan(train_step, *shapes(batch=16)).notes == ()


def _uneven(topology: str, **sizes: int) -> dict[str, Any]:
    """Uneven dimensions under the plan that splits nothing."""
    machine = Topology.parse(topology)
    graph = analyse_step(train_step, shapes(**sizes), {}, donate_argnums=None, static_argnums=())
    model = build_cost_model(graph, machine)
    whole = [tuple(() for _ in space.classes) for space in graph.spaces]
    return {uneven.name: uneven for uneven in uneven_dimensions(model, whole)}


def test_what_padding_would_spare_is_counted() -> None:
    """Forward two dots, backward three (nobody wants the gradient of x): 2 batch width hidden operations each."""
    (batch,) = _uneven("cpu:8").values()
    dot = 2 * BATCH * WIDTH * HIDDEN
    assert (batch.name, batch.size, batch.parts, batch.padded, batch.wanted) == ("batch", 30, 2, 32, 8)
    assert batch.flops == 5 * dot
    np.testing.assert_allclose(batch.padded_flops, 5 * dot * 32 / 30 / 8)
    assert batch.gains
    kept = 4 * BATCH * (2 * WIDTH + HIDDEN)  # x, y and the result of tanh, at least
    assert kept <= batch.kept_bytes <= kept + 4 * BATCH * WIDTH
    np.testing.assert_allclose(batch.padded_kept_bytes, batch.kept_bytes * 32 / 30 / 8)


def test_dimensions_of_parameters_are_spoken_of_too() -> None:
    uneven = _uneven("cpu:8", batch=32, hidden=50257)
    assert [(u.size, u.padded, u.where) for u in uneven.values()] == [
        (50257, 50264, "axis 1 of state/0/in")
    ]
    assert _uneven("cpu:8", batch=32, hidden=12) == {}  # a third more would be too much
    assert set(_uneven("cpu:8", batch=3)) == {"batch"}  # not for a batch
    assert _uneven("cpu:1") == {}


def test_padding_that_spares_nothing_is_not_praised() -> None:
    """Where the plan splits the rest of the devices over another dimension, arithmetic is divided as well."""
    frontier = jaxplan.plan(train_step, *shapes(batch=32, width=4096, hidden=50257), topology="h100:8")
    (note,) = frontier.notes
    assert "size 50257" in note
    assert "spares no arithmetic and no memory" in note


def test_ordered_effects_are_refused_before_the_search() -> None:
    """JAX lowers them for one device alone; unordered ones are planned."""

    def step(w: jax.Array, x: jax.Array, ordered: bool) -> jax.Array:
        loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        jax.debug.print("{}", loss, ordered=ordered)
        return w - 0.1 * grads

    shapes = jax.ShapeDtypeStruct((16, 16), "float32"), jax.ShapeDtypeStruct((32, 16), "float32")
    with pytest.raises(jaxplan.JaxplanError, match=r"ordered effects.*one device alone"):
        jaxplan.plan(step, *shapes, True, topology="cpu:4", static_argnums=2, progress=False)
    assert jaxplan.plan(step, *shapes, False, topology="cpu:4", static_argnums=2, progress=False)
    assert jaxplan.plan(step, *shapes, True, topology="cpu:1", static_argnums=2, progress=False)


def test_a_container_that_holds_itself_is_refused() -> None:
    tree: dict[str, Any] = {}
    tree["itself"] = tree
    for args in ((tree,), ([tree],)):
        with pytest.raises(ArgumentError, match=r"(?s)nested more than.*expected.*holds itself.*fix"):
            jaxplan.plan(lambda tree: tree, *args, topology="cpu:8", progress=False)
    jax.tree.flatten([[[[1.0]]]])  # JAX is as it was: its own flattening would have left it without stack


def test_devices_arguments_and_options_that_contradict_are_refused() -> None:
    plan = jaxplan.plan(train_step, *shapes(), topology="cpu:4", progress=False).fastest()
    with pytest.raises(TopologyError, match=r"(?s)twice.*expected.*likely cause.*fix"):
        plan.jit(devices=jax.devices()[:1] * 4)
    with pytest.raises(ArgumentError, match=r"(?s)shard\(\) is given NoneType.*expected.*likely cause.*fix"):
        plan.shard(None)
    with pytest.raises(ArgumentError, match=r"(?s)both plan= and like=.*expected.*likely cause.*fix"):
        jaxplan.auto(train_step, plan=plan, like=plan)


def _yields(state: Any, batch: Any) -> Any:
    yield state


async def _awaited(state: Any, batch: Any) -> Any:
    return state


def _compiled() -> Any:
    return jax.jit(train_step).lower(*shapes()).compile()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda: _yields, "_yields is a generator"),
        (lambda: _awaited, "_awaited is a coroutine"),
        (_compiled, "is a compiled program"),
        (lambda: jax.pmap(train_step), "train_step is a function of jax.pmap"),
    ],
)
def test_a_step_that_is_no_plain_function_is_named_as_what_it_is(step: Callable[[], Any], said: str) -> None:
    assert said in message_of(ArgumentError, lambda: plan(step(), *shapes()))


def test_a_tuple_of_numbers_in_the_place_of_a_shape() -> None:
    def step(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: jnp.mean(x @ w))(w)

    text = message_of(TraceError, lambda: plan(step, (16, 16), (8, 16)))
    assert "argument [0], (16, 16), holds numbers, and a shape was meant" in text


@pytest.mark.parametrize(("number", "expected"), [(7, "2, 3, 5, 6, 10 or 15"), (30, "2, 3, 5, 6, 10 or 15")])
def test_micro_batches_that_do_not_divide_the_batch_say_which_do(number: int, expected: str) -> None:
    text = message_of(ArgumentError, lambda: plan(train_step, *shapes(), microbatches=number))
    assert f"a batch of {BATCH} examples" in text and f"expected: {expected}:" in text


def test_a_choice_to_verify_is_named_by_its_option() -> None:
    assert message_of(ArgumentError, lambda: plan(train_step, *shapes(), verify="always")).startswith("verify='always'")


def test_an_initialiser_that_makes_another_array_is_told_both_shapes() -> None:
    def step(w: Any, x: Any) -> Any:
        return w - jnp.mean(x)

    shape = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    found = plan(step, shape, shape).fastest()
    text = message_of(ArgumentError, lambda: found.init(lambda: jnp.ones(3)))
    assert "it is float32[3], and float32[16,16] in the plan." in text and "1 array: float32[3]\n" in text
