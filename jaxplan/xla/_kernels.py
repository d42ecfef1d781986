"""Second pass: the equations with a kernel of their own, and the equations fused into each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from jaxplan.xla._effects import Absorb, Inline, Kernel, Merge, Rectify
from jaxplan.xla._facts import Facts
from jaxplan.xla._found import Found, effects

FUSIBLE_FAMILIES = frozenset({"elementwise", "shape", "source", "rng"})
"""Families of operators that every backend computes inside of the kernels that read them."""


def with_kernels(facts: Facts) -> tuple[Facts, Found]:
    """The facts with `Facts.kernels`, `Facts.absorbed`, `Facts.merged` and `Facts.rectifiers`; and the effects."""
    kernels = [facts.family(e.index) not in FUSIBLE_FAMILIES for e in facts.equations]
    absorbed: dict[int, set[int]] = defaultdict(set)
    taken = list(effects(facts, "kernels"))
    for effect in taken:
        if isinstance(effect, Absorb):
            absorbed[effect.equation].add(effect.tensor)
        elif isinstance(effect, Inline | Kernel):
            kernels[effect.equation] = isinstance(effect, Kernel)
    found = Found.of_effects(taken)
    changed = replace(
        facts,
        kernels=tuple(kernels),
        absorbed={e: frozenset(ts) for e, ts in absorbed.items()},
        merged=frozenset(effect.equation for effect in found.of(Merge)),
        rectifiers=frozenset(effect.equation for effect in found.of(Rectify)),
    )
    return changed, found
