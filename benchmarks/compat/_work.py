"""How much of a step's work cannot be split, and why."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxplan.core import _compat
from jaxplan.cost._compute import flops_of
from jaxplan.cost._splits import trips_of
from jaxplan.ir import WHOLE, StepGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Floating-point operations of one step: multiply-adds count two, every other operator one per element.

    Attributes:
      total: of the whole step.
      without_rule: of operators that no rule describes, so that they run whole on every device.
      unsplit: of products and convolutions no dimension of which may be split, for whatever reason.
      unknown: names of the operators without a rule, and how often each stands in the program.
      reasons: (share of the total, operator, source line) of the largest unsplit ones.
    """

    total: float
    without_rule: float
    unsplit: float
    unknown: tuple[tuple[str, int], ...]
    reasons: tuple[tuple[float, str, str], ...]

    @property
    def share_without_rule(self) -> float:
        return self.without_rule / max(self.total, 1.0)

    @property
    def share_unsplit(self) -> float:
        return self.unsplit / max(self.total, 1.0)


def work_of(graph: StepGraph) -> Work:
    """Count the work of an analysed step."""
    unknown: dict[str, int] = defaultdict(int)
    total = without_rule = unsplit = 0.0
    found: list[tuple[float, str, str]] = []
    splittable = _splittable(graph)
    for eqn in graph.program.equations:
        rule, amount = graph.rules[eqn.index], equation_work(graph, eqn.index)
        total += amount
        if is_undescribed(rule.family, eqn.params):
            unknown[eqn.name] += 1
            without_rule += amount
        elif not flops_of(graph, eqn.index) or eqn.index in splittable:
            continue
        unsplit += amount
        found.append((amount, f"{eqn.name} {rule}", _compat.eqn_source_line(eqn.origin)))
    found.sort(key=lambda item: -item[0])
    return Work(
        total=total,
        without_rule=without_rule,
        unsplit=unsplit,
        unknown=tuple(sorted(unknown.items())),
        reasons=tuple((amount / max(total, 1.0), name, line) for amount, name, line in found[:8]),
    )


def is_undescribed(family: str, params: Any) -> bool:
    """Whether an operator runs whole because nobody described it, and not because of what it computes: it has no rule,
    or it is a program of its own (a loop with effects, an exported function) that is not looked into."""
    return family == "unknown" or (family == "opaque" and any(True for _ in _inner_programs(params)))


def equation_work(graph: StepGraph, index: int) -> float:
    """Operations of one equation in one step."""
    eqn, tensors = graph.program.equations[index], graph.program.tensors
    trips = trips_of(graph, index)
    inner = sum(_program_work(jaxpr) for jaxpr in _inner_programs(eqn.params))
    products = max(flops_of(graph, index), inner * eqn.params.get("length", 1) if inner else 0.0)
    elements = max((tensors[t].num_elements for t in (*eqn.operands, *eqn.results)), default=0)
    return trips * (products or elements)


def _inner_programs(params: Any) -> Iterator[Any]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            opened = getattr(item, "jaxpr", item)
            if hasattr(opened, "eqns"):
                yield opened


def _program_work(jaxpr: Any) -> float:
    """Operations of a program that is not part of the graph, its products by the shapes of their operands."""
    total = 0.0
    for eqn in jaxpr.eqns:
        inner = sum(map(_program_work, _inner_programs(eqn.params))) * eqn.params.get("length", 1)
        results = sum(math.prod(v.aval.shape) for v in eqn.outvars if hasattr(v.aval, "shape"))
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            results *= 2 * math.prod(eqn.invars[0].aval.shape[d] for d in contracted)
        total += inner or results
    return total


def _splittable(graph: StepGraph) -> set[int]:
    """Equations some factor of which belongs to a class of their group, so that it may be split."""
    found: set[int] = set()
    for group, space in zip(graph.grouping.groups, graph.spaces, strict=True):
        found |= {e for e in group.equations if any(c != WHOLE for c in space.factor_class[e])}
    return found
