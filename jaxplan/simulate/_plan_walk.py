"""Simulated seconds of a step as the score of FlexFlow's chains: full, and delta simulation of its task graph.

Source: FlexFlow, section 5.3: a proposal changes the tasks of one operator and of the tensors that it touches, and the
timeline from the first of them on. Both walks have the cost of `PlanSimulator.makespan` at every step, to the bit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from jaxplan.mesh import collective_seconds
from jaxplan.simulate._plan_pieces import Move, Piece, PlanPieces, PoolKey
from jaxplan.simulate._simulated_plan import COMMUNICATION, COMPUTE, PlanSimulator
from jaxplan.simulate._simulated_walk import follow_changes
from jaxplan.simulate._simulator import Task
from jaxplan.solvers import Problem

_STRIDE = 2**20
"""Numbers of tasks that an equation and the moves that it waits for have."""
FORBIDDEN_SECONDS = 1e6
"""Cost of each infinite entry of the problem: more than any step, so that chains find their way out of them."""


class FullPlanWalk:
    """Builds and simulates the whole task graph for every proposal.

    Each read takes its fastest choice. Assignments with infinite entries cost the more, the more they have.
    """

    def __init__(self, simulator: PlanSimulator, assignment: Sequence[int]) -> None:
        self._simulator = simulator
        self.assignment = list(assignment)
        self.cost = self._seconds(self.assignment)
        self._proposed = self.assignment, self.cost

    def propose(self, node: int, label: int) -> float:
        return self.propose_all({node: label})

    def propose_all(self, changes: Mapping[int, int]) -> float:
        """Return the cost that the assignment would have with some nodes changed."""
        changed = self.assignment.copy()
        for node, label in changes.items():
            changed[node] = label
        self._proposed = changed, self._seconds(changed)
        return self._proposed[1]

    def accept(self) -> None:
        self.assignment, self.cost = self._proposed

    def _seconds(self, assignment: Sequence[int]) -> float:
        problem = self._simulator.model.problem
        num_forbidden = count_forbidden(problem, range(len(assignment)), range(len(problem.edges)), assignment)
        if num_forbidden:
            return FORBIDDEN_SECONDS * num_forbidden
        return self._simulator.makespan(assignment, problem.evaluate(assignment)[2])


@dataclasses.dataclass(slots=True, kw_only=True)
class _Graph:
    """The task graph of one assignment, by the equation that computes, or waits.

    Attributes:
      pieces: moves of each value.
      seconds: equation -> seconds of compute, those above zero.
      equations: its keys, ascending.
      moves: equation that waits -> its moves in order; beyond the last equation for those that none waits for.
      waits: moves that only move data: first kernel that waits -> how many.
      pooled: pool -> collectives in it.
      inner: equation -> seconds of the collectives inside of it.
      tasks: equation -> its tasks and those of its moves.
    """

    pieces: list[Piece]
    seconds: dict[int, float]
    equations: list[int]
    moves: dict[int, list[Move]]
    waits: dict[int, int]
    pooled: dict[PoolKey, int]
    inner: dict[int, tuple[float, ...]]
    tasks: dict[int, dict[int, Task]]

    def copy(self) -> _Graph:
        return _Graph(
            **{
                field.name: getattr(self, field.name).copy()
                for field in dataclasses.fields(self)
            }
        )


class DeltaPlanWalk:
    """Changes the tasks that a proposal touches, the timeline from there on, and both back if it is not accepted."""

    def __init__(self, pieces: PlanPieces, assignment: Sequence[int]) -> None:
        self._pieces, self._model = pieces, pieces.model
        self._end = len(self._model.graph.program.equations) + 1
        self._count = functools.partial(count_forbidden, self._model.problem)
        self._edges: list[list[int]] = [[] for _ in assignment]
        for index, edge in enumerate(self._model.problem.edges):
            self._edges[edge.source].append(index)
            self._edges[edge.target].append(index)
        self.assignment = list(assignment)
        self._num_forbidden = self._count(range(len(assignment)), range(len(self._model.problem.edges)), assignment)
        self._graph: _Graph | None = None
        self.cost = FORBIDDEN_SECONDS * self._num_forbidden
        if not self._num_forbidden:
            self._start(self.assignment)
        self._pending: tuple[dict[int, int], float, int, _Graph | None] | None = None
        self._is_changed = False

    def propose(self, node: int, label: int) -> float:
        return self.propose_all({node: label})

    def propose_all(self, changes: Mapping[int, int]) -> float:
        """Return the cost that the assignment would have with some nodes changed."""
        self._take_back()
        changed = self.assignment.copy()
        edges = sorted({e for node in changes for e in self._edges[node]})
        before = self._count(changes, edges, changed)
        for node, label in changes.items():
            changed[node] = label
        num_forbidden = self._num_forbidden - before + self._count(changes, edges, changed)
        graph, cost = None, FORBIDDEN_SECONDS * num_forbidden
        if not num_forbidden and self._graph is not None:
            graph, cost = self._changed(changed, changes)
        elif not num_forbidden:
            cost = self._pieces.simulator.makespan(changed, self._model.problem.evaluate(changed)[2])
        self._pending = dict(changes), cost, num_forbidden, graph
        return cost

    def accept(self) -> None:
        if self._pending is None:
            return
        changes, cost, self._num_forbidden, graph = self._pending
        self._pending, self._is_changed = None, False
        for node, label in changes.items():
            self.assignment[node] = label
        self.cost, self._graph = cost, graph
        if graph is None and not self._num_forbidden:
            self._start(self.assignment)

    def _take_back(self) -> None:
        if self._is_changed:
            self._simulation.undo()
        self._pending, self._is_changed = None, False

    def _start(self, assignment: Sequence[int]) -> None:
        """Build the graph of an assignment, and simulate it."""
        pieces = [self._pieces.piece(p, assignment) for p in range(self._pieces.num_pieces)]
        seconds: dict[int, float] = {}
        for node in enumerate(assignment):
            seconds.update(self._pieces.compute(*node))
        graph = _Graph(
            pieces=pieces,
            seconds=seconds,
            equations=sorted(seconds),
            moves={},
            waits={},
            pooled={},
            inner=self._pieces.inner(assignment, pieces),
            tasks={},
        )
        for piece in pieces:
            _count(graph, piece, 1)
        self._sort_moves(graph)
        self._rebuild(graph, (*graph.equations, self._end))
        self._graph = graph
        self._simulation = follow_changes({n: t for of in graph.tasks.values() for n, t in of.items()})
        self.cost = self._simulation.makespan

    def _changed(self, assignment: Sequence[int], nodes: Iterable[int]) -> tuple[_Graph, float]:
        """The graph and the makespan of an assignment that differs in some nodes."""
        assert self._graph is not None
        before, graph = self._graph, self._graph.copy()
        touched: set[int] = set()
        for p in dict.fromkeys(p for node in nodes for p in self._pieces.pieces_of[node]):
            old, new = before.pieces[p], self._pieces.piece(p, assignment)
            if old is not new:
                graph.pieces[p] = new
                touched |= self._replace(graph, old, new)
        graph.inner = self._pieces.inner(assignment, graph.pieces)
        touched |= {e for e in (*before.inner, *graph.inner) if before.inner.get(e) != graph.inner.get(e)}
        touched |= self._neighbours(before, graph)
        for node in nodes:
            touched |= self._compute_anew(graph, node, assignment)
        if graph.seconds.keys() != before.seconds.keys():  # the kernels that wait change with them
            graph.equations = sorted(graph.seconds)
            self._sort_moves(graph)
            touched = {*before.equations, *graph.equations, self._end}
        self._rebuild(graph, touched)
        updates: dict[int, Task | None] = {}
        for e in touched:
            updates |= dict.fromkeys(before.tasks.get(e, {}))
        for e in touched:
            updates |= graph.tasks.get(e, {})
        self._is_changed = True
        return graph, self._simulation.change(updates)

    def _compute_anew(self, graph: _Graph, node: int, assignment: Sequence[int]) -> set[int]:
        """Exchange the compute of a node; return the equations with other seconds than before."""
        old, new = (self._pieces.compute(node, labels[node]) for labels in (self.assignment, assignment))
        for e in old.keys() - new.keys():
            del graph.seconds[e]
        graph.seconds.update(new)
        return {e for e in (*old, *new) if old.get(e) != new.get(e)}

    def _replace(self, graph: _Graph, old: Piece, new: Piece) -> set[int]:
        """Exchange the moves of one piece; return the equations that wait for others now."""
        _count(graph, old, -1)
        _count(graph, new, 1)
        touched: set[int] = set()
        for moves, add in ((old.moves, False), (new.moves, True)):
            for move in moves:
                e = self._waiting(graph, move.wait)
                if e not in touched:
                    touched.add(e)
                    graph.moves[e] = list(graph.moves.get(e, ()))
                if add:
                    graph.moves[e].append(move)
                else:
                    graph.moves[e].remove(move)
        for e in touched:
            graph.moves[e].sort(key=_order)
        return touched

    def _neighbours(self, before: _Graph, graph: _Graph) -> set[int]:
        """Equations with unchanged moves that start at other times or take other seconds."""
        touched: set[int] = set()
        if before.waits.keys() != graph.waits.keys():
            waits = sorted(graph.waits)
            for wait in before.waits.keys() ^ graph.waits.keys():
                place = bisect_right(waits, wait)
                if place < len(waits):
                    touched.add(self._waiting(graph, waits[place]))
        pools = {pool for pool in before.pooled.keys() | graph.pooled.keys()
                 if before.pooled.get(pool) != graph.pooled.get(pool)}
        if pools:
            touched |= {
                e for e, moves in graph.moves.items() if any(step.pool in pools for m in moves for step in m.steps)
            }
        return touched

    def _waiting(self, graph: _Graph, wait: int) -> int:
        """The first equation from ``wait`` on that takes time, or the end."""
        place = bisect_left(graph.equations, wait)
        return graph.equations[place] if place < len(graph.equations) else self._end

    def _sort_moves(self, graph: _Graph) -> None:
        found: dict[int, list[Move]] = defaultdict(list)
        for piece in graph.pieces:
            for move in piece.moves:
                found[self._waiting(graph, move.wait)].append(move)
        for moves in found.values():
            moves.sort(key=_order)
        graph.moves = dict(found)

    def _rebuild(self, graph: _Graph, equations: Iterable[int]) -> None:
        """Make the tasks of some equations, as `PlanSimulator` does."""
        ahead = sorted(graph.waits)
        latency = {
            (kind, axes): collective_seconds(self._model.topology, kind, 0, axes) / count
            for (kind, axes), count in graph.pooled.items()
        }
        for e in equations:
            if e != self._end and e not in graph.seconds:
                graph.tasks.pop(e, None)
                continue
            tasks: dict[int, Task] = {}
            number, awaited = e * _STRIDE, []
            last = _last_before(graph.equations, e)
            for move in graph.moves.get(e, ()):
                position = move.made
                if move.moves_data:
                    place = bisect_left(ahead, move.wait)
                    position = max(position, ahead[place - 1] if place else 0)
                need = _last_before(graph.equations, position) if position <= e else None
                for step in move.steps:
                    seconds = move.trips * (step.seconds if step.pool is None else step.seconds + latency[step.pool])
                    tasks[number] = Task(COMMUNICATION, seconds, () if need is None else (need,))
                    need, number = number, number + 1
                awaited.append(number - 1)
            compute = () if last is None else (last,)
            for seconds in graph.inner.get(e, ()) if e != self._end else ():
                tasks[number] = Task(COMMUNICATION, seconds, compute)
                awaited.append(number)
                number += 1
            if e != self._end:
                tasks[_compute_number(e)] = Task(COMPUTE, graph.seconds[e], (*compute, *awaited))
            graph.tasks[e] = tasks


def count_forbidden(
    problem: Problem, nodes: Iterable[int], edges: Iterable[int], assignment: Sequence[int]
) -> int:
    """How many entries of some nodes and edges are infinite."""
    count = sum(math.isinf(problem.time[node][assignment[node]]) for node in nodes)
    for index in edges:
        edge = problem.edges[index]
        seconds = edge.time[assignment[edge.source], assignment[edge.target]]
        count += math.isinf(seconds if edge.time.ndim == 2 else seconds.min())
    return count


def _order(move: Move) -> tuple:
    return move.order


def _count(graph: _Graph, piece: Piece, sign: int) -> None:
    """Add a piece to the counts over all moves (sign 1), or subtract it (-1)."""
    for move in piece.moves:
        if move.moves_data:
            _add(graph.waits, move.wait, sign)
    for pool, count in piece.pooled.items():
        _add(graph.pooled, pool, sign * count)


def _add(counts: dict, key: object, more: int) -> None:
    counts[key] = counts.get(key, 0) + more
    if not counts[key]:
        del counts[key]


def _compute_number(e: int) -> int:
    return e * _STRIDE + _STRIDE - 1


def _last_before(equations: Sequence[int], position: int) -> int | None:
    """The task of the last equation below a position that takes time."""
    place = bisect_left(equations, position) - 1
    return _compute_number(equations[place]) if place >= 0 else None
