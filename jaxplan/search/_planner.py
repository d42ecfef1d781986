"""The pipeline: trace, analyse, price, solve, predict; from a step to its frontier."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxplan.core import _compat
from jaxplan.core._collector import paused_collector
from jaxplan.core._interrupt import INTERRUPTED_NOTE, current, interruptible
from jaxplan.core._log import inform_once, until_interrupted, warn_once
from jaxplan.core._once import Once
from jaxplan.core._progress import Progress
from jaxplan.cost import CostModel, ModelBuilder, Prediction, Predictor, boundary_shardings
from jaxplan.errors import ArgumentError, UnsupportedError
from jaxplan.frontend._absent_gpu import traced_for
from jaxplan.frontend._arguments import step_name
from jaxplan.frontend._pins import Pin
from jaxplan.ir import Equation, Program, StepGraph, analyse, ordered, trace
from jaxplan.mesh import Topology
from jaxplan.partition import decide_lowering
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._plan import Plan
from jaxplan.plans._summary import outline_of
from jaxplan.search._candidate import Candidate
from jaxplan.search._microbatches import plan_with_microbatches
from jaxplan.search._open_configurations import open_configurations
from jaxplan.search._operator_notes import operator_notes
from jaxplan.search._pins import meets, resolve_pins
from jaxplan.search._published import partition_solution, partitions, search_arguments
from jaxplan.search._recompute import ACTIVATION_PARTS, is_worth_it, recomputed
from jaxplan.search._shown_points import shown_points
from jaxplan.search._uneven_dimensions import uneven_dimensions
from jaxplan.search._what_if import Replanner
from jaxplan.simulate import predictor_of
from jaxplan.solvers import FRONTIER_SOLVERS, Solution, bound_at, frontier, relative_gap
from jaxplan.strategies import Absent, StrategyPlan, apply_strategies, own_strategies, reference_solution

_NOTHING_MSG = (
    "there is nothing to plan in the step {name}: it does not compute with arrays that it was given.\n"
    "  expected: a step with at least one operator on arrays among its arguments\n"
    "  likely cause: it returns its arguments as they are, or closes over the arrays that it works on\n"
    "  fix: pass the arrays as arguments, or plan the function that trains"
)

_ORDERED_MSG = (
    "the step {name} has ordered effects, which JAX runs on one device alone.\n"
    "  likely cause: jax.debug.print or a callback with ordered=True, here or in what the step calls (verbose=True)\n"
    "  fix: ordered=False"
)

_UNPROVEN_NOTE = (
    "bounds and gaps are of the step as it is: of plans that compute blocks again nothing is proven (docs/remat.md)"
)
_OVERLAP_NOTE = "times are simulated with overlap: nothing is proven of them (docs/prediction.md)"

MAX_CANDIDATES = 96
"""Solutions of the additive problem that are predicted one by one."""
CANDIDATE_READS = 150_000
"""... of large programs fewer, so that no more reads than these are looked at, some 10 microseconds each."""
LEAST_CANDIDATES = 32
"""... and not fewer than these."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How a frontier is searched; see `jaxplan.plan`."""

    memory_limit_bytes: int | None
    solver: str = "auto"
    remat: bool | None = None
    overlap: bool = False
    pins: tuple[Pin, ...] = ()
    axes: Mapping[str, int] | None = None
    own_references: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    microbatches: bool | int | None = None


def plan_step(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    topology: Topology,
    search: Search,
    donate_argnums: Sequence[int] | None,
    static_argnums: Sequence[int],
    static_argnames: Sequence[str] = (),
    progress: Any,
) -> Frontier:
    """Plan a step; see `jaxplan.plan`."""
    with interruptible(), Progress(progress) as report:
        graph = analyse_step(
            step,
            args,
            kwargs,
            donate_argnums=donate_argnums,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            report=report,
            topology=topology,
        )
        return plan_graph(graph, topology=topology, search=search, report=report, name=step_name(step))


def plan_graph(
    graph: StepGraph, *, topology: Topology, search: Search, report: Progress, name: str
) -> Frontier:
    """The frontier of an analysed step; errors call the step ``name``.

    Raises:
      InfeasibleError: no plan fits the limit.
    """
    with interruptible(), paused_collector():
        return plan_with_microbatches(
            graph, search.microbatches, lambda of: _plan_graph(of, topology, search, report, name)
        )


