"""From a description to a factor rule, partition-n-reduce strategies, and reasons where there is none (Tofu 3.2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.ir._rule import Dimension, Factor, FactorKind, OperatorRule, Reducer, Shape, TensorFactors
from jaxplan.ir.tdl._dimensions import Patterns
from jaxplan.ir.tdl._expression import Variable
from jaxplan.ir.tdl._language import Description, DescriptionFn, run_description
from jaxplan.ir.tdl._linear import family_of, linear_sets
from jaxplan.ir.tdl._operations import operations_of
from jaxplan.ir.tdl._reads import Reads, find_reads
from jaxplan.ir.tdl._regions import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The consequences of a description for splitting.

    Attributes:
      rule: the factor rule.
      strategies: one per variable that may be split, in order of appearance.
      refused: name of a variable -> why it may not be split.
      operations: how many it spells out (`operations_of`), None where an ``Opaque`` function does some of them.
    """

    rule: OperatorRule
    strategies: tuple[Strategy, ...]
    refused: Mapping[str, str]
    operations: float | None = None

    def strategy(self, variable: str) -> Strategy:
        """The strategy that splits a variable, by its name."""
        return next(strategy for strategy in self.strategies if strategy.variable == variable)

    def __str__(self) -> str:
        lines = [str(self.rule), *map(str, self.strategies)]
        return "\n".join([*lines, *(f"{name}: not split: {reason}" for name, reason in self.refused.items())])


def analyse(
    description: DescriptionFn,
    in_shapes: Sequence[Shape],
    out_shapes: Sequence[Shape],
    params: Mapping[str, Any] | None = None,
    *,
    family: str | None = None,
    manual: bool = False,
) -> Analysis:
    """Analyse a description for operands and results of these shapes.

    Args:
      description: a function of operands, see `jaxplan.ir.tdl._language`.
      params: values of its keyword-only parameters.
      family: as in `OperatorRule`; None: as the description suggests.
      manual: as in `OperatorRule`.

    Raises:
      RuleError: arity, rank or ranges do not match, a read lies outside of its operand, an index is not affine.
    """
    described = run_description(description, in_shapes, out_shapes, params or {})
    reads = find_reads(described)
    patterns = Patterns(described, reads)
    builder = _RuleBuilder(described, reads, patterns)
    has_window = any(factor.kind == "window" for factor in builder.factors)
    rule = OperatorRule(
        factors=tuple(builder.factors),
        operands=builder.operands,
        results=builder.results,
        family=family or family_of(described, has_window),
        linear=linear_sets(described),
        manual=manual,
    )
    strategies = tuple(
        Strategy.of(described, reads, patterns, members, builder.kind[members[0]])
        for members in patterns.classes()
        if builder.kind.get(members[0]) not in (None, "whole")
    )
    refused = {v.name: reason for v, reason in patterns.refused.items() if v in builder.kind}
    return Analysis(
        rule=rule,
        strategies=strategies,
        refused=refused,
        operations=operations_of(described, reads.sizes),
    )


class _RuleBuilder:
    """Numbers the factors: classes of variables first, then dimensions that are whole by themselves.

    Attributes:
      factors, operands, results: as in `OperatorRule`.
      kind: variable -> kind of its factor, for variables that have one.
    """

    def __init__(self, described: Description, reads: Reads, patterns: Patterns) -> None:
        self._described, self._reads, self._patterns = described, reads, patterns
        self.factors: list[Factor] = []
        self.kind: dict[Variable, FactorKind] = {}
        self._index: dict[Variable, int] = {}
        self._names: set[str] = set()
        for members in patterns.classes():
            self._add_class(members)
        self.operands = tuple(self._operand(i) for i in range(len(described.in_shapes)))
        self.results = tuple(tuple(map(self._held_by, variables)) for variables in described.variables)

    def _add_class(self, members: list[Variable]) -> None:
        size, patterns = self._reads.sizes.get(members[0], 1), self._patterns
        if size == 1 or not (self._is_read(members) or members[0].kind == "result"):
            return
        parts = [
            p.num_parts for p in patterns.of.values() if p.kind == "window" and p.variables[0] in members
        ]
        is_repeated = any(len(places) > 1 for places in patterns.places(members))
        kind, reducer = self._kind_of(members, bool(parts))
        for variable in members:
            self.kind[variable] = kind
            if not is_repeated and not (kind == "whole" and not self._is_shared(members)):
                self._index[variable] = len(self.factors)
        if members[0] in self._index:
            size = math.gcd(size, *parts) if kind == "window" else size
            self._new(size, kind, reducer, members[0].name)

    def _kind_of(self, members: list[Variable], has_window: bool) -> tuple[FactorKind, Reducer | None]:
        if members[0] in self._patterns.refused:
            return "whole", None
        if members[0].kind == "reduction":
            return "reduce", members[0].reducer
        return ("window" if has_window else "map"), None

    def _is_read(self, members: list[Variable]) -> bool:
        return any(set(pattern.variables) & set(members) for pattern in self._patterns.of.values())

    def _is_shared(self, members: list[Variable]) -> bool:
        """Whether a dimension holds the variable itself, so that a whole factor can stand in it."""
        carried = {
            v for p in self._patterns.of.values() if p.kind in ("carries", "patches") for v in p.variables
        }
        return members[0].kind == "result" or bool(carried & set(members))

    def _new(self, size: int, kind: FactorKind, reducer: Reducer | None = None, name: str = "w") -> Dimension:
        if size == 1:
            return ()
        names = (f"{name}{n}" for n in itertools.count(2))
        name = name if name not in self._names else next(n for n in names if n not in self._names)
        self._names.add(name)
        self.factors.append(Factor(size=size, kind=kind, reducer=reducer, name=name))
        return (len(self.factors) - 1,)

    def _held_by(self, variable: Variable) -> Dimension:
        """The dimension that a variable indexes alone."""
        if variable in self._index:
            return (self._index[variable],)
        return self._new(self._reads.sizes[variable], "whole")

    def _operand(self, operand: int) -> TensorFactors:
        shape = self._described.in_shapes[operand]
        return tuple(
            self._dimension(self._patterns.of[operand, axis], size) for axis, size in enumerate(shape)
        )

    def _dimension(self, pattern: Any, size: int) -> Dimension:
        variables = pattern.variables
        if pattern.kind == "carries":
            held = [self._held_by(v) for v in variables if self._reads.sizes[v] != 1]
            return tuple(index for dimension in held for index in dimension)
        if pattern.kind == "patches":
            return self._held_by(variables[0]) + self._new(pattern.stride, "whole")
        if pattern.kind == "window" and self.kind.get(variables[0]) == "window":
            return self._held_by(variables[0])
        return self._new(size, "whole")
