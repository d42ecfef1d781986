"""A step, traced and analysed once for all machines that it is planned on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxplan.core._collector import paused_collector
from jaxplan.frontend._absent_gpu import Assumption, assumption_for, traced_under
from jaxplan.frontend._arguments import step_name
from jaxplan.ir import Program, StepGraph, analyse, trace
from jaxplan.mesh import Topology

Report = Callable[..., Any]


def _quiet(stage: str, fraction: float = 0.0) -> None:
    """A report to nobody."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traced:
    """The first value of the pipeline: a program, and the assumptions of its trace about the devices.

    Attributes:
      name: how errors call the step.
      assumption: of GPUs that are not present.
      is_general: whether every machine is known to have this program.
    """

    program: Program
    name: str
    assumption: Assumption
    is_general: bool


def trace_step(
    step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, assumption: Assumption, **options: Any
) -> Traced:
    """Trace a step for devices that need not be present; ``options`` are those of `jaxplan.ir.trace`."""
    asked: list[list[str] | None] = []  # of the first trace, and of later ones of the same step

    @contextlib.contextmanager
    def under() -> Iterator[None]:
        with traced_under(assumption) as questions:
            asked.append(questions)
            yield

    program = trace(step, args, kwargs, under=under, **options)
    return Traced(program=program, name=step_name(step), assumption=assumption, is_general=asked[0] == [])


def analyse_traced(traced: Traced, report: Report = _quiet) -> StepGraph:
    """Operator rules, named dimensions and groups of a traced step."""
    with paused_collector():
        return analyse(traced.program, report)


def analyse_step(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    donate_argnums: Sequence[int] | None = None,
    static_argnums: Sequence[int] = (),
    static_argnames: Sequence[str] = (),
    report: Report = _quiet,
    topology: Topology | None = None,
) -> StepGraph:
    """Trace a step for one machine and analyse it.

    ``donate_argnums=None`` donates the arguments that the step returns updated.
    """
    report("trace")
    traced = trace_step(
        step,
        args,
        kwargs,
        assumption=assumption_for(topology),
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )
    return analyse_traced(traced, report)
