"""Elimination orders: which node to remove next, so that tables stay small.

Source: PaSE, GenerateSeq (Fig. 3): the node with the fewest neighbours left. `min-weight` takes the smallest
table to loop over, `min-result` the smallest table left behind. On equal layers they differ by up to 15 times
either way, so `best_schedule` counts them all.
"""

from __future__ import annotations

import heapq
import math
from typing import Literal

from jaxplan.solvers._problem import Problem

OrderName = Literal["min-degree", "min-weight", "min-result"]


def neighbours(problem: Problem) -> list[set[int]]:
    """Return the set of neighbours of each node."""
    adjacent: list[set[int]] = [set() for _ in range(problem.num_nodes)]
    for edge in problem.edges:
        adjacent[edge.source].add(edge.target)
        adjacent[edge.target].add(edge.source)
    return adjacent


def elimination_order(
    problem: Problem, order: OrderName, *, max_degree: int | None = None, max_entries: int | None = None
) -> list[int]:
    """Return the V nodes in order of elimination.

    A node with one configuration joins nothing: its edges are costs of their other ends.

    Args:
      problem: the problem to solve.
      order: the rule that picks the next node.
      max_degree: nodes that keep more neighbours than this are left out.
      max_entries: nodes whose elimination always loops over more entries than this are left out.

    Ties go to the node with tables combined least often, then to the lower index: equal layers are
    then worked on side by side, in equal steps, which `build_schedule` folds into one.
    """
    sizes = problem.num_configurations
    adjacent = neighbours(problem)
    fixed = {node for node, size in enumerate(sizes) if size == 1}
    adjacent = [set() if node in fixed else around - fixed for node, around in enumerate(adjacent)]
    # The neighbours of a node after each elimination, kept up to date: hubs have hundreds of neighbours.
    results = [math.prod([sizes[other] for other in around]) for around in adjacent]
    depth = [0] * problem.num_nodes
    version = [0] * problem.num_nodes

    def entry(node: int) -> tuple[int, int, int, int, int]:
        result = results[node]
        if order == "min-degree":
            first, second, third = len(adjacent[node]), depth[node], result * sizes[node]
        elif order == "min-weight":
            first, second, third = result * sizes[node], len(adjacent[node]), depth[node]
        else:
            first, second, third = result, result * sizes[node], depth[node]
        return first, second, third, node, version[node]

    heap = [entry(node) for node in range(problem.num_nodes)]
    heapq.heapify(heap)
    result: list[int] = []
    while heap:
        *_, node, seen = heapq.heappop(heap)
        if seen != version[node]:
            continue
        if max_degree is not None and len(adjacent[node]) > max_degree:
            continue
        if max_entries is not None and results[node] * sizes[node] > max_entries:
            continue
        version[node] = -1
        result.append(node)
        for other in adjacent[node]:
            new = adjacent[node] - adjacent[other]
            new.remove(other)
            adjacent[other] |= new
            adjacent[other].remove(node)
            results[other] = results[other] // sizes[node] * math.prod([sizes[name] for name in new])
            depth[other] = max(depth[other], depth[node] + 1)
            version[other] += 1
            heapq.heappush(heap, entry(other))
    return result
