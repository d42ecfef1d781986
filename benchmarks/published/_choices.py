"""Shardings that experts published beside the plans that a search finds for the same step without being given them.

Both are priced alike: simulated with overlap, on the step in which layers that are alike are a loop. The search has the
general reference strategies and neither the published sharding nor other forms of the step (micro-batches, stages,
state on the host). It may use the memory of the chip, or as much as the published sharding is predicted to take, since
that ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.published._predict import analysed, applied
from benchmarks.published._rows import Row, UnknownRowError
from jaxplan.core._progress import Progress
from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.errors import JaxplanError
from jaxplan.frontend._options import Options
from jaxplan.plans._plan import Plan
from jaxplan.search._make_plan import make_plan
from jaxplan.search._planner import plan_graph
from jaxplan.simulate import OverlappedPredictor

TOLERANCE = 0.03
"""A published choice is missed where it is faster than the search's by more than this."""
HEADER = "| run | machine | theirs | GiB | ours | GiB | theirs / ours | why ours differs |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A published sharding and the fastest plan that the search finds in as much memory."""

    row: Row
    theirs: Plan
    ours: Plan

    @property
    def ratio(self) -> float:
        """How many times as long the published choice takes."""
        return self.theirs.time_seconds / self.ours.time_seconds

    @property
    def is_missed(self) -> bool:
        return self.ratio < 1 / (1 + TOLERANCE)

    @property
    def reason(self) -> str:
        """Ours in words with its savings: seconds of compute, of communication that nothing hides, and bytes."""
        ours, theirs = self.ours, self.theirs
        if ours.configurations == theirs.configurations:
            return "it does not"
        saved = {
            "compute": theirs.compute_seconds - ours.compute_seconds,
            "communication seen": _seen(theirs) - _seen(ours),
        }
        parts = [
            f"{format_seconds(abs(of))} {'less' if of > 0 else 'more'} {name}"
            for name, of in saved.items()
            if abs(of) > 1e-3 * theirs.time_seconds
        ]
        memory = theirs.memory_bytes - ours.memory_bytes
        if abs(memory) > 1e-3 * theirs.memory_bytes:
            parts.append(f"{format_bytes(abs(memory))} {'less' if memory > 0 else 'more'}")
        return f"{ours.summary}, for {theirs.summary}: {', '.join(parts) or 'as fast and as lean'}"

    def line(self) -> str:
        return (
            f"| {self.row.name} | {self.row.topology.name} | {format_seconds(self.theirs.time_seconds)} "
            f"| {self.theirs.memory_bytes / 2**30:.1f} | {format_seconds(self.ours.time_seconds)} "
            f"| {self.ours.memory_bytes / 2**30:.1f} | {self.ratio:.3f}{' **missed**' if self.is_missed else ''} "
            f"| {self.reason} |"
        )


def _seen(plan: Plan) -> float:
    return plan.communication_seconds - plan.hidden_seconds


def choice(row: Row) -> Choice:
    """Plan a row's step and price its published sharding.

    Raises:
      UnknownRowError: the row cannot be built.
      JaxplanError: nothing fits.
    """
    graph, topology = analysed({**row.overrides, "scan": True}), row.topology
    model, solution = applied(row, graph)
    theirs = make_plan(OverlappedPredictor(model), *solution, name="published")
    options = Options(
        overlap=True,
        remat=False,
        microbatches=False,
        offload=False,
        stages=False,
        memory=max(topology.memory_limit_bytes, theirs.memory_bytes),
    ).on(topology)
    with Progress(False) as report:
        frontier = plan_graph(graph, topology=topology, options=options, report=report, name=row.name)
    return Choice(row=row, theirs=theirs, ours=frontier.fastest())


def run_choices(rows: Iterable[Row]) -> int:
    """Print a line for each row; 1 where a published choice is faster by more than `TOLERANCE`."""
    found: list[Choice] = []
    print(HEADER + "\n" + "|---" * HEADER.count(" | ") + "|---|")
    for row in rows:
        try:
            found.append(choice(row))
        except (UnknownRowError, JaxplanError) as error:
            print(f"| {row.name} | {str(error).partition(chr(10))[0]} |", flush=True)
            continue
        print(found[-1].line(), flush=True)
    missed = sorted((of for of in found if of.is_missed), key=lambda of: of.ratio)
    print(f"\n{len(found)} published choices, {len(missed)} faster than ours by more than {TOLERANCE:.0%}")
    for of in missed:
        print(f"  {of.row.name}: {1 / of.ratio:.3f} times as fast")
    return int(bool(missed))
