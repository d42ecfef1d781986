"""Steps planned again under a layout of the shared arrays: recomputed, in micro-batches, with state on the host.

These are rewrites of one step's program, and the joint problem has the steps as they were traced. Under a fixed layout
of the shared arrays nothing else ties the steps, so each is planned as it would be alone, with that layout kept and the
memory that the other steps leave it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxplan.core._progress import Progress
from jaxplan.errors import InfeasibleError
from jaxplan.frontend._options import Options
from jaxplan.ir import StepGraph
from jaxplan.plans._plan import Plan
from jaxplan.search._fixed import FixedSharding
from jaxplan.search._joint_problem import JointProblem, Layout
from jaxplan.search._planner import plan_graph
from jaxplan.search._recompute import ACTIVATION_PARTS, is_worth_it
from jaxplan.search._shared import Leaf
from jaxplan.search._together import JointCandidate, JointSearch, Part

MOST_LAYOUTS = 3
"""Layouts of the shared arrays under which steps are planned again."""


def plan_again(
    search: JointSearch, graphs: Mapping[str, StepGraph], options: Sequence[Options], report: Progress
) -> None:
    """Add plans with rewritten programs where they are asked for, or memory is short.

    Args:
      options: of each step, its limit that of the machine.
    """
    limit = options[0].memory_limit_bytes
    for candidate in _to_improve(search, limit):
        for s, (name, own) in enumerate(zip(graphs, options, strict=True)):
            if not _is_wanted(own, candidate, s):
                continue
            left = None if limit is None else limit - candidate.resident[s]
            if left is not None and left <= 0:
                continue
            kept = _fixed(search.problem, name, candidate.layout)
            try:
                found = plan_graph(
                    graphs[name],
                    topology=search.problem.members[s].model.topology,
                    options=dataclasses.replace(own, kept=kept, memory_limit_bytes=left, stages=False),
                    report=report,
                    name=name,
                )
            except InfeasibleError:
                continue
            for plan in found.points:
                if _has(plan, search.problem, name, candidate.layout):
                    search.add_part(candidate.layout, s, _part(search.problem, s, plan))
    search.combine()


def _to_improve(search: JointSearch, limit: int | None) -> list[JointCandidate]:
    """The fastest candidate that fits, the leanest, and one between, each with a layout of its own."""
    best = search.best()
    fitting = [of for of in best if limit is None or of.memory_bytes <= limit] or best
    chosen = {of.layout: of for of in (fitting[0], fitting[len(fitting) // 2], fitting[-1])}
    return list(chosen.values())[:MOST_LAYOUTS]


def _is_wanted(options: Options, candidate: JointCandidate, s: int) -> bool:
    """Whether a step is planned with rewritten programs: as asked, where it does not fit, or where memory is short."""
    if options.remat or options.offload or options.microbatches:
        return True
    part, limit = candidate.parts[s], options.memory_limit_bytes
    if limit is None:
        return False
    peak = part.memory_bytes + candidate.resident[s]
    if peak > limit:
        return options.remat is None or options.microbatches is None or options.offload is None
    return options.remat is None and is_worth_it(peak, part.activation_bytes, limit)


def _fixed(problem: JointProblem, step: str, layout: Sequence[Layout]) -> tuple[FixedSharding, ...]:
    """The layout of the shared arrays that a step has."""
    return tuple(
        FixedSharding(
            keys=leaf.keys, shape=leaf.aval[0], dims=wanted, kind="result" if leaf.is_output else "argument"
        )
        for shared, wanted in zip(problem.shared, layout, strict=True)
        for leaf in shared.of(step)
    )


def _has(plan: Plan, problem: JointProblem, step: str, layout: Sequence[Layout]) -> bool:
    """Whether a plan lays out the shared arrays so."""
    return all(
        (plan.output_shardings if leaf.is_output else plan.input_shardings)[leaf.position].dims == wanted
        for shared, wanted in zip(problem.shared, layout, strict=True)
        for leaf in shared.of(step)
    )


def _part(problem: JointProblem, s: int, plan: Plan) -> Part:
    def local_bytes(leaf: Leaf) -> int:
        """Of an argument as the plan has it, on the devices."""
        if plan.offload is not None and leaf.position in plan.offload.arguments:
            return 0
        layouts, sizes = problem.members[s].layouts(leaf), problem.members[s].num_bytes(leaf)
        dims = plan.input_shardings[leaf.position].dims
        return int(sizes[layouts.index(dims)] if dims in layouts else sizes.max())

    return Part(
        time_seconds=plan.time_seconds,
        memory_bytes=plan.memory_bytes,
        activation_bytes=sum(plan.memory_parts.get(part, 0) for part in ACTIVATION_PARTS),
        kept=problem.kept_bytes(s, local_bytes),
        make=lambda: plan,
    )