def _replanner(graph: StepGraph, topology: Topology, search: Search, name: str) -> Replanner:
    """A function that plans the step again, quietly, with other links, another limit or another batch."""

    def again(graph: StepGraph, topology: Topology, memory_limit_bytes: int | None) -> Frontier:
        other = search if graph.program.microbatches is None else dataclasses.replace(search, microbatches=False)
        if memory_limit_bytes is not None:
            other = dataclasses.replace(search, memory_limit_bytes=memory_limit_bytes)
        with Progress(False) as report:
            return plan_graph(graph, topology=topology, search=other, report=report, name=name)

    return Replanner(graph=graph, topology=topology, plan_graph=again, analyse=analyse)


def _is_ordered(eqn: Equation) -> bool:
    return bool(getattr(eqn.origin, "effects", None)) and _compat.has_ordered_effects(eqn.origin)


def _plan_graph(graph: StepGraph, topology: Topology, search: Search, report: Progress, name: str) -> Frontier:
    if not graph.program.equations:
        raise ArgumentError(_NOTHING_MSG.format(name=name))
    if topology.num_devices > 1 and any(map(_is_ordered, graph.program.equations)):
        raise UnsupportedError(_ORDERED_MSG.format(name=name))
    report("costs")
    limits = resolve_pins(search.pins, graph, topology, search.axes)
    strategies = apply_strategies(graph, topology)
    strategy_plans = {**strategies.plans, **partitions(graph, topology, search.solver)} if graph.spaces else {}
    own = own_strategies(graph, topology, search.own_references, search.axes)
    absent = {**strategies.absent, **{name: of.reason for name, of in own.items() if isinstance(of, Absent)}}
    strategy_plans.update({name: of for name, of in own.items() if not isinstance(of, Absent)})
    allowed = {name: of for name, of in strategy_plans.items() if meets(limits, of.configurations, topology)}
    opened = open_configurations(
        graph,
        topology,
        lambda fraction: report("costs", fraction),
        [strategy_plan.configurations for strategy_plan in allowed.values()],
        search.overlap,
        limits,
    )
    model = opened.model
    plans, references = solve_model(model, allowed, search, report, opened.most_configurations)
    if len(allowed) < len(strategy_plans):
        references = _with_forbidden(references, model, strategy_plans)
    if not any(plan.time_seconds for plan in plans):
        raise ArgumentError(_NOTHING_MSG.format(name=name))
    notes = [*operator_notes(graph), *_uneven_dimensions(model, plans), *filter(None, [opened.certificate()])]
    if current().happened:
        notes.append(INTERRUPTED_NOTE)
    if search.overlap:
        notes.append(_OVERLAP_NOTE)
    elif any(plan.remat for plan in plans):
        notes.append(_UNPROVEN_NOTE)
    report("score", 1.0)
    searched = sum(seconds for stage, seconds in report.seconds.items() if stage != "trace")
    found = Frontier.from_plans(
        plans,
        references=references,
        absent=absent,
        memory_limit_bytes=search.memory_limit_bytes,
        search_seconds=searched,
        notes=notes,
    )
    return dataclasses.replace(found, replan=_replanner(graph, topology, search, name))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A traced step that is planned on several topologies.

    Attributes:
      topology: the whole machine.
      memory_limit_bytes: per device.
      num_argument_bytes: of the arguments, all of which devices hold together at least.
      plan_on: the frontier on a topology; raises InfeasibleError where nothing fits.
    """

    topology: Topology
    memory_limit_bytes: int
    num_argument_bytes: int
    plan_on: Callable[[Topology], Frontier]


@contextlib.contextmanager
def traced_job(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    topology: Topology,
    search: Search,
    donate_argnums: Sequence[int] | None,
    static_argnums: Sequence[int],
    static_argnames: Sequence[str] = (),
    progress: Any,
) -> Iterator[Job]:
    """Trace and analyse a step once; see `jaxplan.min_devices` and `jaxplan.scaling`."""
    with interruptible(), Progress(progress) as report:
        graph = analyse_step(
            step,
            args,
            kwargs,
            donate_argnums=donate_argnums,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            report=report,
            topology=topology,
        )

        def plan_on(part: Topology) -> Frontier:
            stages = Progress(lambda stage, fraction: report(f"{stage} on {part.num_devices}", fraction))
            with stages:
                return plan_graph(graph, topology=part, search=search, report=stages, name=step_name(step))

        tensors, limit = graph.program.tensors, search.memory_limit_bytes
        yield Job(
            topology=topology,
            memory_limit_bytes=topology.memory_limit_bytes if limit is None else limit,
            num_argument_bytes=sum(tensors[t].num_bytes for t in graph.program.inputs),
            plan_on=plan_on,
        )


def analyse_step(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    donate_argnums: Sequence[int] | None,
    static_argnums: Sequence[int],
    static_argnames: Sequence[str] = (),
    report: Callable[..., Any] = lambda stage, fraction=0.0: None,
    topology: Topology | None = None,
) -> StepGraph:
    """Trace a step, for devices that need not be present, and analyse it.

    ``donate_argnums=None`` donates the arguments that the step returns updated.
    """
    report("trace")
    with traced_for(topology):
        program = trace(
            step,
            args,
            kwargs,
            donate_argnums=donate_argnums,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    with paused_collector():
        return analyse(program, report)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The bounds that a solver proved for an assignment; see the attributes of the same name of `Plan`."""

    lower_bound_seconds: float = 0.0
    gap: float | None = None
    most_configurations: int | None = None


    def limited(self, prediction: Prediction) -> dict[str, Any]:
        """The attributes of the same names of a plan of that prediction: no bound is above its own time."""
        return {
            "lower_bound_seconds": min(self.lower_bound_seconds, prediction.time_seconds),
            "gap": self.gap,
            "most_configurations": self.most_configurations,
        }


