"""Run loops and branches: `jax.lax.scan`, `while_loop` and `switch` over replayed bodies.

A body runs in an environment of its own that sees the one around it; reshardings of its equations run in every trip,
those of an entry once before the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxplan.core import _compat
from jaxplan.ir import Equation, Region
from jaxplan.partition._evaluation import Evaluation


def run_region(run: Evaluation, region: Region) -> None:
    """Evaluate a region; its results are in ``run.values.env`` afterwards."""
    {"scan": _scan, "while": _while, "cond": _cond}[region.kind](run, region)


def _enter(run: Evaluation, entries: Sequence[Equation], role: str) -> dict[int, Any]:
    """Inner tensor -> its value (or the stack that is sliced for it), brought to its sharding."""
    tie = run.tie([t for eqn in entries for t in eqn.operands])
    chosen = [eqn for eqn in entries if eqn.params["role"] == role and eqn.index not in _masks(run)]
    return {eqn.results[0]: run.values.read_entering(eqn, tie) for eqn in chosen}


def _value(run: Evaluation, t: int, value: Any) -> Any:
    """A value of a body as the loop wants it: an array of the dtype that the trace gave it, in its sharding."""
    dtype = run.lowered.program.tensors[t].dtype
    if not _compat.is_key_dtype(dtype):
        value = lax.convert_element_type(jnp.asarray(value), dtype)
    return run.values.pin(t, value)


def _pinned(run: Evaluation, values: dict[int, Any]) -> dict[int, Any]:
    return {t: run.values.pin(t, value) for t, value in values.items()}


def _masks(run: Evaluation) -> dict[int, tuple[int, ...]]:
    """Entry of a mask -> the equations that compute it; values that stay free are computed where they are read."""
    return {} if run.values.executor.keeps_free else run.lowered.masks


def _compute_masks(inner: Evaluation, entries: Sequence[Equation]) -> None:
    """Compute the masks that a body reads inside of it."""
    masks = _masks(inner)
    for eqn in (eqn for eqn in entries if eqn.index in masks):
        inner.evaluate_again(masks[eqn.index])
        (result,) = eqn.results
        inner.values.env[result] = inner.values.pin(result, inner.values.read_entering(eqn, None))


def _scan(run: Evaluation, region: Region) -> None:
    entries, exits = run.equations(region.entries[0]), run.equations(region.exits)
    consts, carry, xs = (_enter(run, entries, role) for role in ("const", "carry", "x"))
    carry_exits = [eqn for eqn in exits if eqn.params["role"] == "carry"]
    y_exits = [eqn for eqn in exits if eqn.params["role"] == "y"]

    def body(state: tuple[Any, ...], slices: dict[int, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        inner = run.child()
        inner.values.env.update(_pinned(run, consts))
        inner.values.env.update(
            {
                eqn.operands[0]: run.values.pin(eqn.operands[0], v)
                for eqn, v in zip(carry_exits, state, strict=True)
            }
        )
        inner.values.env.update(_pinned(run, slices))
        _compute_masks(inner, entries)
        inner.evaluate(*region.ranges[0], region.index)
        after = tuple(_value(run, eqn.operands[0], inner.values.read_operand(eqn, 1)) for eqn in carry_exits)
        return after, tuple(jnp.asarray(inner.values.read_operand(eqn, 0)) for eqn in y_exits)

    before = tuple(_value(run, eqn.operands[0], carry[eqn.operands[0]]) for eqn in carry_exits)
    if any(eqn.phase == "backward" for eqn in exits):
        before = tuple(run.gradients.settle(before))
    final, ys = lax.scan(
        body,
        before,
        xs,
        length=region.params["length"],
        reverse=region.params["reverse"],
        unroll=region.params["unroll"],
    )
    for eqn, value in zip((*carry_exits, *y_exits), (*final, *ys), strict=True):
        run.values.env[eqn.results[0]] = run.values.pin(eqn.results[0], value)


def _while(run: Evaluation, region: Region) -> None:
    exits, predicate = run.equations(region.exits), region.predicate
    entries = run.equations(region.entries[0])
    cond_entries = run.equations(region.entries[1])
    consts, carry = _enter(run, entries, "const"), _enter(run, entries, "carry")
    cond_consts = _enter(run, cond_entries, "const")

    def inner_run(state: tuple[Any, ...], body: int) -> Evaluation:
        inner = run.child()
        inner.values.env.update(_pinned(run, cond_consts if body else consts))
        inner.values.env.update(
            {eqn.operands[0]: run.values.pin(eqn.operands[0], v) for eqn, v in zip(exits, state, strict=True)}
        )
        _compute_masks(inner, cond_entries if body else entries)
        inner.evaluate(*region.ranges[body], region.index)
        return inner

    def goes_on(state: tuple[Any, ...]) -> Any:
        assert predicate is not None
        return inner_run(state, 1).values.read_replicated(predicate, region.stop)

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        inner = inner_run(state, 0)
        return tuple(_value(run, eqn.operands[0], inner.values.read_operand(eqn, 1)) for eqn in exits)

    before = tuple(_value(run, eqn.operands[0], carry[eqn.operands[0]]) for eqn in exits)
    final = lax.while_loop(goes_on, body, before)
    for eqn, value in zip(exits, final, strict=True):
        run.values.env[eqn.results[0]] = run.values.pin(eqn.results[0], value)


def _cond(run: Evaluation, region: Region) -> None:
    exits, selector = run.equations(region.exits), region.selector
    assert selector is not None
    choice = jnp.asarray(run.values.read_replicated(selector, region.start))

    def branch(k: int) -> Any:
        def evaluate(_: None) -> tuple[Any, ...]:
            inner = run.child()
            entries = inner.equations(region.entries[k])
            inner.values.env.update(_pinned(run, _enter(inner, entries, "operand")))
            inner.evaluate(*region.ranges[k], region.index)
            return tuple(_value(run, eqn.results[0], inner.values.read_operand(eqn, k)) for eqn in exits)

        return evaluate

    results = lax.switch(
        lax.convert_element_type(choice, jnp.int32), [branch(k) for k in range(len(region.ranges))], None
    )
    for eqn, value in zip(exits, results, strict=True):
        run.values.env[eqn.results[0]] = run.values.pin(eqn.results[0], value)


