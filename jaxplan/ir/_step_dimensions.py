"""A step by named dimensions: which of them operators map, the arithmetic that each covers, and those of data.

Arithmetic is counted in points of iteration spaces, over all trips of loops.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxplan.core._interner import Remembered
from jaxplan.ir._dimensions import NamedDimensions
from jaxplan.ir._grouping import CONTRACTION_FAMILIES
from jaxplan.ir._program import Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._values import Values

_MOVING_FAMILIES = frozenset({"region", "shape", "source"})
_CUTTING_PRIMITIVES = frozenset({"slice", "dynamic_slice", "split"})


@dataclass(frozen=True, kw_only=True)
class StepDimensions:
    """The named dimensions of a step.

    Attributes:
      program, rules, values, named: the step; a rule per equation.
      state: tensor indices of inputs that an output replaces.
    """

    program: Program
    rules: Sequence[OperatorRule]
    values: Values
    named: NamedDimensions
    state: frozenset[int]

    @cached_property
    def dims(self) -> list[tuple[int, ...]]:
        """Per tensor, the named dimension of each of its dimensions, -1 where it has none."""
        of = self.named.of
        return [tuple([of.get((t.index, d), -1) for d in range(len(t.shape))]) for t in self.program.tensors]

    @cached_property
    def points(self) -> list[int]:
        """Per equation the points of its iteration space; 0 for pure data movement, and for the update."""
        found = []
        for eqn, rule in zip(self.program.equations, self.rules, strict=True):
            counts = rule.family not in _MOVING_FAMILIES and eqn.phase != "update"
            counts = counts and not all(self.values.free[t] for t in eqn.results)
            found.append(self._points(eqn, rule) * self.trips(eqn) if counts else 0)
        return found

    def _points(self, eqn: Equation, rule: OperatorRule) -> int:
        if rule.family in CONTRACTION_FAMILIES:
            return math.prod(factor.size for factor in rule.factors)
        tensors = [self.program.tensors[t] for t in (*eqn.operands, *eqn.results)]
        return max((tensor.num_elements for tensor in tensors), default=0)

    def trips(self, eqn: Equation) -> int:
        return self.program.tensors[eqn.results[0]].trips if eqn.results else 1

    @cached_property
    def mapped(self) -> list[frozenset[int]]:
        """Per equation the named dimensions that it can be split by."""
        found = []
        for eqn, rule in zip(self.program.equations, self.rules, strict=True):
            held = {k: f for _, _, k, f in self.holders[eqn.index]}
            found.append(frozenset(k for k, f in held.items() if rule.factors[f].kind != "whole"))
        return found

    @cached_property
    def holders(self) -> list[list[tuple[bool, int, int, int]]]:
        """Per equation, (is an operand, tensor, named dimension, leading factor) of each dimension that carries one."""
        dims, places = self.dims, Remembered[list[tuple[int, int, int]]]()
        found = []
        for eqn, rule in zip(self.program.equations, self.rules, strict=True):
            tensors, num_operands = (*eqn.operands, *eqn.results), len(eqn.operands)
            of_rule = places.of(rule, lambda rule: _places(rule))
            held = ((p < num_operands, tensors[p], dims[tensors[p]][d], f) for p, d, f in of_rule)
            found.append([holder for holder in held if holder[2] >= 0])
        return found

    @cached_property
    def equations_with(self) -> dict[int, list[int]]:
        """Named dimension -> the equations with a tensor that has it, in program order."""
        found: dict[int, list[int]] = defaultdict(list)
        for eqn in self.program.equations:
            for k in {k for t in (*eqn.operands, *eqn.results) for k in self.dims[t]}:
                found[k].append(eqn.index)
        return found

    def covered(self, equations: Iterable[int]) -> dict[int, int]:
        """Named dimension -> arithmetic among ``equations`` that it is mapped by."""
        found: dict[int, int] = defaultdict(int)
        for e in equations:
            if self.points[e]:
                for k in self.mapped[e]:
                    found[k] += self.points[e]
        return found

    def uncovered(self, chosen: Iterable[int]) -> list[int]:
        """Equations that none of some dimensions splits."""
        dims = frozenset(chosen)
        return [e for e, mapped in enumerate(self.mapped) if self.points[e] and not mapped & dims]

    def is_trained(self, k: int) -> bool:
        return any(k in self.dims[t] for t in self.trained)

    @cached_property
    def trained(self) -> frozenset[int]:
        """State that is replaced by a result of the backward pass."""
        behind: set[int] = set()
        for eqn in self.program.equations:
            if eqn.phase == "backward" or not behind.isdisjoint(eqn.operands):
                behind.update(eqn.results)
        return frozenset(t for t, successor in self.program.state.items() if successor in behind)

    @cached_property
    def from_data(self) -> frozenset[int]:
        """Named dimensions of inputs that are no state, with those that are cut from them (micro-batches)."""
        found = {k for t in self.program.inputs if t not in self.state for k in self.dims[t] if k >= 0}
        for whole, part in self.cuts:
            if whole in found:
                found.add(part)
        return frozenset(found)

    @cached_property
    def cuts(self) -> list[tuple[int, int]]:
        """(named dimension, another that is cut from it), in program order: minor factors of it that lead a dimension
        of a result, and slices."""
        found: dict[tuple[int, int], None] = {}
        for eqn, rule in zip(self.program.equations, self.rules, strict=True):
            if rule.family not in ("shape", "gather"):
                continue
            for t, held in zip(eqn.operands, rule.operands, strict=True):
                for d, factors in enumerate(held):
                    for part in self._cut(eqn, rule, d, factors[1:]):
                        found[self.dims[t][d], part] = None
        return list(found)

    def _cut(self, eqn: Equation, rule: OperatorRule, d: int, minor: Sequence[int]) -> Iterator[int]:
        """Dimensions of results that are led by minor factors of an operand's dimension, or are slices of it."""
        for t, held in zip(eqn.results, rule.results, strict=True):
            if eqn.name in _CUTTING_PRIMITIVES:
                yield self.dims[t][d]
            for named, factors in zip(self.dims[t], held, strict=True):
                if factors and factors[0] in minor:
                    yield named

    @cached_property
    def position(self) -> dict[int, float]:
        """Named dimension -> at which place it stands in the tensors that have it, on average."""
        places: dict[int, list[int]] = defaultdict(list)
        for (_, d), k in self.named.of.items():
            places[k].append(d)
        return {k: sum(of) / len(of) for k, of in places.items()}

    def leading_to(self, wanted: Sequence[bool]) -> list[bool]:
        """Per tensor, whether one of the wanted is computed of it later in the program."""
        leads, counts = [False] * len(wanted), list(wanted)
        for eqn in reversed(self.program.equations):
            for result in eqn.results:
                if counts[result]:
                    for t in eqn.operands:
                        leads[t] = counts[t] = True
                    break
        return leads

    @cached_property
    def shown(self) -> list[bool]:
        """Per tensor, whether an array that replaces no state leaves the step and is computed of it."""
        successors, wanted = set(self.program.state.values()), [False] * len(self.program.tensors)
        for t in self.program.outputs:
            wanted[t] = t not in successors and bool(self.program.tensors[t].shape)
        return [w or leads for w, leads in zip(wanted, self.leading_to(wanted), strict=True)]


def _places(rule: OperatorRule) -> list[tuple[int, int, int]]:
    """(position among operands and results, dimension, leading factor) of each dimension that carries a factor."""
    held = enumerate((*rule.operands, *rule.results))
    return [(p, d, factors[0]) for p, dims in held for d, factors in enumerate(dims) if factors]