NOTHING_PROVEN = Proof()


def solve_model(
    model: CostModel,
    strategy_plans: Mapping[str, StrategyPlan],
    search: Search,
    report: Callable[..., Any],
    most_configurations: int | None = None,
) -> tuple[list[Plan], dict[str, Plan]]:
    """Plans to show of the solver's frontier and of the reference strategies, all predicted alike.

    A strategy plan of the solver's own name is no reference: it is that solver's result.
    Bounds and gaps hold within ``most_configurations``, see `Plan`.
    """
    predictor = predictor_of(model)
    report("score")
    references, assigned = _reference_plans(
        predictor, {name: strategy_plan for name, strategy_plan in strategy_plans.items() if name != search.solver}
    )
    current().plans, current().memory_limit_bytes = tuple(references.values()), search.memory_limit_bytes
    plans = list(references.values())
    with until_interrupted("the search"):
        plans = _found_beside(predictor, strategy_plans, references, assigned, search, report, most_configurations)
    if not plans:
        raise KeyboardInterrupt  # nothing was found until then
    return plans, references


def _found_beside(
    predictor: Predictor,
    strategy_plans: Mapping[str, StrategyPlan],
    references: dict[str, Plan],
    assigned: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    search: Search,
    report: Callable[..., Any],
    most_configurations: int | None,
) -> list[Plan]:
    """Plans to show out of all solutions; references get the bounds proven of them."""
    model, limit = predictor.model, search.memory_limit_bytes
    solutions = find_solutions(predictor, strategy_plans, search, report)
    report("score")
    for name, reference in references.items():
        proof = _proof(model, solutions, *assigned[name], most_configurations)
        references[name] = dataclasses.replace(reference, **proof.limited(reference.prediction))
    candidates = predict_all(predictor, solutions, report)
    again: list[Candidate] = []
    if candidates and not current().happened and _wants_remat(search, candidates):
        with until_interrupted("looking for blocks to compute again"):
            report("remat")
            again = recomputed(model, candidates, search.solver, lambda fraction: report("remat", fraction))
    everyone = [*candidates, *again]
    shown = shown_points(list(references.values()), everyone, limit)
    shown = shown or [*references.values(), *everyone]  # none fits: the error names the leanest
    return _all_finished(shown, most_configurations)


def _with_forbidden(
    references: Mapping[str, Plan], model: CostModel, strategy_plans: Mapping[str, StrategyPlan]
) -> dict[str, Plan]:
    """All references in their order: those that pins rule out are priced too, to compare with."""
    forbidden = {name: strategy_plan for name, strategy_plan in strategy_plans.items() if name not in references}
    other, _ = _reference_plans(predictor_of(_model_of(forbidden, model)), forbidden)
    return {name: references.get(name) or other[name] for name in strategy_plans if name in references or name in other}


