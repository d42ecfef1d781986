"""Differences of two assignments: parts that no edge joins, so that the costs of switching them add up exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxplan.solvers._edge import at_choice, cheapest_choice
from jaxplan.solvers._point import Point
from jaxplan.solvers._problem import Problem

Part = tuple[int, ...]  # nodes, or V + e for an edge e with another choice at equal ends


def differing_parts(problem: Problem, adjacent: list[set[int]], lean: Point, fast: Point) -> list[Part]:
    """Return the connected parts, by their lowest node; each in breadth-first order from one of its ends.

    Args:
      problem: the problem to solve.
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
    """Return the costs of nodes and edges on the way.

    Args:
      problem: the problem to solve.
      lean: where the way begins.
      fast: where it ends.
      slope: seconds per byte, for the choices in between.
    """
    a, b = np.array(lean.assignment), np.array(fast.assignment)
    node_time, node_memory = problem.node_costs(np.stack([a, b]))
    num_edges = len(problem.edges)
    edge_time, edge_memory = np.empty((num_edges, 4)), np.empty((num_edges, 4), np.int64)
    edge_choice = np.zeros((num_edges, 4), np.intp)
    ends = np.array([lean.choices, fast.choices], np.intp).reshape(2, num_edges).T
    switched_source, switched_target = np.stack([a, b, a, b], axis=1), np.stack([a, a, b, b], axis=1)
    for indices, sources, targets, edge in problem.edge_groups():
        time, memory = edge.costs_at(switched_source[sources], switched_target[targets])
        if edge.num_choices == 1:
            edge_time[indices], edge_memory[indices] = time[..., 0], memory[..., 0]
            continue
        picked = cheapest_choice(time, memory, 1.0, slope)
        picked[:, [0, 3]] = ends[indices]
        edge_choice[indices] = picked
        edge_time[indices], edge_memory[indices] = at_choice(time, picked), at_choice(memory, picked)
    return Stages(
        node_time=np.where(a == b, 0.0, node_time[1] - node_time[0]),
        node_memory=node_memory[1] - node_memory[0],
        edge_time=edge_time,
        edge_memory=edge_memory,
        edge_choice=edge_choice,
    )


def part_gains(
    num_nodes: int, ends: np.ndarray, parts: list[Part], stages: Stages
) -> tuple[np.ndarray, np.ndarray]:
    """Return the (P,) seconds and bytes that switching each part adds.

    Args:
      num_nodes: nodes of the problem.
      ends: (E, 2) nodes that each edge joins.
      parts: P parts.
      stages: costs on the way.
    """
    part_of = np.full(num_nodes + len(ends), len(parts))
    for place, part in enumerate(parts):
        part_of[list(part)] = place
    of_nodes = part_of[:num_nodes]
    of_edges = np.minimum(part_of[ends].min(axis=1, initial=len(parts)), part_of[num_nodes:])
    time, memory = np.zeros(len(parts) + 1), np.zeros(len(parts) + 1, np.int64)
    np.add.at(time, of_nodes, stages.node_time)
    np.add.at(time, of_edges, stages.edge_time[:, 3] - stages.edge_time[:, 0])
    np.add.at(memory, of_nodes, stages.node_memory)
    np.add.at(memory, of_edges, stages.edge_memory[:, 3] - stages.edge_memory[:, 0])
    return time[:-1], memory[:-1]
