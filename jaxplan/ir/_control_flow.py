"""How loops and branches are inlined: their bodies once, between equations through which values enter and leave.

So a body is planned like everything else, at the price of as many executions as the loop has trips. The body's view of
a carry, of a constant and of a slice is a tensor of its own, and the sharding of a carry is the same before, in and
after the loop: its entry and its exit are one group. As in compiled programs, a loop of one trip is its body alone, and
a scan that is unrolled whole is its body once for each trip.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from jaxplan.core import _compat
from jaxplan.ir._builder import Builder, keep, register_inline
from jaxplan.ir._program import REGION_IN, REGION_OUT, Region, RegionKind
from jaxplan.ir._trip_count import known_trips

_REGION_IN = _compat.Primitive(REGION_IN)
_REGION_OUT = _compat.Primitive(REGION_OUT)


class _Open:
    """A region under construction; the builder is inside its bodies between `body` and `close`."""

    def __init__(self, builder: Builder, kind: RegionKind, eqn: Any, stack: str, trips: int = 1) -> None:
        self.builder, self.eqn, self.stack = builder, eqn, stack
        self.outer, self.outer_trips = builder.region, builder.trips
        self.trips = trips
        self.region = Region(
            index=len(builder.regions),
            parent=builder.region,
            kind=kind,
            trips=trips,
            params=eqn.params,
            origin=eqn,
            start=len(builder.equations),
        )
        builder.regions.append(self.region)
        self.entries: list[list[int]] = []
        self.ranges: list[tuple[int, int]] = []
        self.exits: list[int] = []

    def body(
        self, jaxpr: Any, operands: Sequence[int | None], roles: Sequence[str], known: Sequence[int] = ()
    ) -> tuple[list[int], list[int]]:
        """Inline one body; returns its inner arguments and results.

        Args:
          operands: outer tensors, None for arguments taken from ``known``, in order.
        """
        opened, consts = _compat.open_jaxpr(jaxpr)
        ready, inner = iter(known), []
        self.entries.append([])
        for var, t, role in zip(opened.invars, operands, roles, strict=True):
            inner.append(next(ready) if t is None else self._enter(var.aval, t, role))
        start = len(self.builder.equations)
        self.builder.region, self.builder.trips = self.region.index, self.outer_trips * self.trips
        results = self.builder.inline(opened, consts, inner, self.stack)
        self.builder.region, self.builder.trips = self.outer, self.outer_trips
        self.ranges.append((start, len(self.builder.equations)))
        return inner, results

    def _enter(self, aval: Any, t: int, role: str) -> int:
        params = {"region": self.region.index, "role": role, "length": self.trips}
        self.entries[-1].append(len(self.builder.equations))
        self.builder.trips = self.outer_trips * self.trips  # the result is the body's
        (result,) = self.builder.append(_REGION_IN, params, [t], [aval], self.stack, self.eqn)
        self.builder.trips = self.outer_trips
        return result

    def leave(self, aval: Any, operands: Sequence[int], role: str) -> int:
        """The outer tensor of a result."""
        params = {"region": self.region.index, "role": role, "length": self.trips}
        self.exits.append(len(self.builder.equations))
        return self.builder.append(_REGION_OUT, params, operands, [aval], self.stack, self.eqn)[0]

    def close(self, **fields: Any) -> None:
        self.builder.regions[self.region.index] = dataclasses.replace(
            self.region,
            stop=len(self.builder.equations),
            entries=tuple(map(tuple, self.entries)),
            exits=tuple(self.exits),
            ranges=tuple(self.ranges),
            **fields,
        )


@register_inline("scan")
def _inline_scan(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    if _compat.has_effects(eqn):
        return keep(builder, eqn, operands, stack)
    num_consts, num_carry = _compat.scan_counts(eqn.params, len(operands))
    num_xs = len(operands) - num_consts - num_carry
    if eqn.params["length"] == 1:
        return _one_trip(builder, eqn, operands, stack, num_consts + num_carry, num_carry)
    if eqn.params["length"] == eqn.params["unroll"]:
        return _unrolled(builder, eqn, operands, stack, num_consts, num_carry)
    roles = ["const"] * num_consts + ["carry"] * num_carry + ["x"] * num_xs
    region = _Open(builder, "scan", eqn, stack, trips=int(eqn.params["length"]))
    inner, outs = region.body(eqn.params["jaxpr"], operands, roles)
    results = []
    for k, (var, out) in enumerate(zip(eqn.outvars, outs, strict=True)):
        if k < num_carry:
            results.append(region.leave(var.aval, [inner[num_consts + k], out], "carry"))
        else:
            results.append(region.leave(var.aval, [out], "y"))
    region.close()
    return results


def _one_trip(
    builder: Builder, eqn: Any, operands: list[int], stack: str, num_whole: int, num_carry: int
) -> list[int]:
    """The body of a scan of one trip; all operands behind ``num_whole`` are stacks of one slice, and so are results."""
    jaxpr, consts = _compat.open_jaxpr(eqn.params["jaxpr"])
    slices = [
        _reshaped(builder, t, var.aval, stack)
        for t, var in zip(operands[num_whole:], jaxpr.invars[num_whole:], strict=True)
    ]
    results = builder.inline(jaxpr, consts, [*operands[:num_whole], *slices], stack)
    stacks = [
        _reshaped(builder, t, var.aval, stack)
        for t, var in zip(results[num_carry:], eqn.outvars[num_carry:], strict=True)
    ]
    return [*results[:num_carry], *stacks]


def _unrolled(
    builder: Builder, eqn: Any, operands: list[int], stack: str, num_consts: int, num_carry: int
) -> list[int]:
    """The bodies of all trips, one after the other: slices of the scanned arrays, and stacks of the results.

    As in compiled programs, arrays that another such scan has stacked are read as they were made, and slices once.
    """
    jaxpr, consts = _compat.open_jaxpr(eqn.params["jaxpr"])
    num_whole, length = num_consts + num_carry, int(eqn.params["length"])
    carry, scanned = operands[num_consts:num_whole], operands[num_whole:]
    made: dict[int, list[int]] = {}
    for trip in range(length)[:: -1 if eqn.params["reverse"] else 1]:
        slices = [_row(builder, t, trip, stack) for t in scanned]
        results = builder.inline(jaxpr, consts, [*operands[:num_consts], *carry, *slices], stack)
        carry, made[trip] = results[:num_carry], results[num_carry:]
    columns = [list(rows) for rows in zip(*(made[trip] for trip in range(length)))]
    stacks = [_computed(builder, lambda *rows: jnp.stack(rows), rows, stack) for rows in columns]
    builder.rows.update(((t, at), row) for t, rows in zip(stacks, columns) for at, row in enumerate(rows))
    return [*carry, *stacks]


def _row(builder: Builder, t: int, at: int, stack: str) -> int:
    if (t, at) not in builder.rows:
        row = _computed(builder, lambda x: jax.lax.index_in_dim(x, at, keepdims=False), [t], stack)
        builder.rows[t, at] = row
    return builder.rows[t, at]


def _computed(builder: Builder, function: Callable[..., Any], operands: Sequence[int], stack: str) -> int:
    """The tensor that a function of arrays returns, its equations inlined."""
    tensors = [builder.tensors[t] for t in operands]
    closed = jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(t.shape, t.dtype) for t in tensors])
    return builder.inline(closed.jaxpr, closed.consts, operands, stack)[0]


def _reshaped(builder: Builder, t: int, aval: Any, stack: str) -> int:
    """An array in another shape; the array that it was reshaped from, if that has the shape."""
    producer = next((eqn for eqn in reversed(builder.equations) if t in eqn.results), None)
    if producer is not None and producer.name == "reshape":
        source = builder.tensors[producer.operands[0]]
        if source.shape == tuple(aval.shape) and producer.params.get("dimensions") is None:
            return source.index
    return _computed(builder, lambda x: x.reshape(aval.shape), [t], stack)


@register_inline("while")
def _inline_while(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    if _compat.has_effects(eqn):
        return keep(builder, eqn, operands, stack)
    num_cond, num_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_consts = operands[:num_cond]
    rest = operands[num_cond:]
    num_carry = len(rest) - num_body
    trips = known_trips(eqn.params, [builder.tensors[t].value for t in operands])
    if trips == 1:
        jaxpr, consts = _compat.open_jaxpr(eqn.params["body_jaxpr"])
        return builder.inline(jaxpr, consts, rest, stack)
    if trips:
        closed = _as_scan(eqn, trips, num_body)
        return builder.inline(closed.jaxpr, closed.consts, rest, stack)
    region = _Open(builder, "while", eqn, stack, trips=trips or 1)
    roles = ["const"] * num_body + ["carry"] * num_carry
    inner, outs = region.body(eqn.params["body_jaxpr"], rest, roles)
    carries = inner[num_body:]
    roles = ["const"] * num_cond + ["carry"] * num_carry
    _, (predicate,) = region.body(
        eqn.params["cond_jaxpr"], [*cond_consts, *[None] * num_carry], roles, known=carries
    )
    results = [
        region.leave(var.aval, [carry, out], "carry")
        for var, carry, out in zip(eqn.outvars, carries, outs, strict=True)
    ]
    region.close(predicate=predicate)
    return results


def _as_scan(eqn: Any, trips: int, num_consts: int) -> Any:
    """The jaxpr of a `scan` equal to a `while` of so many trips: slices of each trip can be found in it."""
    body = jaxpr_as_fun(eqn.params["body_jaxpr"])

    def loop(*operands: Any) -> Any:
        consts, carry = operands[:num_consts], operands[num_consts:]
        return jax.lax.scan(lambda c, _: (body(*consts, *c), None), list(carry), None, length=trips)[0]

    avals = [x.aval for x in eqn.invars[eqn.params["cond_nconsts"] :]]
    return jax.make_jaxpr(loop)(*[jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals])


@register_inline("cond")
def _inline_cond(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    if _compat.has_effects(eqn):
        return keep(builder, eqn, operands, stack)
    selector, *arguments = operands
    region = _Open(builder, "cond", eqn, stack)
    outs = [
        region.body(branch, arguments, ["operand"] * len(arguments))[1] for branch in eqn.params["branches"]
    ]
    results = [
        region.leave(var.aval, list(branches), "branch")
        for var, branches in zip(eqn.outvars, zip(*outs, strict=True), strict=True)
    ]
    region.close(selector=selector)
    return results
