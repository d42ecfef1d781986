"""Exported problems with proven optima, and the dense elimination that solvers are timed against.

An instance is an `.npz` file: `n_nodes`, `cost_<v>` (K_v,), `edges` (E, 2), `edge_mat` (E,), `mat_<j>` (K_u, K_v)
and `opt_cost`, a proven optimum of the sum.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from jaxplan.solvers import Problem


def load_instance(path: Path) -> tuple[Problem, float]:
    """Return a problem without memory, matrices shared where the file shares them, and its proven optimum."""
    data = np.load(path)
    matrices = {j: data[f"mat_{j}"] for j in range(int(data["n_mats"]))}
    edges = [(int(u), int(v), matrices[int(j)]) for (u, v), j in zip(data["edges"], data["edge_mat"])]
    times = [data[f"cost_{node}"] for node in range(int(data["n_nodes"]))]
    return Problem(time=times, edges=edges), float(data["opt_cost"])


def reference_elimination(problem: Problem) -> float:
    """Return the least time by dense elimination, for comparison: no folding, no blocking, no other ideas."""
    tables: list[tuple[tuple[int, ...], np.ndarray]] = [
        ((node,), array) for node, array in enumerate(problem.time)
    ]
    tables += [((edge.source, edge.target), edge.scalarised(1.0, 0.0)) for edge in problem.edges]
    remaining, total = set(range(problem.num_nodes)), 0.0
    touching: dict[int, list[int]] = {node: [] for node in remaining}
    for index, (names, _) in enumerate(tables):
        for name in names:
            touching[name].append(index)
    adjacent = {
        node: {name for index in touching[node] for name in tables[index][0]} - {node} for node in remaining
    }
    sizes = problem.num_configurations
    while remaining:
        node = min(remaining, key=lambda n: (math.prod(sizes[o] for o in adjacent[n]) * sizes[n], n))
        scope = tuple(sorted(adjacent[node]))
        terms = [_over(*tables[index], (node, *scope)) for index in touching[node]]
        result = np.full([sizes[name] for name in scope], np.inf)
        for label in range(sizes[node]):
            row = np.zeros(())
            for term in terms:
                row = row + term[label]
            np.minimum(result, row, out=result)
        remaining.discard(node)
        total += float(result) if not scope else 0.0
        tables.append((scope, result))
        gone = set(touching.pop(node))
        for name in scope:
            touching[name] = [index for index in touching[name] if index not in gone] + [len(tables) - 1]
            adjacent[name] = (adjacent[name] | adjacent[node]) - {name, node}
    return total


def _over(names: tuple[int, ...], table: np.ndarray, scope: tuple[int, ...]) -> np.ndarray:
    order = sorted(range(len(names)), key=lambda place: scope.index(names[place]))
    return table.transpose(order)[tuple(slice(None) if name in names else None for name in scope)]
