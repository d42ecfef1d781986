"""Where two assignments differ: parts that no edge joins, whose costs of switching add up exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.solvers._edge import cheapest_choice
from jaxplan.solvers._point import Point
from jaxplan.solvers._problem import Problem

Part = tuple[int, ...]  # nodes, or V + e for an edge e whose choice alone differs


def differing_parts(problem: Problem, adjacent: list[set[int]], lean: Point, fast: Point) -> list[Part]:
    """Return the connected parts, by their lowest node; each in breadth-first order from one of its ends.

    Args:
      problem: what to solve.
      adjacent: `neighbours(problem)`.
      lean: one assignment.
      fast: another.
    """
    differ = {node for node, (a, b) in enumerate(zip(lean.assignment, fast.assignment)) if a != b}
    parts: list[Part] = []
    remaining = set(differ)
    for node in sorted(differ):
        if node in remaining:
            far_end = _breadth_first(adjacent, node, remaining)[-1]
            parts.append(tuple(_breadth_first(adjacent, far_end, remaining)))
            remaining -= set(parts[-1])
    for index, edge in enumerate(problem.edges):
        if lean.choices[index] != fast.choices[index] and not {edge.source, edge.target} & differ:
            parts.append((problem.num_nodes + index,))
    return parts


def _breadth_first(adjacent: list[set[int]], start: int, inside: set[int]) -> list[int]:
    queue, reached = [start], {start}
    for node in queue:
        new = sorted((adjacent[node] & inside) - reached)
        reached.update(new)
        queue += new
    return queue


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stages:
    """Costs on the way from one assignment to another.

    An edge has four stages: nothing switched, its source alone, its target alone, all of it. In between it
    takes the choice of least weighted cost.

    Attributes:
      node_time: (V,) seconds that switching a node adds.
      node_memory: (V,) bytes.
      edge_time: (E, 4) seconds at each stage; infinite where ends do not go together.
      edge_memory: (E, 4) bytes.
      edge_choice: (E, 4) the choice at each stage.
    """

    node_time: np.ndarray
    node_memory: np.ndarray
    edge_time: np.ndarray
    edge_memory: np.ndarray
    edge_choice: np.ndarray


def stage_costs(problem: Problem, lean: Point, fast: Point, slope: float) -> Stages:
    """Return what nodes and edges cost; equal edges with equal labels are looked up.

    Args:
      problem: what to solve.
      lean: where the way begins.
      fast: where it ends.
      slope: seconds per byte, for the choices in between.
    """
    nodes = list(zip(problem.time, problem.memory, lean.assignment, fast.assignment))
    known: dict[tuple[object, ...], tuple[list[float], list[int], list[int]]] = {}
    rows = []
    for index, edge in enumerate(problem.edges):
        a = lean.assignment[edge.source], lean.assignment[edge.target]
        b = fast.assignment[edge.source], fast.assignment[edge.target]
        choices = (lean.choices[index], fast.choices[index])
        key = (edge.table_key, a, b, choices)
        if key not in known:
            time, memory = edge.costs_at(
                np.array([a[0], b[0], a[0], b[0]]), np.array([a[1], a[1], b[1], b[1]])
            )
            picked = cheapest_choice(time, memory, 1.0, slope)
            picked[[0, 3]] = choices
            stages = np.arange(4)
            known[key] = time[stages, picked].tolist(), memory[stages, picked].tolist(), picked.tolist()
        rows.append(known[key])
    return Stages(
        node_time=np.array([time[b] - time[a] if a != b else 0.0 for time, _, a, b in nodes]),
        node_memory=np.array([memory[b] - memory[a] for _, memory, a, b in nodes], np.int64),
        edge_time=np.array([row[0] for row in rows]).reshape(-1, 4),
        edge_memory=np.array([row[1] for row in rows], np.int64).reshape(-1, 4),
        edge_choice=np.array([row[2] for row in rows], np.intp).reshape(-1, 4),
    )