def _model_of(strategy_plans: Mapping[str, StrategyPlan], model: CostModel) -> CostModel:
    """The cost model of the same step in which strategies alone are points."""
    builder = ModelBuilder(model.graph, model.topology, overlap=model.overlapped is not None)
    spaces = model.graph.spaces
    configurations = [
        ordered({((),) * len(space.classes), *of}) if v not in builder.tiny else (((),) * len(space.classes),)
        for v, (space, *of) in enumerate(zip(spaces, *(s.configurations for s in strategy_plans.values()), strict=True))
    ]
    return builder.build(configurations)


def _reference_plans(
    predictor: Predictor, strategy_plans: Mapping[str, StrategyPlan]
) -> tuple[dict[str, Plan], dict[str, tuple[Sequence[int], Sequence[int]]]]:
    """Plans of reference strategies, without proofs, and their assignments and choices by the same names."""
    references, assigned = {}, {}
    with until_interrupted("pricing the reference strategies"):
        for name, strategy_plan in strategy_plans.items():
            assigned[name] = reference_solution(predictor.model, strategy_plan)
            references[name] = make_plan(predictor, *assigned[name], name=name)
    return references, assigned


_NO_CHOICE = Solution(assignment=(), choices=(), time=0.0, memory=0, lower_bound=0.0, gap=0.0, solver="auto")


