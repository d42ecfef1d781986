"""Which inputs an output succeeds: the paths of a step along which an array is updated and keeps its sharding.

An output succeeds an input when a path of element-wise operators, updates, windows and loop carries leads from one to
the other: ``w - lr * g`` succeeds ``w``, a cache written at one position succeeds the cache, and the last carry of a
scan succeeds the first. Matrix products, reductions and broadcasts end a path: ``w @ x`` succeeds neither.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from jaxplan.core import _compat
from jaxplan.ir._program import REGION_IN, REGION_OUT, Equation, Tensor
from jaxplan.ir._registry import operator_rule

FlowKind = Literal["updated", "unchanged"]

_IDENTITIES = frozenset(
    {"optimization_barrier", "copy", "copy_p", "sharding_constraint", "stop_gradient", "name", "reshard"}
    | {"mesh_cast", "device_put", "random_wrap", "random_unwrap", "random_clone"}
)
_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims"})
# Operators with a first operand that is moved, cut or reordered along its own dimensions, or transformed along one.
_WINDOWS = frozenset(
    {"slice", "dynamic_slice", "pad", "rev", "split", "fft", "random_split", "random_fold_in"}
)
_RANK_CHANGING = _RESHAPES | {"gather", "random_split", "broadcast_in_dim"}
_ELEMENTWISE_STEP, _WINDOW_STEP, _WRITTEN_VALUE_STEP = 1, 1, 2
_MOST_SCALAR_STEPS = 32
"""Scalars meet each other in norms and schedules, in sums with as many terms as the step has parameters: paths
between scalars end after so many operators, about ten updates of a count in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The shortest path from an input to an output.

    Attributes:
      steps: operators on it that compute, views and casts to the same values not counted.
      kind: ``unchanged`` when the output is the input itself.
      is_written: whether this path or a longer one goes through a scatter or a `dynamic_update_slice` of the input.
    """

    steps: int
    kind: FlowKind
    is_written: bool


class _Source(NamedTuple):
    """An operand that a result continues.

    ``permutation`` has, for each dimension of the result, the dimension of the operand; None: the same. ``keeps_rank``
    is False where dimensions are merged, split or dropped, which only a path without a transpose can follow.
    """

    tensor: int
    steps: int
    is_written: bool = False
    permutation: tuple[int, ...] | None = None
    keeps_rank: bool = True


class Successors:
    """Flows into the outputs of a program."""

    def __init__(
        self, tensors: Sequence[Tensor], equations: Sequence[Equation], inputs: Sequence[int]
    ) -> None:
        self._tensors = tensors
        self._position = {t: i for i, t in enumerate(inputs)}
        self._producer = {t: eqn for eqn in equations for t in eqn.results}
        # Inside a loop a carry is the initial value in the first trip and the body's result in later ones.
        self._next_trip = {
            eqn.operands[0]: eqn.operands[1]
            for eqn in equations
            if eqn.name == REGION_OUT and eqn.params["role"] == "carry"
        }
        self._found: dict[int, Mapping[int, Flow]] = {}
        self._bodies: dict[int, tuple[Mapping[int, Flow], ...]] = {}

    def flows(self, output: int) -> Mapping[int, Flow]:
        """Input position -> flow, for all inputs that a tensor succeeds (Dijkstra 1959 over operators)."""
        if output not in self._found:
            self._found[output] = self._search(output)
        return self._found[output]

    def phase(self, output: int) -> str:
        """Phase of the equation that computes a tensor; ``forward`` for an input."""
        eqn = self._producer.get(output)
        return "forward" if eqn is None else eqn.phase

    def _search(self, output: int) -> dict[int, Flow]:
        same = self._unchanged(output)
        most_steps = math.inf if self._tensors[output].shape else _MOST_SCALAR_STEPS
        found: dict[int, Flow] = {}
        seen: set[tuple[int, tuple[int, ...], bool]] = set()
        queue: list[tuple[int, int, tuple[int, ...], bool]] = [(0, output, (), False)]
        while queue:
            steps, t, permutation, is_written = heapq.heappop(queue)
            if (t, permutation, is_written) in seen:
                continue
            seen.add((t, permutation, is_written))
            if t in self._position:
                position = self._position[t]
                if not permutation and (is_written or position not in found):
                    steps = min(steps, found[position].steps) if position in found else steps
                    kind: FlowKind = "unchanged" if t == same else "updated"
                    found[position] = Flow(steps=steps, kind=kind, is_written=is_written)
                continue
            for source in self._sources(t):
                if (permutation and not source.keeps_rank) or steps + source.steps > most_steps:
                    continue
                through = _composed(permutation, source.permutation)
                written = is_written or source.is_written
                heapq.heappush(queue, (steps + source.steps, source.tensor, through, written))
        return found

    def _unchanged(self, t: int) -> int:
        """The tensor that a value is a copy of, through barriers and carries that no trip changes."""
        while True:
            eqn = self._producer.get(t)
            if eqn is None:
                return t
            is_carry = eqn.name == REGION_OUT and eqn.params["role"] == "carry"
            if (
                (is_carry and self._unchanged(eqn.operands[1]) == self._unchanged(eqn.operands[0]))
                or (eqn.name in _IDENTITIES and len(eqn.operands) == 1)
                or (eqn.name == REGION_IN and eqn.params["role"] != "x" and self._is_kept(t))
            ):
                t = eqn.operands[0]
            else:
                return t

    def _is_kept(self, inner: int) -> bool:
        """Whether every trip has the same value of a carry; of other roles it always has."""
        return self._next_trip.get(inner, inner) == inner

    def _sources(self, t: int) -> Iterator[_Source]:
        eqn = self._producer.get(t)
        if eqn is None:
            return
        name, operands = eqn.name, eqn.operands
        position = eqn.results.index(t)
        if name in (REGION_IN, REGION_OUT):
            yield from self._boundary(eqn)
        elif name in _IDENTITIES:
            yield _Source(operands[min(position, len(operands) - 1)], 0)
        elif name == "transpose":
            yield _Source(operands[0], 0, permutation=tuple(eqn.params["permutation"]))
        elif name in _RESHAPES or (name == "broadcast_in_dim" and self._same_size(operands[0], t)):
            yield _Source(operands[0], 0, keeps_rank=False)
        elif name in _WINDOWS or name == "gather":
            yield _Source(operands[0], _WINDOW_STEP, keeps_rank=name not in _RANK_CHANGING)
        elif name == "concatenate":
            yield from (_Source(operand, _WINDOW_STEP) for operand in operands)
        elif name == "sort":
            yield _Source(operands[position], _WINDOW_STEP)
        elif name == "dynamic_update_slice" or name.startswith("scatter"):
            yield _Source(operands[0], _WINDOW_STEP, is_written=True)
            written = operands[1] if name == "dynamic_update_slice" else operands[2]
            yield _Source(written, _WRITTEN_VALUE_STEP, keeps_rank=name == "dynamic_update_slice")
        elif name == "tridiagonal_solve":
            yield _Source(operands[3], _WINDOW_STEP)
        elif name == "shard_map":
            yield from self._inside(eqn, position)
        elif name in ("scan", "while"):
            yield from self._kept_carry(eqn, position)
        else:
            yield from self._operator(eqn, t, position)

    def _operator(self, eqn: Equation, t: int, position: int) -> Iterator[_Source]:
        """Operands of an element-wise operator, and of a kernel those that it writes in place."""
        tensors = self._tensors
        for operand, result in _in_place(eqn.params):
            if (
                result == position
                and operand < len(eqn.operands)
                and self._same_size(eqn.operands[operand], t)
            ):
                yield _Source(eqn.operands[operand], _WINDOW_STEP, is_written=True)
        avals = [tensors[o] for o in eqn.operands], [tensors[r] for r in eqn.results]
        if operator_rule(eqn.name, *avals, eqn.params).family == "elementwise":
            for operand in eqn.operands:
                if tensors[operand].shape == tensors[t].shape and tensors[operand].kind != "literal":
                    yield _Source(operand, _ELEMENTWISE_STEP)

    def _boundary(self, eqn: Equation) -> Iterator[_Source]:
        role, operands = eqn.params["role"], eqn.operands
        if eqn.name == REGION_IN:
            yield _Source(operands[0], 0, keeps_rank=role != "x")
            if eqn.results[0] in self._next_trip:
                yield _Source(self._next_trip[eqn.results[0]], 0)
        elif role == "carry":
            yield _Source(operands[1], 0)
            yield _Source(operands[0], _ELEMENTWISE_STEP)
        else:
            yield from (_Source(operand, 0, keeps_rank=role != "y") for operand in operands)

    def _inside(self, eqn: Equation, position: int) -> Iterator[_Source]:
        """Through the body of a `jax.shard_map`: its results have the dimensions of its operands."""
        if eqn.index not in self._bodies:
            from jaxplan.ir._user_sharding import inline_body  # it registers with the builder, which traces

            tensors, equations, inputs, outputs = inline_body(eqn.params["jaxpr"])
            inner = Successors(tensors, equations, inputs)
            self._bodies[eqn.index] = tuple(inner.flows(o) for o in outputs)
        for operand, flow in self._bodies[eqn.index][position].items():
            yield _Source(eqn.operands[operand], max(flow.steps, 1), flow.is_written, keeps_rank=False)

    def _kept_carry(self, eqn: Equation, position: int) -> Iterator[_Source]:
        """The carry of a loop with effects, which stays one operator."""
        if eqn.name == "scan":
            first, num_carry = _compat.scan_counts(eqn.params, len(eqn.operands))
        else:
            first = eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
            num_carry = len(eqn.operands) - first
        if position < num_carry:
            yield _Source(eqn.operands[first + position], _ELEMENTWISE_STEP)

    def _same_size(self, a: int, b: int) -> bool:
        return self._tensors[a].num_elements == self._tensors[b].num_elements


def _composed(outer: tuple[int, ...], inner: tuple[int, ...] | None) -> tuple[int, ...]:
    """The permutation of a path and one more operator; ``()`` is the identity."""
    if inner is None:
        return outer
    through = tuple(inner[d] for d in outer) if outer else inner
    return () if through == tuple(range(len(through))) else through


def _in_place(params: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """(operand, result) pairs that a kernel declares to share a buffer (Pallas and FFI calls)."""
    aliases = params.get("input_output_aliases") or ()
    return tuple(aliases.items()) if isinstance(aliases, Mapping) else tuple(map(tuple, aliases))
