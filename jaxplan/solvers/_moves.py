"""Points between two neighbours on the hull: switch the parts where they differ, one after the other.

Parts are switched in the order of seconds saved per byte, long ones piecewise along the graph, and each one
alone. Where 24 equal layers differ, this gives the points with 1, 2 ... 23 of them switched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from jaxplan.solvers._order import neighbours
from jaxplan.solvers._pareto import reduce_lists
from jaxplan.solvers._parts import Part, Stages, differing_parts, part_gains, stage_costs
from jaxplan.solvers._point import Point, score
from jaxplan.solvers._problem import Problem

# Points kept between two neighbours however many neighbours there are.
_LEAST_BETWEEN = 8
# Parts of different costs that are also switched alone.
_MOST_ALONE = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Way:
    """An order in which nodes and edges switch; after n steps, those with a position below n have.

    Attributes:
      node_position: (V,) the step of each node; `num_steps` where it does not switch.
      edge_start: (E,) the step of the end of each edge that switches first; `num_steps` where none does.
      edge_stop: (E,) the step of the end that switches last.
      first_stage: (E,) 1 where the source switches first, else 2.
      num_steps: steps in all.
    """

    node_position: np.ndarray
    edge_start: np.ndarray
    edge_stop: np.ndarray
    first_stage: np.ndarray
    num_steps: int


def points_between(problem: Problem, vertices: Sequence[Point], max_points: int) -> list[Point]:
    """Return points on ways between neighbouring vertices, the vertices not included.

    Args:
      problem: the problem to solve.
      vertices: points ascending in memory and descending in time, those of a hull for instance.
      max_points: about twice as many are returned at most, spread evenly over the pairs of neighbours.
    """
    adjacent = neighbours(problem)
    cap = max(_LEAST_BETWEEN, 2 * max_points // max(1, len(vertices) - 1))
    rows = [
        row for lean, fast in pairwise(vertices) for row in _rows_between(problem, adjacent, lean, fast, cap)
    ]
    if not rows:
        return []
    assignments, choices = (np.array([row[i] for row in rows], np.intp) for i in (0, 1))
    return score(problem, assignments, choices)


def _rows_between(
    problem: Problem, adjacent: list[set[int]], lean: Point, fast: Point, cap: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (V,) assignments and (E,) choices between two points that nothing on the ways there beats."""
    slope = (lean.time - fast.time) / (fast.memory - lean.memory)
    parts = differing_parts(problem, adjacent, lean, fast)
    stages = stage_costs(problem, lean, fast, slope)
    ends = np.array([(edge.source, edge.target) for edge in problem.edges], np.intp).reshape(-1, 2)
    order, alone = _order_of_parts(problem.num_nodes, ends, parts, stages)
    steps: list[tuple[_Way, int]] = []
    times, memories = [], []
    for sequence in _sequences([parts[place] for place in order]):
        way = _way(problem.num_nodes, ends, sequence)
        time, memory = _prefix_costs(way, stages)
        steps += [(way, step) for step in range(1, way.num_steps)]
        times.append(lean.time + time[1:-1])
        memories.append(lean.memory + memory[1:-1])
    for part in (parts[place] for place in alone):
        way = _way(problem.num_nodes, ends, part)
        time, memory = _prefix_costs(way, stages)
        steps.append((way, way.num_steps))
        times.append(lean.time + time[-1:])
        memories.append(lean.memory + memory[-1:])
    if not steps:
        return []
    picked = reduce_lists(np.concatenate(times)[None], np.concatenate(memories)[None], cap)
    chosen = picked.source[0][np.isfinite(picked.time[0])].tolist()
    return [_at_step(way, step, lean, fast, stages) for way, step in map(steps.__getitem__, chosen)]


