"""How each dimension of an operand is read, and its consequence for splitting: the pieces must line up.

A part of a variable reads an interval of every dimension that it indexes. If that is the same part of the dimension,
the dimension carries the variable; if it reaches beyond, it is a window with a halo; otherwise it is whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxplan.ir._union import UnionFind
from jaxplan.ir.tdl._expression import Index, Variable, Whole
from jaxplan.ir.tdl._language import Description
from jaxplan.ir.tdl._reads import Reads

PatternKind = Literal["one", "carries", "patches", "window", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """How one dimension of an operand is read.

    Attributes:
      kind: ``one`` (size 1); ``carries`` variables, major to minor, each by itself; ``patches`` (side by side, one
        per value of the variable); ``window`` (parts reach into their neighbours); ``whole``.
      variables: the variables that it can be split by.
      stride: elements from one patch or window to the next.
      num_parts: largest number of equal parts of a window.
    """

    kind: PatternKind
    variables: tuple[Variable, ...] = ()
    stride: int = 1
    num_parts: int = 0


class Patterns:
    """Patterns of all dimensions, classes of variables that are split together, and reasons against splitting.

    Attributes:
      of: (operand, dimension) -> its pattern; dimensions that are not read at all are whole.
      refused: variable -> why it may not be split; the reason of one variable holds for its class.
    """

    def __init__(self, description: Description, reads: Reads) -> None:
        self._description, self._reads = description, reads
        self._variables = list(reads.owner)
        self._node = {variable: i for i, variable in enumerate(self._variables)}
        self._union = UnionFind(len(self._variables))
        self.refused = dict(reads.refused)
        self.of: dict[tuple[int, int], Pattern] = {}
        for operand, shape in enumerate(description.in_shapes):
            for axis, size in enumerate(shape):
                self.of[operand, axis] = self._pattern(operand, axis, size)
        self._refuse_repeats()

    def classes(self) -> list[list[Variable]]:
        """Variables that are split together, in order of appearance."""
        members: dict[int, list[Variable]] = {}
        for variable in self._variables:
            members.setdefault(self._union.find(self._node[variable]), []).append(variable)
        return list(members.values())

    def _pattern(self, operand: int, axis: int, size: int) -> Pattern:
        reads = [(number, e.index[axis]) for number, e in self._reads.elements if e.operand == operand]
        if size == 1:
            return Pattern(kind="one")
        name = f"dimension {axis} of {self._description.operand_names[operand]}"
        indices = [(number, entry) for number, entry in reads if isinstance(entry, Index)]
        slices = [entry for _, entry in reads if isinstance(entry, Whole)]
        if slices or not all(index.terms for _, index in indices):
            what = slices[0].reason if slices else "one element of it is read by its number"
            return self._whole(indices, f"{name} is needed whole: {what}")
        if not indices:
            return Pattern(kind="whole")
        mixed = self._mixed_radix(indices, size)
        if mixed:
            return self._carries(indices, mixed, name)
        return self._strided(indices, size, name)

    def _whole(self, indices: Sequence[tuple[int, Index]], reason: str) -> Pattern:
        for _, index in indices:
            self._refuse(index.variables, reason)
        return Pattern(kind="whole")

    def _refuse(self, variables: Sequence[Variable], reason: str) -> None:
        for variable in variables:
            self.refused.setdefault(variable, reason)

    def _mixed_radix(self, indices: Sequence[tuple[int, Index]], size: int) -> list[tuple[Variable, ...]]:
        """Variables per read, major to minor, if each read counts through the dimension once: ``a[4 * i + j]``."""
        found = []
        for _, index in indices:
            terms = sorted(index.terms, key=lambda term: -term[1])
            expected = size
            for variable, factor in terms:
                expected, rest = divmod(expected, self._size(variable))
                if rest or factor != expected:
                    return []
            if expected != 1 or index.constant:
                return []
            found.append(tuple(variable for variable, _ in terms))
        return found

    def _size(self, variable: Variable) -> int:
        """Range of a variable; one of unknown range in an opaque argument matches nothing."""
        return self._reads.sizes.get(variable) or -1

    def _carries(
        self, indices: Sequence[tuple[int, Index]], mixed: list[tuple[Variable, ...]], name: str
    ) -> Pattern:
        first = mixed[0]
        sizes = [list(map(self._size, variables)) for variables in mixed]
        if any(other != sizes[0] for other in sizes):
            return self._whole(indices, f"{name} is read in several ways")
        for minor in {v for variables in mixed for v in variables[1:] if v.kind == "reduction"}:
            self._refuse([minor], f"its parts are interleaved in {name}")
        for variables in zip(*mixed):
            self._join(variables, [number for number, _ in indices], name)
        return Pattern(kind="carries", variables=first)

    def _join(self, variables: Sequence[Variable], numbers: Sequence[int], name: str) -> None:
        """Variables that read a dimension alike are one, unless one result uses two of them, or they differ in kind."""
        distinct = dict(zip(variables, numbers))
        if len(set(distinct.values())) < len(distinct):
            words = " and ".join(map(str, distinct))
            self._refuse(list(distinct), f"{name} is read at {words} for one result")
        elif len({(v.kind, v.reducer) for v in distinct}) > 1:
            self._refuse(list(distinct), f"{name} is mapped for one result and reduced for another")
        first = next(iter(distinct))
        for variable in distinct:
            self._union.join(self._node[first], self._node[variable])

    def _strided(self, indices: Sequence[tuple[int, Index]], size: int, name: str) -> Pattern:
        """Reads at ``stride * x + rest``."""
        majors = [self._major(index) for _, index in indices]
        text = str(indices[0][1])
        for (_, index), major in zip(indices, majors):
            others = [v for v in index.variables if v is not major]
            self._refuse(others, f"{name} is read at {text}: its parts overlap or interleave there")
        strides = {dict(index.terms)[v] for (_, index), v in zip(indices, majors) if v is not None}
        values = {self._size(v) for v in majors if v is not None}
        if None in majors or len(strides) != 1 or len(values) != 1 or min(strides) < 0:
            return self._whole(indices, f"{name} is read at {text}: a part of the index is no part of it")
        known = [major for major in majors if major is not None]
        self._join(known, [number for number, _ in indices], name)
        stride, num_values = strides.pop(), values.pop()
        first, last = self._rest(indices, majors)
        if size == stride * num_values and first >= 0 and last < stride:
            return Pattern(kind="patches", variables=(known[0],), stride=stride)
        num_parts = math.gcd(size, num_values)
        if num_parts == 1:
            return self._whole(
                indices, f"{num_values} values of it and {size} elements of {name} have no equal parts"
            )
        if last - first >= min(size, num_values):
            return self._whole(
                indices, f"a window of {last - first + 1} in {name} reaches beyond the next part"
            )
        return Pattern(kind="window", variables=(known[0],), stride=stride, num_parts=num_parts)

    def _major(self, index: Index) -> Variable | None:
        """The result variable of the widest range; a reduction over overlapping reads cannot be split."""
        ranked = [v for v in index.variables if v.kind == "result"]
        return max(ranked, key=self._size, default=None)

    def _rest(
        self, indices: Sequence[tuple[int, Index]], majors: Sequence[Variable | None]
    ) -> tuple[int, int]:
        """First and last element that is read, counted from ``stride * x``."""
        first, last = [], []
        for (_, index), major in zip(indices, majors):
            reach = [factor * (self._size(v) - 1) for v, factor in index.terms if v is not major]
            first.append(index.constant + sum(min(r, 0) for r in reach))
            last.append(index.constant + sum(max(r, 0) for r in reach))
        return min(first), max(last)

    def _refuse_repeats(self) -> None:
        """A variable that indexes two dimensions of one tensor: a part of it is a block on the diagonal."""
        for members in self.classes():
            for places in self.places(members):
                if len(places) > 1:
                    self._refuse(members, f"it indexes {' and '.join(places)}")
            reason = next((self.refused[v] for v in members if v in self.refused), None)
            if reason is not None:
                self._refuse(members, reason)

    def places(self, members: Sequence[Variable]) -> list[list[str]]:
        """Per operand the dimensions that a class of variables indexes, in words."""
        names, shapes = self._description.operand_names, self._description.in_shapes
        return [
            [
                f"dimension {a} of {name}"
                for a in range(len(shape))
                if set(self.of[i, a].variables) & set(members)
            ]
            for i, (name, shape) in enumerate(zip(names, shapes))
        ]
