"""Arrays in memory that weight gradients read, and how long anything else reads them."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping

from jaxplan.cost._plan_shardings import PlanShardings
from jaxplan.cost._transfers import Transfer
from jaxplan.ir import Equation
from jaxplan.mesh import Sharding
from jaxplan.xla import Buffers

_Array = int | tuple[int, Sharding]
"""An array in memory: a tensor as it is made, or its copy in another sharding."""


class DeferredArrays:
    """The arrays that gradients of one plan keep alive while they are deferred.

    Args:
      shardings: of the plan.
      buffers: as if every dot ran where the program has it.
      making: equations that make gradients.
      padded: convolution -> bytes of the padded copy that it is the last to read, instead of its image.
    """

    def __init__(
        self, shardings: PlanShardings, buffers: Buffers, making: Collection[int], padded: Mapping[int, int]
    ) -> None:
        self._shardings, self._materialised, self._making = shardings, buffers.materialised, frozenset(making)
        self._in_order, self._padded = sorted(making), {e: size for e, size in padded.items() if size}
        self._graph = shardings.graph
        self._end = len(self._graph.program.equations)
        self._outputs = frozenset(self._graph.program.outputs)
        self._deaths: dict[_Array, int] = {}
        self._read: dict[int, frozenset[_Array]] = {}

    def num_bytes(self, place: int, waiting: Iterable[int]) -> int:
        """On one device, of the arrays that the ``waiting`` gradients read and nothing else does from ``place`` on."""
        waiting = list(waiting)
        arrays = {array for e in waiting for array in self._read_by(e) if self._death(array) < place}
        return self._num_bytes(waiting, arrays)

    def num_bytes_in_trip(self, place: int, waiting: Collection[int], start: int) -> int:
        """`num_bytes` of ``waiting`` dots of a loop that begins at ``start``: of arrays that are made in the trip, with
        those that are computed element by element and read from ``place`` on."""

        def is_held(array: _Array) -> bool:
            t = array[0] if isinstance(array, tuple) else array
            is_inside = self._graph.values.producer[t] >= start
            return is_inside and (self._is_computed(t) or self._death(array) < place)

        return self._num_bytes(waiting, {array for e in waiting for array in self._read_by(e) if is_held(array)})

    def computed(self, waiting: Iterable[int]) -> frozenset[int]:
        """The tensors that are computed element by element, and that these equations read in the sharding in which they
        are made."""
        read = (array for e in waiting for array in self._read_by(e) if isinstance(array, int))
        return frozenset(t for t in read if self._is_computed(t))

    def _is_computed(self, t: int) -> bool:
        made = self._graph.values.producer[t]
        if made < 0 or self._graph.program.equations[made].name == "optimization_barrier":
            return False
        return self._graph.rules[made].family == "elementwise"

    def _num_bytes(self, waiting: Iterable[int], arrays: Iterable[_Array]) -> int:
        padded = sum(self._padded.get(e, 0) for e in waiting)
        return padded + sum(self._shardings.local_bytes(*(a if isinstance(a, tuple) else (a, None))) for a in arrays)

    def num_bytes_between(self, place: int, complete: int) -> int:
        """`num_bytes` of the gradients that equations after ``complete`` and before ``place`` make."""
        first, last = bisect.bisect_right(self._in_order, complete), bisect.bisect_left(self._in_order, place)
        return self.num_bytes(place, self._in_order[first:last])

    def _read_by(self, equation: int) -> frozenset[_Array]:
        """The arrays in memory, made by the step, that an equation reads, or computes its operands from."""
        if equation not in self._read:
            self._read[equation] = frozenset(self._sources(self._graph.program.equations[equation]))
        return self._read[equation]

    def _sources(self, eqn: Equation) -> Iterator[_Array]:
        copy_of, producer = self._shardings.copy_of, self._graph.values.producer
        operands = eqn.operands[1:] if eqn.index in self._padded else eqn.operands
        stack, seen = [_array_held(t, copy_of(eqn, t)) for t in operands], set[_Array]()
        while stack:
            array = stack.pop()
            if array in seen:
                continue
            seen.add(array)
            t = array[0] if isinstance(array, tuple) else array
            if self._graph.values.free[t] or (producer[t] < 0 and array == t):
                continue
            if array != t or self._materialised[t]:
                yield array
            else:
                made_by = self._graph.program.equations[producer[t]]
                stack.extend(_array_held(u, copy_of(made_by, u)) for u in made_by.operands)

    def _death(self, array: _Array) -> int:
        """The last equation, no gradient among them, that reads an array, itself or fused; -1: none."""
        stack = [array]
        while stack:
            now = stack[-1]
            if now in self._deaths:
                stack.pop()
                continue
            readers = list(self._readers(now))
            fused = [r for e in readers for r in self._graph.program.equations[e].results if not self._materialised[r]]
            if unknown := [r for r in fused if r not in self._deaths]:
                stack.extend(unknown)
                continue
            last = self._end if now in self._outputs else -1
            self._deaths[stack.pop()] = max([last, *readers, *(self._deaths[r] for r in fused)])
        return self._deaths[array]

    def _readers(self, array: _Array) -> Iterator[int]:
        t = array[0] if isinstance(array, tuple) else array
        for e in self._graph.values.consumers[t]:
            copy = self._shardings.copy_of(self._graph.program.equations[e], t)
            if e not in self._making and _array_held(t, copy) == array:
                yield e


def _array_held(t: int, copy: Transfer | None) -> _Array:
    """The array in memory for a read: a slice of an array that every device has is cut out where it is read."""
    return (t, copy.target) if copy and copy.collectives else t