def _order_of_parts(
    num_nodes: int, ends: np.ndarray, parts: list[Part], stages: Stages
) -> tuple[list[int], list[int]]:
    """Return the parts by seconds saved per byte, and those to switch alone: one of each kind.

    First come parts that cost no memory, last those that save no time.
    """

    def rank(time: float, memory: int) -> tuple[int, float]:
        if memory <= 0:
            return (0, time) if time <= 0 else (2, time)
        # Rounded, so that equal layers tie in any order of their sums.
        return 1, float(f"{time / memory:.9g}")

    times, memories = part_gains(num_nodes, ends, parts, stages)
    ranks = [rank(time, memory) for time, memory in zip(times.tolist(), memories.tolist())]
    order = sorted(range(len(parts)), key=lambda place: (ranks[place], place))
    kinds = {(ranks[place], int(memories[place])): place for place in reversed(order)}
    alone = sorted(kinds.values())[:_MOST_ALONE] if len(parts) > 1 else []
    return order, alone


def _sequences(parts: list[Part]) -> list[tuple[int, ...]]:
    """Return the orders to try: part by part, each along the graph or by index, and both backwards."""
    along = tuple(node for part in parts for node in part)
    by_index = tuple(node for part in parts for node in sorted(part))
    return list(dict.fromkeys([along, along[::-1], by_index, by_index[::-1]]))


def _way(num_nodes: int, ends: np.ndarray, sequence: Sequence[int]) -> _Way:
    num_steps = len(sequence)
    position = np.full(num_nodes + len(ends), num_steps)
    position[np.array(sequence, np.intp)] = np.arange(num_steps)
    at_ends = position[ends]
    lone = position[num_nodes:]
    start = np.minimum(at_ends.min(axis=1, initial=num_steps), lone)
    stop = np.where(at_ends < num_steps, at_ends, -1).max(axis=1, initial=-1)
    return _Way(
        node_position=position[:num_nodes],
        edge_start=start,
        edge_stop=np.where(stop < 0, lone, stop),
        first_stage=np.where(at_ends[:, 0] < at_ends[:, 1], 1, 2),
        num_steps=num_steps,
    )


def _prefix_costs(way: _Way, stages: Stages) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds and bytes that the first 0, 1 ... steps add; infinite where ends clash."""
    rows = np.arange(len(way.edge_start))
    stage = np.where(way.edge_start == way.edge_stop, 0, way.first_stage)
    clash = np.isinf(stages.edge_time[rows, stage])
    finite = np.where(np.isinf(stages.edge_time), 0.0, stages.edge_time)
    time = _running(way, stages.node_time, finite, stage)
    memory = _running(way, stages.node_memory, stages.edge_memory, stage)
    clashes = np.zeros(way.num_steps + 2, np.int64)
    np.add.at(clashes, way.edge_start[clash] + 1, 1)
    np.add.at(clashes, way.edge_stop[clash] + 1, -1)
    return np.where(np.cumsum(clashes)[: way.num_steps + 1] > 0, np.inf, time), memory


def _running(way: _Way, of_nodes: np.ndarray, of_edges: np.ndarray, stage: np.ndarray) -> np.ndarray:
    """Sum up, step by step, the costs of changed nodes and edges."""
    rows = np.arange(len(stage))
    change = np.zeros(way.num_steps + 2, of_nodes.dtype)
    np.add.at(change, way.node_position + 1, of_nodes)
    np.add.at(change, way.edge_start + 1, of_edges[rows, stage] - of_edges[rows, 0])
    np.add.at(change, way.edge_stop + 1, of_edges[rows, 3] - of_edges[rows, stage])
    return np.cumsum(change)[: way.num_steps + 1]


def _at_step(way: _Way, step: int, lean: Point, fast: Point, stages: Stages) -> tuple[np.ndarray, np.ndarray]:
    """Return the configurations and choices after `step` steps."""
    assignment = np.where(way.node_position < step, fast.assignment, lean.assignment)
    stage = np.where(way.edge_stop < step, 3, np.where(way.edge_start < step, way.first_stage, 0))
    return assignment, stages.edge_choice[np.arange(len(stage)), stage]
