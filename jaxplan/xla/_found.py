"""The effects of the rules of a stage on a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from jaxplan.xla._effects import Effect
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import Stage
from jaxplan.xla.rules import rules_of

E = TypeVar("E")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Effects by kind, those of each in the order in which they were found."""

    kinds: Mapping[type, tuple[Effect, ...]] = field(default_factory=dict)

    @classmethod
    def of_effects(cls, effects: Iterable[Effect]) -> Found:
        """Those of several stages, one after the other."""
        kinds: dict[type, list[Effect]] = defaultdict(list)
        for effect in effects:
            kinds[type(effect)].append(effect)
        return cls(kinds={kind: tuple(found) for kind, found in kinds.items()})

    def of(self, kind: type[E]) -> tuple[E, ...]:
        """The effects of a kind; empty where no rule has any."""
        return self.kinds.get(kind, ())  # pyright: ignore[reportReturnType]

    def has(self, kind: type) -> bool:
        """Whether a rule has an effect of a kind."""
        return kind in self.kinds

    def __or__(self, other: Found) -> Found:
        every = (effect for found in (self, other) for effects in found.kinds.values() for effect in effects)
        return Found.of_effects(every)


def effects(facts: Facts, stage: Stage) -> Iterator[Effect]:
    """The effects of all rules of a stage, by priority; a rule is asked when those before it have been taken."""
    for rule in rules_of(facts.target, stage):
        yield from rule.find(facts)
