"""First pass: the equations with a kernel of their own, and the equations fused into each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from jaxplan.xla._effects import Absorb, Inline, Kernel
from jaxplan.xla._facts import Facts
from jaxplan.xla.rules import rules_of

FUSIBLE_FAMILIES = frozenset({"elementwise", "shape", "source", "rng"})
"""Families of operators that every backend computes inside of the kernels that read them."""


def with_kernels(facts: Facts) -> Facts:
    """The facts with `Facts.kernels` and `Facts.absorbed`."""
    kernels = [facts.family(e.index) not in FUSIBLE_FAMILIES for e in facts.equations]
    absorbed: dict[int, set[int]] = defaultdict(set)
    for rule in rules_of(facts.target, "kernels"):
        for effect in rule.find(facts) if rule.find else ():
            if isinstance(effect, Absorb):
                absorbed[effect.equation].add(effect.tensor)
            elif isinstance(effect, Inline | Kernel):
                kernels[effect.equation] = isinstance(effect, Kernel)
    return replace(facts, kernels=tuple(kernels), absorbed={e: frozenset(ts) for e, ts in absorbed.items()})
