"""Simulated time as the score of FlexFlow's chains: full and delta simulation walk the same chain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from jaxplan.simulate._delta_simulator import DeltaSimulation
from jaxplan.simulate._instant_simulator import InstantSimulation
from jaxplan.simulate._simulator import Task, simulate

LEAST_TASKS_OF_INSTANT = 24
"""Tasks that start together, in the mean, from which on arrays pay (measured: 16 do not, 32 are twice as fast)."""


class TaskModel(Protocol):
    """How assignments become task graphs, piece by piece.

    A piece is the set of tasks that one decision touches: those of an operator, or of an edge between two. Law: the
    tasks of a piece depend only on the configurations of the nodes that list it in `pieces_of`.
    """

    @property
    def num_pieces(self) -> int: ...

    def pieces_of(self, node: int) -> Iterable[int]:
        """Return the pieces that the configuration of a node decides on."""
        ...

    def tasks_of(self, piece: int, assignment: Sequence[int]) -> Mapping[int, Task]:
        """Return the tasks of a piece; numbers of different pieces differ."""
        ...


def all_tasks(model: TaskModel, assignment: Sequence[int]) -> dict[int, Task]:
    """Return the whole task graph of an assignment."""
    return {
        number: task
        for piece in range(model.num_pieces)
        for number, task in model.tasks_of(piece, assignment).items()
    }


def follow_changes(tasks: Mapping[int, Task]) -> DeltaSimulation | InstantSimulation:
    """A simulation that follows changes of a task graph: task by task, or by instants where many start together."""
    num_instants = len(set(simulate(tasks).start.values()))
    by_instant = len(tasks) >= LEAST_TASKS_OF_INSTANT * max(1, num_instants)
    return InstantSimulation(tasks) if by_instant else DeltaSimulation(tasks)


Follow = Callable[[Mapping[int, Task]], DeltaSimulation | InstantSimulation]


class FullWalk:
    """Builds and simulates the whole graph for every proposal."""

    def __init__(self, model: TaskModel, assignment: Sequence[int]) -> None:
        self._model = model
        self.assignment = list(assignment)
        self.cost = simulate(all_tasks(model, self.assignment)).makespan
        self._proposed = (0, self.assignment[0], self.cost)

    def propose(self, node: int, label: int) -> float:
        changed = self.assignment.copy()
        changed[node] = label
        self._proposed = (node, label, simulate(all_tasks(self._model, changed)).makespan)
        return self._proposed[2]

    def accept(self) -> None:
        node, label, self.cost = self._proposed
        self.assignment[node] = label


class DeltaWalk:
    """Changes the timeline where a proposal reaches it, and back if it is not accepted."""

    def __init__(
        self, model: TaskModel, assignment: Sequence[int], follow: Follow = follow_changes
    ) -> None:
        self._model = model
        self.assignment = list(assignment)
        self._pieces = [dict(model.tasks_of(piece, assignment)) for piece in range(model.num_pieces)]
        self._simulation = follow({n: task for piece in self._pieces for n, task in piece.items()})
        self.cost = self._simulation.makespan
        self._proposed: tuple[int, int, float, dict[int, dict[int, Task]]] | None = None

    def propose(self, node: int, label: int) -> float:
        self._take_back()
        changed = self.assignment.copy()
        changed[node] = label
        pieces = {piece: dict(self._model.tasks_of(piece, changed)) for piece in self._model.pieces_of(node)}
        updates: dict[int, Task | None] = {}
        for piece, tasks in pieces.items():
            updates |= dict.fromkeys(self._pieces[piece].keys() - tasks.keys())
            updates |= tasks
        cost = self._simulation.change(updates)
        self._proposed = (node, label, cost, pieces)
        return cost

    def accept(self) -> None:
        if self._proposed is None:
            return
        node, label, self.cost, pieces = self._proposed
        self.assignment[node] = label
        for piece, tasks in pieces.items():
            self._pieces[piece] = tasks
        self._proposed = None

    def _take_back(self) -> None:
        if self._proposed is not None:
            self._simulation.undo()
            self._proposed = None
