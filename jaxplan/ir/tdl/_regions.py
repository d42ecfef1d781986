"""Which elements each worker reads when one variable is split, and how far that reaches into its neighbours' parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.errors import RuleError
from jaxplan.ir._rule import FactorKind, Reducer, Shape
from jaxplan.ir.tdl._expression import Element, Index, Variable
from jaxplan.ir.tdl._interval import Interval, index_interval, part_of
from jaxplan.ir.tdl._language import Description

Region = tuple[tuple[int, int], ...]
Halo = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Partition-n-reduce along one variable.

    Attributes:
      variable: its name.
      kind: ``map`` or ``window`` (results are put side by side), ``reduce`` (they are joined by ``reducer``).
      reducer: for ``reduce``.
      operand_names: names of the operands.
      in_shapes: their shapes.
      members: the variables that are split together; one, unless there are several results.
      carried: (operand, dimension) pairs that are split with it.
    """

    variable: str
    kind: FactorKind
    reducer: Reducer | None
    operand_names: tuple[str, ...]
    in_shapes: tuple[Shape, ...]
    members: tuple[Variable, ...]
    carried: tuple[tuple[int, int], ...]
    _elements: tuple[Element, ...]
    _sizes: dict[Variable, int]

    @classmethod
    def of(
        cls, described: Description, reads: Any, patterns: Any, members: Sequence[Variable], kind: FactorKind
    ) -> Strategy:
        """The strategy of a class of variables."""
        return cls(
            variable=members[0].name,
            kind=kind,
            reducer=members[0].reducer,
            operand_names=described.operand_names,
            in_shapes=described.in_shapes,
            members=tuple(members),
            carried=tuple(place for place, p in patterns.of.items() if set(p.variables) & set(members)),
            _elements=tuple(element for _, element in reads.elements),
            _sizes=reads.sizes,
        )

    def symbolic_region(self, operand: int, part: int = 0, num_parts: int = 2) -> tuple[Interval | None, ...]:
        """Per dimension of an operand the symbolic interval that a worker reads; None: all of it.

        Where an operand is read several times, it is the first read.
        """
        element = next((e for e in self._elements if e.operand == operand), None)
        if element is None:
            return (None,) * len(self.in_shapes[operand])
        return tuple(self._interval(entry, part, num_parts) for entry in element.index)

    def input_regions(self, part: int, num_parts: int) -> tuple[Region | None, ...]:
        """Per operand and dimension first element and stop that one worker reads; None: the operand is not read.

        Several reads are joined to the smallest region that holds them. The part outside of the operand (padding)
        is left out.

        Raises:
          RuleError: the variable's range has no so many equal parts.
        """
        self._check_parts(part, num_parts)
        return tuple(self._region(operand, part, num_parts) for operand in range(len(self.in_shapes)))

    def halo(self, operand: int, num_parts: int) -> Halo:
        """Per dimension how many elements before and after its own equal part a worker reads, at most.

        Dimensions that are not split have no halo: every worker has them whole.
        """
        shape = self.in_shapes[operand]
        reach = [[0, 0] for _ in shape]
        for part in range(num_parts):
            region = self.input_regions(part, num_parts)[operand]
            for axis, size in enumerate(shape):
                if region is not None and (operand, axis) in self.carried and self.kind == "window":
                    first, stop = region[axis]
                    reach[axis][0] = max(reach[axis][0], size * part // num_parts - first)
                    reach[axis][1] = max(reach[axis][1], stop - size * (part + 1) // num_parts)
        return tuple((before, after) for before, after in reach)

    def _check_parts(self, part: int, num_parts: int) -> None:
        size = self._sizes[self.members[0]]
        if not 0 <= part < num_parts or size % num_parts:
            raise RuleError(f"{self.variable} of range {size} has no part {part} of {num_parts} equal parts")

    def _interval(self, entry: Any, part: int, num_parts: int) -> Interval | None:
        if not isinstance(entry, Index) or any(v not in self._sizes for v in entry.variables):
            return None
        return index_interval(entry, {v: part_of(v, part, num_parts) for v in self.members})

    def _region(self, operand: int, part: int, num_parts: int) -> Region | None:
        reads = [element for element in self._elements if element.operand == operand]
        if not reads:
            return None
        region = []
        for axis, size in enumerate(self.in_shapes[operand]):
            intervals = [self._interval(read.index[axis], part, num_parts) for read in reads]
            ends = [(0, size) if i is None else i.at(self._sizes) for i in intervals]
            first, stop = min(first for first, _ in ends), max(stop for _, stop in ends)
            region.append((max(first, 0), min(stop, size)))
        return tuple(region)

    def __str__(self) -> str:
        """Such as ``b: side by side; data [0, B/2), [0, CI), [0, X + DX - 1)`` for the first of two workers."""
        joined = f"joined by {self.reducer}" if self.kind == "reduce" else "side by side"
        reads = []
        for operand, name in enumerate(self.operand_names):
            words = [":" if i is None else str(i) for i in self.symbolic_region(operand)]
            reads.append(f"{name} {', '.join(words)}".strip())
        return f"{self.variable}: {self.kind}, {joined}; first of two reads {'; '.join(reads)}"
