"""Results that are arguments unchanged: the caller gets the array itself, and the compiled program makes no copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxplan.partition._plan_like import PlanLike


def handed_back(plan: PlanLike, donate: Sequence[bool]) -> dict[int, int]:
    """Output position -> position of the input that it is; both in one layout, and the input not donated."""
    program = plan.require_program().program
    position = {t: i for i, t in enumerate(program.inputs)}
    return {
        o: position[t]
        for o, t in enumerate(program.outputs)
        if t in position and not donate[position[t]] and plan.output_shardings[o] == plan.input_shardings[position[t]]
    }


def computed(outputs: Sequence[Any], handed: Mapping[int, int]) -> tuple[Any, ...]:
    """Those of all outputs that the compiled program returns."""
    return tuple(output for o, output in enumerate(outputs) if o not in handed)


def all_results(results: Sequence[Any], handed: Mapping[int, int], arguments: Sequence[Any]) -> list[Any]:
    """All outputs, from those that were computed and from the arguments."""
    rest = iter(results)
    count = len(results) + len(handed)
    return [arguments[handed[o]] if o in handed else next(rest) for o in range(count)]
