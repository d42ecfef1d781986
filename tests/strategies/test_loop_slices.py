"""A loop that slices the batch by its counter accumulates as one over a batch that a reshape cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxplan
from benchmarks.quality.references import draw
from jaxplan.ir import CUT, Program, trace

EXAMPLES, NUMBER, WIDTH = 32, 4, 16
PART = EXAMPLES // NUMBER
Params = dict[str, jax.Array]
Batch = dict[str, jax.Array]
Add = Callable[[Any, Batch], Any]


def _values() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    params = {
        "up": rng.normal(size=(WIDTH, 32), scale=0.3).astype(np.float32),
        "down": rng.normal(size=(32, WIDTH), scale=0.3).astype(np.float32),
    }
    batch = {
        "x": rng.normal(size=(EXAMPLES, WIDTH)).astype(np.float32),
        "weight": rng.uniform(size=(EXAMPLES,)).astype(np.float32),
    }
    return params, batch


def _loss(p: Params, batch: Batch) -> jax.Array:
    out = jax.nn.relu(batch["x"] @ p["up"]) @ p["down"]
    return jnp.mean(out**2 * batch["weight"][:, None])


def _normalised(p: Params, batch: Batch) -> jax.Array:
    """Each micro-batch has a mean of its own."""
    return _loss(p, {**batch, "x": batch["x"] - batch["x"].mean(0)})


def _rows(batch: Batch, start: Any, size: int = PART) -> Batch:
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), batch)


def _stacks(batch: Batch) -> Batch:
    return jax.tree.map(lambda x: x.reshape(NUMBER, PART, *x.shape[1:]), batch)


def by_loop_counter(add: Add, start: Any, batch: Batch) -> Any:
    return lax.fori_loop(0, NUMBER, lambda i, g: add(g, _rows(batch, i * PART)), start)


def by_scanned_numbers(add: Add, start: Any, batch: Batch) -> Any:
    return lax.scan(lambda g, i: (add(g, _rows(batch, i * PART)), None), start, jnp.arange(NUMBER))[0]


def by_constant_numbers(add: Add, start: Any, batch: Batch) -> Any:
    return lax.scan(lambda g, i: (add(g, _rows(batch, PART * i)), None), start, np.arange(NUMBER))[0]


def by_scanned_starts(add: Add, start: Any, batch: Batch) -> Any:
    starts = jnp.arange(0, EXAMPLES, PART)
    return lax.scan(lambda g, i: (add(g, _rows(batch, i)), None), start, starts)[0]


def by_carried_counter(add: Add, start: Any, batch: Batch) -> Any:
    def body(carry: Any, _: None) -> tuple[Any, None]:
        return (carry[0] + 1, add(carry[1], _rows(batch, carry[0] * PART))), None

    return lax.scan(body, (jnp.int32(0), start), None, length=NUMBER)[0][1]


def by_stacked_counter(add: Add, start: Any, batch: Batch) -> Any:
    """The loop returns its counters as a stack: trips have an order."""

    def body(carry: Any, _: None) -> tuple[Any, jax.Array]:
        return (carry[0] + 1, add(carry[1], _rows(batch, carry[0] * PART))), carry[0]

    (_, found), numbers = lax.scan(body, (jnp.int32(0), start), None, length=NUMBER)
    return jax.tree.map(lambda x: x + 0 * jnp.sum(numbers), found)


def by_carried_start(add: Add, start: Any, batch: Batch) -> Any:
    def body(carry: Any, _: None) -> tuple[Any, None]:
        return (carry[0] + PART, add(carry[1], _rows(batch, carry[0]))), None

    return lax.scan(body, (0, start), None, length=NUMBER)[0][1]


def backwards(add: Add, start: Any, batch: Batch) -> Any:
    def body(g: Any, i: jax.Array) -> tuple[Any, None]:
        return add(g, _rows(batch, i * PART)), None

    return lax.scan(body, start, jnp.arange(NUMBER), reverse=True)[0]


def by_index_of_stacks(add: Add, start: Any, batch: Batch) -> Any:
    stacks = _stacks(batch)

    def body(i: Any, g: Any) -> Any:
        return add(g, jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), stacks))

    return lax.fori_loop(0, NUMBER, body, start)


def by_brackets(add: Add, start: Any, batch: Batch) -> Any:
    stacks = _stacks(batch)
    return lax.fori_loop(0, NUMBER, lambda i, g: add(g, {k: x[i] for k, x in stacks.items()}), start)


def twice(add: Add, start: Any, batch: Batch) -> Any:
    """The same rows are read by two slices."""

    def body(i: Any, g: Any) -> Any:
        again = {**_rows(batch, i * PART), "weight": _rows(batch, PART * i)["weight"] * 0.5}
        return add(add(g, _rows(batch, i * PART)), again)

    return lax.fori_loop(0, NUMBER, body, start)


def scanned_and_sliced(add: Add, start: Any, batch: Batch) -> Any:
    """One array is cut by a reshape, the other sliced."""

    def body(g: Any, now: Any) -> tuple[Any, None]:
        x, i = now
        return add(g, {"x": x, "weight": lax.dynamic_slice_in_dim(batch["weight"], i * PART, PART)}), None

    return lax.scan(body, start, (_stacks(batch)["x"], jnp.arange(NUMBER)))[0]


def rematerialised(add: Add, start: Any, batch: Batch) -> Any:
    return by_loop_counter(jax.checkpoint(add), start, batch)


def sliced_inside_a_checkpoint(add: Add, start: Any, batch: Batch) -> Any:
    rows = jax.checkpoint(lambda g, i: add(g, _rows(batch, i * PART)))
    return lax.fori_loop(0, NUMBER, lambda i, g: rows(g, i), start)


def overlapping(add: Add, start: Any, batch: Batch) -> Any:
    return lax.fori_loop(0, NUMBER, lambda i, g: add(g, _rows(batch, i * (PART - 1))), start)


def incomplete(add: Add, start: Any, batch: Batch) -> Any:
    return lax.fori_loop(0, NUMBER - 1, lambda i, g: add(g, _rows(batch, i * PART)), start)


def clamped(add: Add, start: Any, batch: Batch) -> Any:
    """The last rows are read twice and the first not at all."""
    return lax.fori_loop(1, NUMBER + 1, lambda i, g: add(g, _rows(batch, i * PART)), start)


def repeated(add: Add, start: Any, batch: Batch) -> Any:
    numbers = np.array([0, 1, 1, 3])
    return lax.scan(lambda g, i: (add(g, _rows(batch, i * PART)), None), start, numbers)[0]


def weighted_by_trip(add: Add, start: Any, batch: Batch) -> Any:
    def body(i: Any, g: Any) -> Any:
        rows = _rows(batch, i * PART)
        return add(g, {**rows, "weight": rows["weight"] * (i + 1)})

    return lax.fori_loop(0, NUMBER, body, start)


def of_given_starts(add: Add, start: Any, batch: Batch) -> Any:
    """Starts depend on the data."""
    starts = jnp.argsort(batch["weight"])[:NUMBER]
    return lax.scan(lambda g, i: (add(g, _rows(batch, i)), None), start, starts)[0]


FREE = (
    by_loop_counter, by_scanned_numbers, by_constant_numbers, by_scanned_starts, by_carried_counter, by_carried_start,
    backwards, by_index_of_stacks, by_brackets, twice, scanned_and_sliced, rematerialised,
    sliced_inside_a_checkpoint,
)  # fmt: skip
KEPT = (overlapping, incomplete, clamped, repeated, weighted_by_trip, of_given_starts, by_stacked_counter)


def _step(form: Callable[..., Any], loss: Callable[..., jax.Array] = _loss) -> Callable[..., Any]:
    def step(p: Params, batch: Batch) -> Any:
        def add(carry: Any, part: Batch) -> Any:
            value, grads = jax.value_and_grad(loss)(p, part)
            return carry[0] + value, jax.tree.map(jnp.add, carry[1], grads)

        total, grads = form(add, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p)), batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, grads), total

    return step


def _num_cuts(program: Program) -> int:
    return sum(eqn.name == CUT for eqn in program.equations)


@pytest.mark.sample(6)
@pytest.mark.parametrize("form", FREE, ids=lambda form: form.__name__)
def test_slices_by_the_counter_are_scanned_and_split_over_devices(form: Callable[..., Any]) -> None:
    step, values = _step(form), _values()
    program = trace(step, values, {})
    assert _num_cuts(program) == 2
    assert not any(eqn.name == "dynamic_slice" for eqn in program.equations)
    plan = draw((step, values), "cpu:8", ("data",))["data"]
    found = plan.jit(donate_argnums=())
    for a, b in zip(jax.tree.leaves(found(*values)), jax.tree.leaves(jax.jit(step)(*values)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
    text = found.lower(*values).compile().as_text()
    assert text is not None and "all-reduce" in text
    assert not any(kind in text for kind in ("all-to-all", "all-gather", "collective-permute"))


STEPS = {form.__name__: _step(form) for form in KEPT} | {"normalised": _step(by_loop_counter, _normalised)}


@pytest.mark.sample(4)
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_other_slices_stay_and_compute_the_same(step: Callable[..., Any]) -> None:
    values = _values()
    program = trace(step, values, {})
    assert _num_cuts(program) == 0
    assert any(eqn.name == "dynamic_slice" for eqn in program.equations)
    plan = draw((step, values), "cpu:8", ("data",)).get("data")
    assert plan is not None
    found = plan.jit(donate_argnums=())(*values)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(step)(*values)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


def scanned(add: Add, start: Any, batch: Batch) -> Any:
    return lax.scan(lambda g, part: (add(g, part), None), start, _stacks(batch))[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", [scanned, by_loop_counter])
def test_every_plan_cuts_all_arrays_of_the_batch_alike(form: Callable[..., Any]) -> None:
    """Plans may split examples and their weights over different numbers of devices."""
    step, values = _step(form), _values()
    expected = jax.jit(step)(*values)
    for plan in jaxplan.plan(step, *values, topology="cpu:8"):
        found = plan.jit(donate_argnums=())(*values)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("form", [scanned, by_loop_counter, by_scanned_numbers])
def test_a_loop_that_is_differentiated_as_a_whole_is_split(form: Callable[..., Any]) -> None:
    def step(p: Params, batch: Batch) -> Any:
        grads = jax.grad(lambda p: form(lambda total, part: total + _loss(p, part), 0.0, batch))(p)
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, grads)

    values = _values()
    assert _num_cuts(trace(step, values, {})) == 2
    found = draw((step, values), "cpu:8", ("data",))["data"].jit(donate_argnums=())(*values)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(step)(*values)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
