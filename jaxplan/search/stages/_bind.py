"""Bind a plan in stages that was read from a file to its step: cut as it says, each stage's plan to its part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxplan.errors import PlanMismatchError
from jaxplan.ir import StepGraph, analyse
from jaxplan.ir.stages import cut, parts_of, pipeline_step
from jaxplan.plans._plan import Plan
from jaxplan.plans._staged_plan import StagedPlan

_OTHER_CUT_MSG = (
    "the plan cuts the step into stages at places {starts}, and this jaxplan finds another program in stage {stage}.\n"
    "  likely cause: another version of jaxplan wrote the file, or it was edited\n"
    "  fix: plan again with jaxplan.plan"
)


def bound_in_stages(plan: StagedPlan, graph: StepGraph, bind: Callable[[Plan, StepGraph], Plan]) -> StagedPlan:
    """The plan with the programs of its stages.

    Args:
      graph: the step as it was traced, the one that the plan was made for.
      bind: binds the plan of a stage to its analysed part.

    Raises:
      PlanMismatchError: a stage is another program than its plan was made for.
    """
    assert plan.microbatches is not None
    step, starts = pipeline_step(graph.program, plan.microbatches), tuple(stage.start for stage in plan.stages)
    if starts != tuple(sorted(set(starts))) or starts[0] != 0 or starts[-1] >= len(step.forward):
        raise PlanMismatchError(_OTHER_CUT_MSG.format(starts=starts, stage=0))
    made = cut(step, starts)
    parts = parts_of(made)
    stages = []
    for number, (stage, part) in enumerate(zip(plan.stages, parts, strict=True)):
        if part.program.fingerprint != stage.plan.fingerprint:
            raise PlanMismatchError(_OTHER_CUT_MSG.format(starts=starts, stage=number))
        stages.append(dataclasses.replace(stage, plan=bind(stage.plan, analyse(part.program))))
    return dataclasses.replace(plan, graph=graph, stages=tuple(stages), cut=made, parts=parts)
