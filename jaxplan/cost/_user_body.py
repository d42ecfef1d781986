"""Cost of the body of a user's `jax.shard_map`: its arithmetic and its collectives, on its local shapes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxplan.core._interner import ByIdentity
from jaxplan.cost._work import flops_of_equation
from jaxplan.ir import IN_DIMS, Count, Equation, Tensor, inline_body, operator_count, operator_rule

_KINDS = {
    **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin", "unreduced_psum", "preduced"), "all-reduce"),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), "all-gather"),
    **dict.fromkeys(("reduce_scatter", "unreduced_reduce_scatter"), "reduce-scatter"),
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}
"""Primitive -> the collective that it is (https://docs.jax.dev/en/latest/jax.lax.html#parallel-operators)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyWork:
    """One operator of a body on one device: its count, bytes read and written, executions, FLOPs if it is a
    contraction or convolution."""

    count: Count
    num_bytes: int
    trips: int
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyCollective:
    """One collective of a body: kind, axes of the user's mesh, bytes of the larger side on one device, executions."""

    kind: str
    names: tuple[str, ...]
    num_bytes: int
    trips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyCost:
    """Everything in a body that is priced; ``boundary_bytes`` are its operands and results on one device."""

    works: tuple[BodyWork, ...]
    collectives: tuple[BodyCollective, ...]
    boundary_bytes: int

    @property
    def flops(self) -> float:
        return sum(work.flops * work.trips for work in self.works)


_NOTHING = BodyCost(works=(), collectives=(), boundary_bytes=0)


def body_cost(eqn: Equation) -> BodyCost:
    """The cost of one execution of an equation; nothing unless it is a `jax.shard_map`."""
    return _cost(ByIdentity(eqn.origin, eqn)) if IN_DIMS in eqn.params else _NOTHING


@functools.lru_cache(maxsize=256)
def _cost(key: ByIdentity) -> BodyCost:
    tensors, equations, inputs, outputs = inline_body(key.value.params["jaxpr"])
    boundary = sum(tensors[t].num_bytes for t in dict.fromkeys((*inputs, *outputs)))
    return BodyCost(
        works=tuple(_works(tensors, equations)),
        collectives=tuple(_collectives(tensors, equations)),
        boundary_bytes=boundary,
    )


def _works(tensors: list[Tensor], equations: list[Equation]) -> Iterator[BodyWork]:
    for eqn in equations:
        if eqn.name in _KINDS or not eqn.results:
            continue
        ins, outs = [tensors[t] for t in eqn.operands], [tensors[t] for t in eqn.results]
        rule = operator_rule(eqn.name, ins, outs, eqn.params)
        count = operator_count(eqn.name, ins, outs, eqn.params, rule)
        if count is None or not count.flops:
            continue
        flops = flops_of_equation(eqn, rule, count, tensors)
        size = sum(t.num_bytes for t in (*(ins[:2] if flops else ins), *outs))
        size = max(size, int(count.moved))
        yield BodyWork(count=count, num_bytes=size, trips=outs[0].trips, flops=flops)


def _collectives(tensors: list[Tensor], equations: list[Equation]) -> Iterator[BodyCollective]:
    for eqn in equations:
        kind = _KINDS.get(eqn.name)
        names = _axis_names(eqn) if kind else ()
        if kind is None or not names:
            continue
        for operand, result in zip(eqn.operands, eqn.results):
            size = max(tensors[operand].num_bytes, tensors[result].num_bytes)
            yield BodyCollective(kind=kind, names=names, num_bytes=size, trips=tensors[result].trips)


def _axis_names(eqn: Equation) -> tuple[str, ...]:
    """Mesh axes of a collective; numbers among them are dimensions of a `vmap`."""
    axes: Any = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    axes = axes if isinstance(axes, tuple | list) else (axes,)
    return tuple(axis for axis in axes if isinstance(axis, str))
