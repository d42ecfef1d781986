"""Third pass: which tensors are buffers, by the effects of the rules on fusion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from jaxplan.errors import RuleError
from jaxplan.xla._effects import Accumulate, Effect, Fuse, Write
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import CompilerRule
from jaxplan.xla.rules import rules_of

_DISAGREEMENT_MSG = (
    "compiler rules {one!r} and {other!r} disagree on whether tensor {tensor} is a buffer; expected different "
    "priorities of rules that may disagree: state which of them is right (CompilerRule.priority)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """The result of the fusion pass: the materialised values.

    Attributes:
      written: per tensor, whether it is a buffer.
      decided_by: per tensor, the name of the rule that decided it last; None: no rule, it is computed by its readers.
      blocks, transposes: buffers only where local shapes say so -> the dimensions (`Write`).
      sums: dots that a library call adds to a sum.
      sums_alone: those of them (equations) with a result that is a buffer for that reason alone.
      others: effects that later passes apply.
    """

    written: list[bool]
    decided_by: list[str | None]
    blocks: Mapping[int, tuple[int, ...]]
    transposes: Mapping[int, tuple[int, ...]]
    sums: tuple[Accumulate, ...]
    sums_alone: frozenset[int]
    others: tuple[Effect, ...]


def fuse(facts: Facts, *, conditional: bool = True) -> Fused:
    """The buffers of a step; without ``conditional`` those that every configuration has.

    Raises:
      RuleError: two rules of equal priority disagree.
    """
    pass_ = _FusionPass(facts)
    for rule in rules_of(facts.target, "fusion"):
        for effect in rule.find(pass_.facts):
            if conditional or not isinstance(effect, Write) or not effect.is_conditional:
                pass_.apply(rule, effect)
    return Fused(
        written=pass_.written,
        decided_by=pass_.decided_by,
        blocks=pass_.blocks,
        transposes=pass_.transposes,
        sums=tuple(sorted(effect for _, effect in pass_.sums)),
        sums_alone=frozenset(pass_.sums_alone()),
        others=tuple(pass_.others),
    )


class _FusionPass:
    """The state of the pass; rules look at ``written`` as far as it has come."""

    def __init__(self, facts: Facts) -> None:
        number = len(facts.tensors)
        self.written, self.decided_by = [False] * number, list[str | None]([None] * number)
        self._priority = [-1] * number
        self.facts = replace(facts, written=self.written)
        self.blocks: dict[int, tuple[int, ...]] = {}
        self.transposes: dict[int, tuple[int, ...]] = {}
        self.sums: list[tuple[str, Accumulate]] = []
        self.others: list[Effect] = []

    def apply(self, rule: CompilerRule, effect: Effect) -> None:
        """Take one effect of a rule into account."""
        if isinstance(effect, Accumulate):
            self.sums.append((rule.name, effect))
            if not effect.replaces:
                self._decide(rule, effect.other, True)
            self._decide(rule, self.facts.equations[effect.equation].results[0], True)
        elif isinstance(effect, Fuse):
            self._decide(rule, effect.tensor, False)
        elif isinstance(effect, Write):
            if self._is_constant(effect.tensor) and not effect.constant:  # readers compute it
                self.written[effect.tensor], self.decided_by[effect.tensor] = False, None
                return
            if effect.blocks is not None:
                self.blocks[effect.tensor] = effect.blocks
            if effect.transposes is not None:
                self.transposes[effect.tensor] = effect.transposes
            self._decide(rule, effect.tensor, True)
        else:
            self.others.append(effect)

    def sums_alone(self) -> Iterator[int]:
        """Sums with a result that the rule on them decided."""
        for name, effect in self.sums:
            (result,) = self.facts.equations[effect.equation].results
            if self.decided_by[result] == name:
                yield effect.equation

    def _is_constant(self, t: int) -> bool:
        return self.facts.graph.values.free[t] or self.facts.tensors[t].kind == "literal"

    def _decide(self, rule: CompilerRule, t: int, is_written: bool) -> None:
        other = self.decided_by[t]
        if other is not None and self.written[t] != is_written and self._priority[t] == rule.priority:
            raise RuleError(_DISAGREEMENT_MSG.format(one=other, other=rule.name, tensor=t))
        if other is None or self.written[t] != is_written:
            self.decided_by[t], self._priority[t] = rule.name, rule.priority
        self.written[t] = is_written
