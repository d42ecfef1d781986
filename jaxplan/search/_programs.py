"""A step in several forms, each a program of its own: all are planned, and the frontier holds the plans of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from jaxplan.core._interrupt import current
from jaxplan.errors import ArgumentError, InfeasibleError
from jaxplan.ir import StepGraph
from jaxplan.plans._frontier import Frontier

PlanGraph = Callable[[StepGraph], Frontier]


class NoBatchError(ArgumentError):
    """A form of a step was asked for that needs a batch, and the program has none."""


def plan_programs(
    graphs: Iterable[StepGraph],
    plan_graph: PlanGraph,
    *,
    refusals: tuple[type[Exception], ...] = (),
) -> list[Frontier]:
    """The frontiers of the programs that have plans, in their order.

    Args:
      graphs: taken one by one, as each may be traced when it is asked for.
      refusals: errors of a program that say nothing about the others.

    Raises:
      InfeasibleError: no plan of any fits; that of the leanest. Without one, the last refusal.
    """
    found, errors, refused = list[Frontier](), list[InfeasibleError](), list[Exception]()
    for of in graphs:
        try:
            found.append(plan_graph(of))
        except InfeasibleError as error:
            errors.append(error)
        except refusals as error:
            refused.append(error)
        if found and current().happened:
            break
    if found:
        return found
    raise leanest_of(errors) if errors else refused[-1]


def leanest_of(errors: Sequence[InfeasibleError]) -> InfeasibleError:
    """The error of the form that needs the least memory, so the nearest to one that fits."""
    return min(errors, key=lambda error: error.smallest_memory_bytes or 0)


def merged(found: list[Frontier]) -> Frontier:
    """One frontier of several programs of a step; references and notes of the first, which is changed least."""
    first = found[0]
    merged = Frontier.from_plans(
        [plan for frontier in found for plan in frontier.points],
        references=first.references,
        absent=first.absent,
        memory_limit_bytes=first.memory_limit_bytes,
        search_seconds=sum(frontier.search_seconds or 0 for frontier in found),
        notes=dict.fromkeys(note for frontier in found for note in frontier.notes),
    )
    return dataclasses.replace(merged, replan=first.replan)
