"""The stage that solves: the solver's assignments for the additive problem, and those of the reference strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

from jaxplan.core._interrupt import current
from jaxplan.core._log import until_interrupted
from jaxplan.cost import CostModel, Predictor
from jaxplan.frontend._options import Options
from jaxplan.plans._plan import Plan
from jaxplan.search._make_plan import make_plan
from jaxplan.search._price import Priced
from jaxplan.search._published import partition_solution, search_arguments
from jaxplan.search._traced import Report
from jaxplan.simulate import predictor_of
from jaxplan.solvers import Solution, frontier
from jaxplan.strategies import StrategyPlan, reference_solution

MAX_CANDIDATES = 96
"""Solutions of the additive problem that are predicted one by one."""
CANDIDATE_READS = 150_000
"""... of large programs fewer, so that no more reads than these are looked at, some 10 microseconds each."""
LEAST_CANDIDATES = 32
"""... and not fewer than these."""

_NO_CHOICE = Solution(assignment=(), choices=(), time=0.0, memory=0, lower_bound=0.0, gap=0.0, solver="auto")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """A reference strategy on the configurations of a cost model.

    Attributes:
      plan: predicted, nothing proven.
      assignment, choices: its configurations and the choices of its edges.
    """

    plan: Plan
    assignment: Sequence[int]
    choices: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solutions:
    """The solver's results, beside the reference strategies.

    Attributes:
      priced: the step whose configurations they choose.
      predictor: predicts time and memory of an assignment.
      references: those of the step that are no solver's; they are complete before the solver starts.
      found: assignments, by ascending memory of the additive problem.
    """

    priced: Priced
    predictor: Predictor
    references: Mapping[str, Drawn]
    found: tuple[Solution, ...]


def solve(priced: Priced, options: Options, report: Report) -> Solutions:
    """Predict the reference strategies, then search the additive problem of the step."""
    predictor = predictor_of(priced.model)
    report("score")
    strategies = {name: strategy for name, strategy in priced.allowed.items() if name != options.solver}
    references = draw_references(predictor, strategies)
    current().plans = tuple(drawn.plan for drawn in references.values())
    current().memory_limit_bytes = options.memory_limit_bytes
    found: list[Solution] = []
    with until_interrupted("the search"):
        found = find_solutions(predictor, priced.allowed, options, report)
    return Solutions(priced=priced, predictor=predictor, references=references, found=tuple(found))


def draw_references(predictor: Predictor, strategies: Mapping[str, StrategyPlan]) -> dict[str, Drawn]:
    """Reference strategies on the configurations of a model, predicted; fewer after an interrupt."""
    model, references = predictor.model, dict[str, Drawn]()
    machine = model.topology, model.overlapped, frozenset(model.latency_shares.items())
    known: dict[Hashable, Plan] = model.graph.derive("drawn", machine, dict)
    with until_interrupted("pricing the reference strategies"):
        for name, strategy in strategies.items():
            assignment, choices = reference_solution(model, strategy)
            key = name, model.chosen(assignment), model.repeated(choices)
            plan = known[key] if key in known else known.setdefault(
                key, make_plan(predictor, assignment, choices, name=name)
            )
            references[name] = Drawn(plan=plan, assignment=assignment, choices=choices)
            known_references(model)[name, strategy] = plan
    return references


def known_references(model: CostModel) -> dict[tuple[str, StrategyPlan], Plan]:
    """The references of a step and machine that were predicted before, under other pins or another limit."""
    return model.graph.derive("references", (model.topology, model.overlapped), dict)


def find_solutions(
    predictor: Predictor, strategies: Mapping[str, StrategyPlan], options: Options, report: Report
) -> list[Solution]:
    """The solver's results for a step without remat."""
    model, solutions = predictor.model, []
    if current().happened:
        return solutions

    def progress(stage: str, fraction: float) -> None:
        current().check()
        report("solve", fraction)

    if not model.configurations:  # scalars only: there is nothing to choose
        return [_NO_CHOICE]
    if options.solver in strategies:
        return [partition_solution(model, strategies[options.solver], options.solver)]
    given = search_arguments(options.solver, predictor, strategies)
    with until_interrupted("the search"):
        progress("solve", 0.0)
        solutions += frontier(
            model.problem,
            solver=options.solver,
            max_points=max(LEAST_CANDIDATES, min(MAX_CANDIDATES, CANDIDATE_READS // max(1, len(model.reads)))),
            progress=progress,
            **given,
        )
    return solutions
