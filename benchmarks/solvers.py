"""Times the solvers: on exported problems with proven optima, and on equal layers.

    python -m benchmarks.solvers [--instances DIR] [--repeats N]

`DIR` holds `.npz` files: `n_nodes`, `cost_<v>` (K_v,), `edges` (E, 2), `edge_mat` (E,), `mat_<j>` (K_u, K_v)
and `opt_cost`, a proven optimum of the sum. Each solver's optimum is checked against it before anything is
timed. The baseline is a dense elimination, one table for each node: min-weight order, an in-place minimum
over the eliminated node's configurations, nothing folded.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxplan.solvers import Problem, frontier, solve

# Sums of a few hundred float64 costs in different orders.
_RELATIVE_TOLERANCE = 1e-9


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


def layered_problem(num_layers: int, *, layer_nodes: int = 34, seed: int = 0) -> Problem:
    """Return equal layers of random costs: 8 to 56 configurations a node, residual edges, width up to 3."""
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(8, 57, layer_nodes)]

    def table(rows: int, columns: int, choices: int = 1) -> tuple[np.ndarray, np.ndarray]:
        shape = (rows, columns) if choices == 1 else (rows, columns, choices)
        return rng.random(shape), rng.integers(0, 10**7, shape)

    def node(size: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.random(size), rng.integers(0, 10**8, size)

    residual, inner = node(30), [node(size) for size in sizes]
    links = []
    for place in range(1, layer_nodes):
        before = int(rng.integers(max(0, place - 3), place))
        links.append((before, place, *table(sizes[before], sizes[place], 3 if place % 5 == 0 else 1)))
        if place % 3 == 0 and before != place - 2:
            links.append((place - 2, place, *table(sizes[place - 2], sizes[place])))
    into, out, skip = table(30, sizes[0]), table(sizes[-1], 30), table(30, 30)
    nodes, edges = [residual], []
    for _ in range(num_layers):
        entry, first = len(nodes) - 1, len(nodes)
        nodes += [*inner, residual]
        last = len(nodes) - 1
        edges += [(entry, first, *into), (last - 1, last, *out), (entry, last, *skip)]
        edges += [(first + u, first + v, *costs) for u, v, *costs in links]
    return Problem(time=[t for t, _ in nodes], memory=[m for _, m in nodes], edges=edges)


def measured(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median and the spread (largest minus smallest), in seconds, of runs after a first one."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), max(seconds) - min(seconds)


def compare_instances(folder: Path, repeats: int) -> bool:
    """Check and time every instance; return whether all optima were met."""
    print(
        f"{'instance':<18} {'nodes':>5} {'labels':>7}  optimum  {'reference':>10} {'pase':>9} {'auto':>9}  s"
    )
    is_right = True
    for path in sorted(folder.glob("*.npz")):
        problem, optimum = load_instance(path)
        values = [reference_elimination(problem), *(solve(problem, name).time for name in ("pase", "auto"))]
        met = all(math.isclose(value, optimum, rel_tol=_RELATIVE_TOLERANCE) for value in values)
        is_right &= met
        medians = [
            measured(functools.partial(run, problem, *names), repeats)[0]
            for run, *names in ((reference_elimination,), (solve, "pase"), (solve, "auto"))
        ]
        labels = sum(problem.num_configurations)
        times = f"{medians[0]:>10.4f} {medians[1]:>9.4f} {medians[2]:>9.4f}"
        print(f"{path.stem:<18} {problem.num_nodes:>5} {labels:>7}  {'met' if met else 'MISSED':<7}  {times}")
    return is_right


def time_layers(repeats: int) -> None:
    """Time one solve and the whole frontier of 24 equal layers."""
    problem = layered_problem(24)
    points = frontier(problem)
    for point in points:
        assert problem.evaluate(point.assignment, point.choices)[:2] == (point.time, point.memory)
    gaps = sorted(point.gap for point in points)
    print(f"\n24 equal layers: {problem!r}")
    print(
        f"  frontier of {len(points)} points, gap median {gaps[len(gaps) // 2]:.3%}, largest {gaps[-1]:.3%}"
    )
    for name, run in {
        "solve auto": lambda: solve(problem),
        "solve pase": lambda: solve(problem, "pase"),
        "frontier auto": lambda: frontier(problem),
    }.items():
        median, spread = measured(run, repeats)
        print(f"  {name:<14} {median:7.3f} s (spread {spread:.3f} s)")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.solvers", description="Time the solvers.")
    parser.add_argument("--instances", type=Path, help="folder of .npz problems with proven optima")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each; the median is printed")
    options = parser.parse_args(arguments)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}")
    is_right = True
    if options.instances is not None:
        is_right = compare_instances(options.instances, options.repeats)
    time_layers(options.repeats)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
