"""Fourth pass: the residuals that the forward pass saves for the backward pass.

A backward fusion recomputes unmaterialised forward values from buffers: the narrowest such value of the
chain is the residual, or the first that is a buffer anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.xla._effects import (
    Compare,
    Effect,
    Fuse,
    KeepResults,
    Recompute,
    Save,
    SaveNarrowest,
    SaveStatistics,
)
from jaxplan.xla._facts import Facts, walk
from jaxplan.xla._fusion import Fused
from jaxplan.xla.rules import rules_of

SAVED = "saved-for-the-backward-pass"
"""Decides in place of a rule where the rule on residuals is left out."""


def save_residuals(facts: Facts, fused: Fused) -> tuple[bool, ...]:
    """Materialise values that backward fusions need and cannot recompute from buffers; changes ``fused``.

    Returns:
      Per equation, whether the fusions of the backward pass recompute it.
    """
    consumers, free, turning = facts.graph.values.consumers, facts.graph.values.free, facts.turning
    again = [not has_kernel for has_kernel in facts.kernels]
    saved, aliases = set[int](), dict[int, str]()
    how = _Choice()
    for rule in rules_of(facts.target, "residuals"):
        for effect in rule.find(facts):
            how.apply(rule.name, effect)
            if isinstance(effect, KeepResults | Recompute):
                again[effect.equation] = isinstance(effect, Recompute)
            elif isinstance(effect, Save):
                saved.add(effect.tensor)
            elif isinstance(effect, Fuse):
                aliases[effect.tensor] = rule.name
    residuals = _Residuals(facts, fused, again, how)
    residuals.kept |= saved
    for eqn in facts.equations[:turning]:
        for t in eqn.results:
            is_needed = any(c >= turning for c in consumers[t])
            if is_needed and t not in residuals.kept and facts.tensors[t].shape and not free[t]:
                residuals.save(t)
    for t, name in aliases.items():
        fused.written[t], fused.decided_by[t] = False, name
    return tuple(again)


class _Choice:
    """How residuals are chosen.

    Attributes:
      share: of the bytes of a value that its statistics may take so that they are saved in its place.
      narrowest: the rule by which the narrowest value of a chain is saved; None: the value itself is.
      comparisons: equations that are never saved.
    """

    def __init__(self) -> None:
        self.share = 0.0
        self.narrowest: str | None = None
        self.comparisons = set[int]()

    def apply(self, rule: str, effect: Effect) -> None:
        if isinstance(effect, SaveStatistics):
            self.share = effect.share
        elif isinstance(effect, SaveNarrowest):
            self.narrowest = rule
        elif isinstance(effect, Compare):
            self.comparisons.add(effect.equation)


class _Residuals:
    """The residuals so far."""

    def __init__(self, facts: Facts, fused: Fused, again: Sequence[bool], how: _Choice) -> None:
        self._facts, self._fused, self._again, self._how = facts, fused, again, how
        self._share = how.share
        consumers = facts.graph.values.consumers
        self.kept = set(facts.graph.program.inputs)
        written = (t for t, is_written in enumerate(fused.written) if is_written)
        self.kept |= {t for t in written if any(c >= facts.turning for c in consumers[t])}

    def save(self, t: int) -> None:
        """Keep the values that ``t`` is recomputed from."""
        for keep in self._narrowest(t):
            self.kept.add(keep)
            if not self._fused.written[keep]:
                self._fused.decided_by[keep] = self._how.narrowest or SAVED
            self._fused.written[keep] = True

    def _narrowest(self, t: int) -> list[int]:
        """The values to keep so that ``t`` can be recomputed; none when the kept ones already suffice."""
        tensors, producer = self._facts.tensors, self._facts.graph.values.producer
        missing = self._missing(t)
        if sum(tensors[u].num_bytes for u in missing) <= self._share * tensors[t].num_bytes:
            return missing  # the statistics that a normalised value, and its mask, are recomputed from
        keep: list[int] = []
        while True:
            index = producer[t]
            if index < 0 or not self._again[index] or not self._how.narrowest:
                return [*keep, t]
            eqn, size = self._facts.equations[index], tensors[t].num_bytes
            needed = [o for o in dict.fromkeys(eqn.operands) if self._missing(o)]
            large = [o for o in needed if tensors[o].num_bytes > self._share * size]
            is_mask = index in self._how.comparisons
            if len(large) > 1 or (large and not is_mask and tensors[large[0]].num_bytes > size):
                return [*keep, t]
            for small in needed:
                if small not in large:
                    keep.extend(self._narrowest(small))
            if not large:
                return keep
            t = large[0]
            if self._fused.written[t]:
                return [*keep, t]

    def _missing(self, t: int) -> list[int]:
        """The values missing to recompute ``t``: buffers, and results that are not computed twice."""
        facts, values, missing = self._facts, self._facts.graph.values, []

        def is_computed(u: int) -> bool:
            return u in self.kept or values.free[u] or not facts.tensors[u].shape or values.producer[u] < 0

        def sources(u: int) -> Sequence[int]:
            if is_computed(u) or self._fused.written[u] or not self._again[values.producer[u]]:
                return ()
            return facts.equations[values.producer[u]].operands

        for u in walk([t], sources):
            if not is_computed(u) and (self._fused.written[u] or not self._again[values.producer[u]]):
                missing.append(u)
        return missing