def find_solutions(
    predictor: Predictor, strategy_plans: Mapping[str, StrategyPlan], search: Search, report: Callable[..., Any]
) -> list[Solution]:
    """The solver's solutions for a step without remat; chains start from the plans of reference strategies."""
    model, solutions = predictor.model, []
    if current().happened:
        return solutions

    def progress(stage: str, fraction: float) -> None:
        current().check()
        report("solve", fraction)

    if not model.configurations:  # scalars only: there is nothing to choose
        return [_NO_CHOICE]
    if search.solver in strategy_plans:
        return [partition_solution(model, strategy_plans[search.solver], search.solver)]
    given = search_arguments(search.solver, predictor, strategy_plans)
    for problem in model.problems if "chains" not in given else (model.problem,):  # chains are simulated as it is
        with until_interrupted("the search"):
            progress("solve", 0.0)
            solutions += frontier(
                problem,
                solver=search.solver,
                max_points=max(LEAST_CANDIDATES, min(MAX_CANDIDATES, CANDIDATE_READS // max(1, len(model.reads)))),
                progress=progress,
                **given,
            )
    return solutions


def predict_all(
    predictor: Predictor, solutions: Sequence[Solution], report: Callable[..., Any]
) -> list[Candidate]:
    """Solutions with their predictions; those predicted before an interruption."""
    candidates: list[Candidate] = []
    with until_interrupted("predicting what was found"):
        for done, solution in enumerate(_spread(solutions) if current().happened else solutions):
            if not current().time_is_left:
                break
            prediction, _ = predictor.predict(solution.assignment, solution.choices)
            candidates.append(Candidate(prediction=prediction, solution=solution, predictor=predictor))
            report("score", done / len(solutions))
    return candidates


def _spread(solutions: Sequence[Solution]) -> list[Solution]:
    """The fastest first, then the leanest, then from the middle outwards: the order for short time."""
    order, spans = [len(solutions) - 1, 0], [(0, len(solutions) - 1)]
    for low, high in spans:  # grows while it is walked
        middle = (low + high) // 2
        if low < middle:
            order.append(middle)
            spans += [(low, middle), (middle, high)]
    return [solutions[i] for i in dict.fromkeys(order)] if solutions else []


def _wants_remat(search: Search, candidates: Sequence[Candidate]) -> bool:
    """Whether rematerialisation is looked for: as asked, or where memory is short and activations are much of it."""
    if search.remat is False or search.solver not in FRONTIER_SOLVERS:
        return False
    if search.remat:
        return True
    fastest = min(candidates, key=lambda candidate: candidate.time_seconds).prediction
    activations = sum(fastest.memory_parts.get(part, 0) for part in ACTIVATION_PARTS)
    return is_worth_it(fastest.memory_bytes, activations, search.memory_limit_bytes)


def _proof(
    model: CostModel,
    solutions: Sequence[Solution],
    assignment: Sequence[int],
    choices: Sequence[int],
    most_configurations: int | None,
) -> Proof:
    """The bounds of the solver for an assignment that it did not find; none for simulated times."""
    if model.overlapped or not solutions:
        return NOTHING_PROVEN
    time, memory, _ = model.problem.evaluate(assignment, choices)
    bound = bound_at(solutions, memory)
    return Proof(
        lower_bound_seconds=bound,
        gap=relative_gap(time, bound) if bound > 0 and math.isfinite(time) else None,
        most_configurations=most_configurations,
    )


def _all_finished(items: Sequence[Plan | Candidate], most_configurations: int | None) -> list[Plan]:
    """Plans of the shown points; after an interrupt, of as many as there is time for, the fastest first."""
    order = sorted(range(len(items)), key=lambda i: items[i].time_seconds) if current().happened else range(len(items))
    plans = {i: item for i, item in enumerate(items) if isinstance(item, Plan)}
    with until_interrupted("describing the plans"):
        for i in order:
            if i not in plans and (current().time_is_left or not plans):
                plans[i] = _finished(items[i], most_configurations)
                current().plans = (*current().plans, plans[i])
    return [plans[i] for i in sorted(plans)]


def _finished(item: Plan | Candidate, most_configurations: int | None) -> Plan:
    if isinstance(item, Plan):
        return item
    found, proof = item.solution, NOTHING_PROVEN
    model = item.predictor.model
    if model.graph.remat is None and not model.overlapped:
        proof = Proof(
            lower_bound_seconds=found.lower_bound, gap=found.gap, most_configurations=most_configurations
        )
    return make_plan(
        item.predictor,
        found.assignment,
        found.choices,
        name="plan",
        proof=proof,
        prediction=item.prediction,
    )


def make_plan(
    predictor: Predictor,
    assignment: Sequence[int],
    choices: Sequence[int],
    *,
    name: str,
    proof: Proof = NOTHING_PROVEN,
    prediction: Prediction | None = None,
) -> Plan:
    """The plan of one assignment: predicted, unless that is known, and with the layouts of its inputs and outputs."""
    model = predictor.model
    transfers = predictor.transfers(assignment, choices)
    if prediction is None:
        prediction, _ = predictor.predict(assignment, choices)
    chosen, repeated = model.chosen(assignment), tuple(sorted(model.repeated(choices)))
    graph, topology = model.graph, model.topology
    in_layouts, out_layouts = boundary_shardings(model.graph, chosen)
    program: Program = model.graph.program
    return Plan(
        name=name,
        topology=model.topology,
        fingerprint=program.fingerprint,
        donate_argnums=program.donate_argnums,
        configurations=chosen,
        repeated=repeated,
        in_paths=program.in_paths,
        in_avals=program.in_avals,
        out_paths=program.out_paths,
        in_layouts=in_layouts,
        out_layouts=out_layouts,
        prediction=prediction,
        **proof.limited(prediction),
        outline=outline_of(model.graph, model.topology, chosen, transfers),
        remat=model.graph.remat,
        microbatches=program.microbatches,
        graph=graph,
        decided=Once(lambda: decide_lowering(graph, topology, chosen, repeated)),
    )


def _uneven_dimensions(model: CostModel, plans: Sequence[Plan]) -> list[str]:
    """Notes on dimensions that the devices do not divide; a warning where padding them would gain."""
    as_traced = [plan for plan in plans if plan.remat is None]  # the model's groups are those of the step as it is
    if not as_traced or current().happened:
        return []
    fastest = min(as_traced, key=lambda plan: plan.time_seconds)
    lines = []
    for uneven in uneven_dimensions(model, fastest.configurations):
        lines.append(uneven.describe(model.topology.num_devices, fastest.communication_seconds))
        say = warn_once if uneven.gains or uneven.is_batch else inform_once
        say(lines[-1])
    return lines


def parse_topology(topology: str | Topology | None) -> Topology:
    """A topology from a string, an object, or the devices present."""
    if topology is None:
        return Topology.detect()
    if isinstance(topology, Topology):
        return topology
    if isinstance(topology, str):
        return Topology.load(topology) if topology.endswith(".json") else Topology.parse(topology)
    raise ArgumentError(
        f"topology is {topology!r} of type {type(topology).__name__}; expected a string such as 'h100:2x8', a "
        "topology's .json file, a jaxplan.Topology, or None for the devices present"
    )
