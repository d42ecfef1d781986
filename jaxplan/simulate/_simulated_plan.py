"""A plan on the execution simulator: compute and communication of one device as streams, with overlap and memory.

Every device does the same, so one of them is simulated (FlexFlow, section 5.1: one task per operator, one per
transfer, dependencies between them). Assumed:

- Compute runs in program order, each equation for its share of the predicted compute seconds.
- Collectives run one at a time beside it, first in, first out, for their predicted seconds.
- A collective may start when its operand is computed. A reducing one starts then; one that only moves data (the gather
  of a parameter, for example) starts at the earliest when the reader of the one before it starts: gathers run one
  ahead and no more, so that copies do not pile up.
- The kernel that holds the first reader of the result waits for it.
- The body of a loop counts as often as it runs, and its collectives do not move between trips.

- On GPUs kernels are slower while a collective runs beside them, for it takes some of the multiprocessors.

So the makespan lies between the larger of compute and communication and their sum, and the memory is that of the
prediction, with copies as early and their sources as late as the overlap has them.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxplan.core._files import write_whole
from jaxplan.core._interner import ByIdentity
from jaxplan.cost._model import CostModel
from jaxplan.cost._offload import host_seconds
from jaxplan.cost._plan_model import predictor_of_plan
from jaxplan.cost._prediction import Predictor
from jaxplan.cost._pricing import KEEP, REPEAT
from jaxplan.cost._transfers import Transfer
from jaxplan.ir import Configuration, StepGraph
from jaxplan.mesh import Topology, collective_seconds
from jaxplan.simulate._simulator import Task, Timeline, chrome_trace, simulate
from jaxplan.xla._lifetimes import GAPS, Lifetimes

COMPUTE, COMMUNICATION = 0, 1
"""The streams."""
_STREAM_NAMES = ("compute", "communication")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """One step of a plan on one device, communication beside compute.

    Attributes:
      timeline: when every task runs; streams are `COMPUTE` and `COMMUNICATION`.
      names: task -> its name: operator or collective.
      memory_bytes: peak with overlap, in which gathered copies are live earlier.
      memory_parts: bytes of that peak by kind of array.
      memory_curve: (seconds, bytes) from then on, ascending.
      curve_parts: kind of array -> its bytes at each instant of that curve.
      contention: seconds by which kernels take longer for a second of a collective beside them, which the timeline does
        not show (`jaxplan.mesh.Efficiency`).
    """

    timeline: Timeline
    names: Mapping[int, str]
    memory_bytes: int
    memory_parts: Mapping[str, int]
    memory_curve: tuple[tuple[float, int], ...]
    curve_parts: Mapping[str, tuple[int, ...]]
    contention: float = 0.0

    @property
    def time_seconds(self) -> float:
        """From the beginning of the step to its end."""
        beside = self.compute_seconds + self.communication_seconds - self.timeline.makespan
        return self.timeline.makespan + self.contention * max(0.0, beside)

    @property
    def compute_seconds(self) -> float:
        return self.timeline.busy_seconds(COMPUTE)

    @property
    def communication_seconds(self) -> float:
        return self.timeline.busy_seconds(COMMUNICATION)

    @property
    def hidden_seconds(self) -> float:
        """Communication that runs beside compute."""
        return max(0.0, self.compute_seconds + self.communication_seconds - self.time_seconds)

    def __repr__(self) -> str:
        return (
            f"Simulation({self.time_seconds * 1e3:.4g} ms: compute {self.compute_seconds * 1e3:.4g}, communication "
            f"{self.communication_seconds * 1e3:.4g}, of which {self.hidden_seconds * 1e3:.4g} hidden; "
            f"{self.memory_bytes / 2**30:.3f} GiB per device)"
        )

    def to_json(self) -> dict[str, Any]:
        """The timeline in the Trace Event Format, memory as a counter."""
        trace = chrome_trace(self.timeline, self.names.__getitem__, _STREAM_NAMES.__getitem__)
        trace["traceEvents"] += [
            {"name": "memory", "ph": "C", "pid": 0, "ts": when * 1e6, "args": {"GiB": size / 2**30}}
            for when, size in self.memory_curve
        ]
        return trace

    def save_timeline(self, path: str | Path) -> None:
        """Write the timeline as JSON for Perfetto (https://ui.perfetto.dev) or chrome://tracing."""
        write_whole(path, json.dumps(self.to_json()) + "\n")


def simulate_plan(
    graph: StepGraph, topology: Topology, configurations: Sequence[Configuration], repeated: Sequence[int]
) -> Simulation:
    """Simulate one step of a plan: its configuration of each group, and the reads that gather their copy again."""
    predictor = predictor_of_plan(graph, topology, configurations)
    wanted = frozenset(repeated)
    choices = [REPEAT if any(read in wanted for read in reads) else KEEP for reads in predictor.model.edge_reads]
    return PlanSimulator(predictor).simulate([0] * len(configurations), choices)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """One execution of a transfer.

    Attributes:
      number: of the transfer, and which of its spans this is.
      wait: equation of the kernel that waits for it first.
      steps: (name, seconds) of its collectives.
    """

    number: tuple[int, int]
    transfer: Transfer
    wait: int
    steps: tuple[tuple[str, float], ...]


class PlanSimulator:
    """Simulates assignments of one cost model; holds the tables that no assignment changes.

    Attributes:
      kernel: per equation the one in whose kernel it runs.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.model: CostModel = predictor.model
        key = ByIdentity(self.model.buffers, None)
        self.kernel: Sequence[int] = self.model.graph.derive("kernels", key, lambda: self._kernels())
        self._seconds: dict[tuple[int, int], dict[int, float]] = {}
        self._tables: dict[int, dict[int, np.ndarray]] = {}

    def _kernels(self) -> list[int]:
        """Per equation, the equation of the kernel that it is fused into: the first that materialises a value of it."""
        program, buffers = self.model.graph.program, self.model.buffers
        consumers = self.model.graph.values.consumers
        kernel = list(range(len(program.equations) + 1))
        for eqn in reversed(program.equations):
            if not any(buffers.materialised[r] for r in eqn.results):
                kernel[eqn.index] = min(
                    (kernel[c] for r in eqn.results for c in consumers[r]), default=eqn.index
                )
        return kernel

    def simulate(self, assignment: Sequence[int], choices: Sequence[int]) -> Simulation:
        """Run one step of an assignment."""
        transfers = self.predictor.transfers(assignment, choices)
        moves = self._moves(transfers)
        inner = self._inner(assignment, transfers)
        tasks, names, clock, ends = self._tasks(self._compute_seconds(assignment), moves, inner)
        timeline = simulate(tasks)
        lifetimes = self.predictor.lifetimes(assignment, self.model.chosen(assignment), transfers)
        lifetimes = _overlapped(lifetimes, moves, ends, timeline, clock)
        peak, parts = lifetimes.peak()
        instants = _instants(lifetimes, timeline, clock)
        curves = _curves(lifetimes, [position for _, position in instants])
        sizes = map(sum, zip(*curves.values(), strict=True))
        return Simulation(
            timeline=timeline,
            names=names,
            memory_bytes=peak,
            memory_parts=parts,
            memory_curve=tuple(zip([seconds for seconds, _ in instants], sizes, strict=True)),
            curve_parts=curves,
            contention=self.model.topology.chip.efficiency.contention,
        )

    def makespan(self, assignment: Sequence[int], choices: Sequence[int]) -> float:
        """Seconds of one step, memory left aside."""
        transfers = self.predictor.transfers(assignment, choices)
        moves = self._moves(transfers)
        seconds = self._compute_seconds(assignment)
        return simulate(self._tasks(seconds, moves, self._inner(assignment, transfers))[0]).makespan

    def compute_by_equation(self, assignment: Sequence[int]) -> dict[int, float]:
        """Equation -> seconds of compute, those above zero."""
        return self._compute_seconds(assignment)

    def moves(self, assignment: Sequence[int], choices: Sequence[int]) -> list[_Move]:
        """Executions of transfers that communicate, by the kernel that waits for them first."""
        return self._moves(self.predictor.transfers(assignment, choices))

    def inner(
        self, assignment: Sequence[int], choices: Sequence[int]
    ) -> dict[int, list[tuple[str, float]]]:
        """Equation -> (name, seconds) of each of its own collectives."""
        return self._inner(assignment, self.predictor.transfers(assignment, choices))

    def inner_seconds(
        self, assignment: Sequence[int], transfers: Sequence[Transfer]
    ) -> dict[int, list[float]]:
        """Equation -> seconds that it waits for each of its own collectives."""
        found: dict[int, list[float]] = defaultdict(list)
        for c in self.predictor.inner(self.model.chosen(assignment), transfers):
            found[c.equation].append(c.visible_seconds(self.model.topology))
        return found

    def _inner(
        self, assignment: Sequence[int], transfers: Sequence[Transfer]
    ) -> dict[int, list[tuple[str, float]]]:
        """Equation -> (name, seconds that it waits) of each of its own collectives."""
        found: dict[int, list[tuple[str, float]]] = defaultdict(list)
        for c in self.predictor.inner(self.model.chosen(assignment), transfers):
            name = f"{c.kind} inside of {self._equation_name(c.equation)}"
            found[c.equation].append((name, c.visible_seconds(self.model.topology)))
        return found

    def _compute_seconds(self, assignment: Sequence[int]) -> dict[int, float]:
        """Equation -> seconds of compute, those above zero."""
        seconds: dict[int, float] = {}
        for node in enumerate(assignment):
            seconds |= self.compute_seconds(*node)
        if waits := self.seconds_before(assignment):
            first = min(e for group in self.model.graph.grouping.groups for e in group.equations)
            seconds[first] = seconds.get(first, 0.0) + waits
        return seconds

    def seconds_before(self, assignment: Sequence[int]) -> float:
        """Seconds on the link to the host for groups without equations: parameters that are not trained."""
        link, groups = self.model.link_bytes, self.model.graph.grouping.groups
        num_bytes = sum(link[v][k] for v, k in enumerate(assignment) if not groups[v].equations) if link else 0
        return host_seconds(self.model.topology, float(num_bytes))

    def compute_seconds(self, v: int, label: int) -> Mapping[int, float]:
        """Equation -> seconds of compute of a group under one configuration, those above zero."""
        if (v, label) not in self._seconds:
            self._seconds[v, label] = self._group_seconds(v, label)
        return self._seconds[v, label]

    def group_table(self, v: int) -> Mapping[int, np.ndarray]:
        """Equation -> seconds of compute under each configuration of its group, shape (K,)."""
        if v not in self._tables:
            equations = self.model.graph.grouping.groups[v].equations
            self._tables[v] = dict(zip(equations, self.model.equation_seconds(v).T, strict=True))
        return self._tables[v]

    def _group_seconds(self, v: int, label: int) -> dict[int, float]:
        topology, group = self.model.topology, self.model.graph.grouping.groups[v]
        seconds = {e: float(share[label]) for e, share in self.group_table(v).items() if share[label] > 0}
        num_bytes = float(self.model.link_bytes[v][label]) if self.model.link_bytes else 0.0
        if num_bytes and group.equations:  # the update waits for the link
            last = max(seconds, default=group.equations[-1])
            seconds[last] = seconds.get(last, 0.0) + host_seconds(topology, num_bytes)
        return seconds

    def _moves(self, transfers: Sequence[Transfer]) -> list[_Move]:
        """Executions of transfers that communicate, by the kernel that waits for them first."""
        latency = self._pooled_latency(transfers)
        moves = []
        for number, transfer in enumerate(transfers):
            collectives = transfer.collectives
            for turn, span in enumerate(transfer.spans if collectives else ()):
                steps = [
                    (self._step_name(kind, transfer), self._step_seconds(kind, axes, size, transfer, turn, latency))
                    for kind, axes, size in collectives
                ]
                wait = min(self.kernel[e] for e in span.readers)
                moves.append(_Move(number=(number, turn), transfer=transfer, wait=wait, steps=tuple(steps)))
        moves.sort(key=lambda move: (move.wait, move.number))
        return moves

    def _step_seconds(self, kind: str, axes, size: int, transfer: Transfer, turn: int, latency) -> float:
        share = 1.0 if turn else self.model.latency_shares.get(transfer.tensor, 1.0)
        seconds = collective_seconds(self.model.topology, kind, size, axes, share)
        if not share:
            seconds += latency[kind, tuple(sorted(axes))]
        return transfer.trips * seconds

    def _pooled_latency(self, transfers: Sequence[Transfer]) -> dict[tuple[str, tuple[int, ...]], float]:
        """Small collectives that the compiler combines pay one latency together: the share of each."""
        counts: dict[tuple[str, tuple[int, ...]], int] = defaultdict(int)
        for transfer in transfers:
            if not self.model.latency_shares.get(transfer.tensor, 1.0):
                for kind, axes, _ in transfer.collectives:
                    counts[kind, tuple(sorted(axes))] += transfer.trips
        return {
            (kind, axes): collective_seconds(self.model.topology, kind, 0, axes) / count
            for (kind, axes), count in counts.items()
        }

    def _step_name(self, kind: str, transfer: Transfer) -> str:
        tensor = self.model.graph.program.tensors[transfer.tensor]
        what = tensor.path or f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
        return f"{kind} of {what}"

    def _tasks(
        self,
        seconds: Mapping[int, float],
        moves: Sequence[_Move],
        inner: Mapping[int, Sequence[tuple[str, float]]],
    ) -> tuple[dict[int, Task], dict[int, str], _Clock, dict[tuple[int, int], tuple[int, int]]]:
        """Number the tasks: compute in program order, the collectives of a move right before the kernel that waits.

        An operator's own collectives come before its compute and after everything computed earlier.
        """
        equations = sorted(seconds)
        clock = _Clock(equations=equations, tasks=[])
        tasks: dict[int, Task] = {}
        names: dict[int, str] = {}
        ends: dict[tuple[int, int], tuple[int, int]] = {}
        waiting = list(moves)[::-1]
        ahead = _positions_before([move.wait for move in moves if not move.transfer.path.shardings[0].partial])
        for e in (*equations, len(self.model.graph.program.equations) + 1):
            awaited: list[int] = []
            while waiting and waiting[-1].wait <= e:
                move = waiting.pop()
                need = clock.last_before(self._ready_after(move, ahead))
                for name, step in move.steps:
                    number = len(tasks)
                    needs = () if need is None else (need,)
                    tasks[number] = Task(stream=COMMUNICATION, seconds=step, needs=needs)
                    names[number] = name
                    ends[move.number] = (ends.get(move.number, (number, number))[0], number)
                    need = number
                awaited.append(ends[move.number][1])
            for name, step in inner.get(e, ()):
                number = len(tasks)
                tasks[number] = Task(stream=COMMUNICATION, seconds=step, needs=tuple(clock.tasks[-1:]))
                names[number] = name
                awaited.append(number)
            if e in seconds:
                number = len(tasks)
                needs = (*clock.tasks[-1:], *awaited)
                tasks[number] = Task(stream=COMPUTE, seconds=seconds[e], needs=needs)
                names[number] = self._equation_name(e)
                clock.tasks.append(number)
        return tasks, names, clock, ends

    def _ready_after(self, move: _Move, ahead: Mapping[int, int]) -> int:
        """The position before which all compute has to be done for a move to start."""
        made = self.model.graph.values.producer[move.transfer.tensor] + 1
        if move.transfer.path.shardings[0].partial:
            return made
        return max(made, ahead[move.wait])

    def _equation_name(self, e: int) -> str:
        eqn = self.model.graph.program.equations[e]
        return f"{eqn.name} {eqn.name_stack}".strip()


@dataclasses.dataclass(slots=True, kw_only=True)
class _Clock:
    """Equations that take time, and the task of each as far as they have one."""

    equations: list[int]
    tasks: list[int]

    def last_before(self, position: int) -> int | None:
        """The last task of an equation below ``position``."""
        index = bisect.bisect_left(self.equations, position) - 1
        return self.tasks[index] if 0 <= index < len(self.tasks) else None

    def position_at(self, starts: np.ndarray, seconds: float, side: Any) -> int:
        """The equation that computes at a time."""
        index = int(np.searchsorted(starts, seconds, side)) - 1
        return self.equations[index] if index >= 0 else 0


def _positions_before(waits: Sequence[int]) -> dict[int, int]:
    """Each distinct position -> the one before it, 0 for the first."""
    distinct = sorted(set(waits))
    return dict(zip(distinct, (0, *distinct)))


def _overlapped(
    lifetimes: Lifetimes,
    moves: Sequence[_Move],
    ends: Mapping[tuple[int, int], tuple[int, int]],
    timeline: Timeline,
    clock: _Clock,
) -> Lifetimes:
    """Live ranges with overlap: copies from the start of their collective, their sources until its end."""
    starts = np.array([timeline.start[task] for task in clock.tasks])
    first, last = lifetimes.first.copy(), lifetimes.last.copy()
    for move in moves:
        begin, end = ends[move.number]
        copy, source = lifetimes.copies[move.number], lifetimes.home.get(move.transfer.tensor)
        first[copy] = min(first[copy], 2 * clock.position_at(starts, timeline.start[begin], "right"))
        if source is not None:
            until = 2 * clock.position_at(starts, timeline.end[end], "left") + 1
            last[source] = max(last[source], min(until, int(last[copy])))
    return dataclasses.replace(lifetimes, first=first, last=last)


def _instants(lifetimes: Lifetimes, timeline: Timeline, clock: _Clock) -> list[tuple[float, int]]:
    """When each kernel begins, and the position at which most bytes are alive while its equations are at work."""
    if not clock.tasks:
        return [(0.0, 0)]
    curve = lifetimes.curve()
    begins = [0, *(2 * e for e in clock.equations[1:])]
    ends = [*begins[1:], len(curve)]
    most = [begin + int(np.argmax(curve[begin:end])) for begin, end in zip(begins, ends, strict=True)]
    return list(zip([timeline.start[task] for task in clock.tasks], most, strict=True))


def _curves(lifetimes: Lifetimes, positions: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Kind of array -> its bytes at each of some positions; the gaps of the heap are the same at all."""
    labels = dict.fromkeys([*lifetimes.resident, *lifetimes.labels])
    at = {label: lifetimes.curve_of(label)[positions] + int(lifetimes.resident.get(label, 0)) for label in labels}
    at[GAPS] = np.full(len(positions), lifetimes.gaps)
    return {label: tuple(map(int, of)) for label, of in at.items() if of.any()}
