"""Every solver on the problems of real train steps: seconds of search, and cost of the fastest assignment found.

Costs are those of the additive formulation, which every solver minimises, and of the execution simulator. A record
is one line of JSON: a recorded question is not asked again. Seconds are those of one core's work, measured as processor
time: they do not depend on other work of the machine.
"""

from __future__ import annotations

import functools
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import _record
from benchmarks.models import build
from jaxplan import JaxplanError
from jaxplan.cost import CostModel, Predictor
from jaxplan.mesh import Topology
from jaxplan.search._open_configurations import open_configurations
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import PlanSimulator, simulated_walks
from jaxplan.solvers import ChainOptions, Problem, frontier, solve, walk_chains
from jaxplan.solvers._ft import track_frontier
from jaxplan.solvers._point import score
from jaxplan.solvers._segments import LIST_CAP
from jaxplan.strategies import apply_strategies, reference_solution

MODELS = ("mlp", "gpt2-small", "resnet50", "inception-v3", "lstm", "transformer-big")
# The solvers that prove the fastest assignment; results of the others are never faster.
PROVING = ("auto", "ft", "pase", "exact")
OTHERS = ("optcnn", "ft-lists", "ft-elimination-lists", "tofu", "mcmc", "mcmc-simulated")
_NODE_DEVICES = 8
# Candidates of the lists of TensorOpt, some three minutes; sums of float64 in different orders agree to this fraction.
_LISTS_BUDGET = 2_000_000_000
_RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The result of one solver for one model on so many devices.

    Attributes:
      search_seconds: processor seconds; of a solver that did not finish, those until it was stopped.
      additive_seconds, simulated_seconds: of one step; None where nothing was found.
      lower_bound_seconds: proven by the solver; None where it proves nothing.
      failure: why nothing was found.
    """

    model: str
    num_devices: int
    solver: str
    num_nodes: int
    num_edges: int
    num_labels: int
    search_seconds: float
    additive_seconds: float | None = None
    simulated_seconds: float | None = None
    lower_bound_seconds: float | None = None
    failure: str | None = None


class _OutOfTimeError(BaseException):
    """Not an Exception and no KeyboardInterrupt: solvers answer those."""


def topology_of(num_devices: int) -> Topology:
    """H100s, eight to a node."""
    nodes = num_devices // _NODE_DEVICES
    return Topology.parse(f"h100:{nodes}x{_NODE_DEVICES}" if nodes > 1 else f"h100:{num_devices}")


def compare_models(
    models: Sequence[str], device_counts: Sequence[int], limit_seconds: float, records: Path | None
) -> bool:
    """Solve what is not on record, print the table; return whether the proving ones agree and nothing beats them."""
    known = {(r.model, r.num_devices, r.solver): r for r in read_records(records)}
    is_right = True
    for name in models:
        for num_devices in device_counts:
            wanted = [s for s in (*PROVING, *OTHERS) if (name, num_devices, s) not in known]
            for record in _solved(name, num_devices, wanted, limit_seconds) if wanted else ():
                known[name, num_devices, record.solver] = record
                if records is not None:
                    with records.open("a", encoding="utf-8") as file:
                        file.write(_record.encode(record) + "\n")
            is_right &= report([known[name, num_devices, solver] for solver in (*PROVING, *OTHERS)])
    return is_right


def read_records(path: Path | None) -> list[Record]:
    """The content of a file, nothing where there is none."""
    return _record.read_records(Record, path) if path else []


def report(records: Sequence[Record]) -> bool:
    """Print one model on so many devices; return whether its bars are met."""
    first = records[0]
    print(
        f"\n{first.model} on {first.num_devices} devices: {first.num_nodes} nodes, {first.num_edges} edges, "
        f"{first.num_labels} configurations\n  {'solver':<22} {'search s':>9} {'additive ms':>12} {'simulated ms':>13}"
    )
    for record in records:
        if record.additive_seconds is None or record.simulated_seconds is None:
            print(f"  {record.solver:<22} {record.search_seconds:>9.2f}  {record.failure}")
            continue
        costs = f"{record.additive_seconds * 1e3:>12.6g} {record.simulated_seconds * 1e3:>13.6g}"
        print(f"  {record.solver:<22} {record.search_seconds:>9.2f} {costs}", flush=True)
    verdict = is_met(records)
    print(f"  {'ok  ' if verdict else 'MISS'} {' and '.join(PROVING)} agree, and nothing is faster")
    return verdict


def is_met(records: Sequence[Record]) -> bool:
    """Whether the solvers that prove their optimum found the same, and no other one a faster assignment."""
    proven = [r.additive_seconds for r in records if r.solver in PROVING]
    least = proven[0]
    if least is None or not all(_equal(seconds, least) for seconds in proven):
        return False
    others = [r.additive_seconds for r in records if r.additive_seconds is not None]
    return all(seconds >= least or _equal(seconds, least) for seconds in others)


def _equal(one: float | None, other: float) -> bool:
    return one is not None and math.isclose(one, other, rel_tol=_RELATIVE_TOLERANCE)


def _solved(name: str, num_devices: int, wanted: Sequence[str], limit_seconds: float) -> Iterator[Record]:
    """Solve one model on so many devices by several solvers, each cold."""
    model, initial = priced_model(name, num_devices)
    simulator = PlanSimulator(Predictor(model))
    problem = model.problem
    for solver in wanted:
        record = Record(
            model=name,
            num_devices=num_devices,
            solver=solver,
            num_nodes=problem.num_nodes,
            num_edges=len(problem.edges),
            num_labels=sum(problem.num_configurations),
            search_seconds=0.0,
        )
        run = functools.partial(_fastest, solver, model, initial, limit_seconds)
        seconds, answer = limited(run, limit_seconds)
        if isinstance(answer, str):
            yield replace(record, search_seconds=seconds, failure=answer)
            continue
        assignment, bound = answer
        additive, _, choices = problem.evaluate(assignment)
        yield replace(
            record,
            search_seconds=seconds,
            additive_seconds=additive,
            simulated_seconds=simulator.makespan(assignment, choices),
            lower_bound_seconds=bound,
        )


def priced_model(name: str, num_devices: int) -> tuple[CostModel, list[tuple[int, ...]]]:
    """The cost model that the planner works on, and data parallelism in it, for chains to start from."""
    step, args = build(name)
    graph = analyse_step(step, args, {}, donate_argnums=None, static_argnums=())
    topology = topology_of(num_devices)
    references = apply_strategies(graph, topology)
    model = open_configurations(
        graph, topology, strategies=[s.configurations for s in references.plans.values()]
    ).model
    return model, [reference_solution(model, references.plans["data"])[0]]


Answer = tuple[tuple[int, ...], float | None]


def _fastest(
    solver: str, model: CostModel, initial: Sequence[tuple[int, ...]], limit_seconds: float
) -> Answer | str:
    """The fastest assignment that a solver finds and its bound, or why there is none."""
    problem = model.problem
    if solver in ("ft", "pase", "auto"):
        last = frontier(problem, solver)[-1]
        return last.assignment, last.lower_bound
    if solver.endswith("-lists"):
        return _by_lists(problem, linear=solver == "ft-lists")
    if solver == "mcmc-simulated":
        # A chain ends by the paper's clock: half of the time for each of the two that it starts.
        options = ChainOptions(num_random=1, seconds=0.45 * limit_seconds)
        return walk_chains(problem, simulated_walks(model), initial, options).assignment, None
    found = solve(problem, solver)
    return found.assignment, found.lower_bound if solver == "exact" else None


def _by_lists(problem: Problem, *, linear: bool) -> Answer | str:
    """TensorOpt's lists alone, thinned: no hull, no moves."""
    tracked = track_frontier(problem, cap=LIST_CAP, budget=_LISTS_BUDGET, linear=linear)
    if tracked is None:
        return f"lists of {LIST_CAP} points need more than {_LISTS_BUDGET:.0e} candidates"
    best = min(score(problem, tracked.assignments, tracked.choices), key=lambda point: point.time)
    return best.assignment, None


def limited(run: Callable[[], Answer | str], limit_seconds: float) -> tuple[float, Answer | str]:
    """Run within so many seconds of processor time; return those it took, and its result or the reason for none."""

    def stop(*_: object) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGVTALRM, stop)
    start = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_seconds)
    try:
        answer: Answer | str = run()
    except _OutOfTimeError:
        answer = f"stopped after {limit_seconds:.0f} s"
    except JaxplanError as error:
        answer = str(error).splitlines()[0]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return time.process_time() - start, answer
