"""Times the solvers: on exported problems with proven optima, and on equal layers.

    python -m benchmarks.solvers [--instances DIR] [--repeats N] [--skip-large]
    python -m benchmarks.solvers --models [NAME ...] [--devices 8 16 64] [--limit SECONDS] [--records FILE]

Each solver's optimum is checked before anything is timed. `DIR` holds instances, see `_instances.py`.
With `--models` nothing else is done: every solver works on real train steps, see `_models.py`.
Seconds are those of processor time: what else a machine does is not in them.
The baseline is a dense elimination, one table for each node: min-weight order, an in-place minimum over the
eliminated node's configurations, nothing folded.
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

from benchmarks.solvers._frontiers import compare_frontiers, heuristic_loss
from benchmarks.solvers._instances import load_instance as load_instance
from benchmarks.solvers._instances import reference_elimination as reference_elimination
from benchmarks.solvers._models import MODELS, compare_models
from benchmarks.solvers._transformer import transformer_problem
from jaxplan.solvers import Problem, frontier, solve

SUBJECTS = ("pase", "auto", "exact")
# A subject may take this long, or this many times the reference, whichever is more.
_LEAST_SECONDS, _MOST_TIMES = 0.05, 1.2
# Sums of a few hundred float64 costs in different orders.
_RELATIVE_TOLERANCE = 1e-9


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
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), max(seconds) - min(seconds)


def compare_instances(folder: Path, repeats: int) -> bool:
    """Check every instance, then time it; return whether all bars are met."""
    columns = " ".join(f"{name:>10}" for name in ("reference", *SUBJECTS))
    print(f"{'instance':<18} {'nodes':>5} {'labels':>7}  optimum  {columns}  s (median of {repeats})")
    is_right, slow = True, []
    sums: dict[str, float] = dict.fromkeys(("reference", *SUBJECTS), 0.0)
    for path in sorted(folder.glob("*.npz")):
        problem, optimum = load_instance(path)
        met = is_optimal(problem, optimum)
        is_right &= met
        medians = time_solvers(problem, repeats)
        for name, seconds in medians.items():
            sums[name] += seconds
            if seconds > max(_LEAST_SECONDS, _MOST_TIMES * medians["reference"]):
                slow.append(f"{path.stem} by {name}")
        labels = sum(problem.num_configurations)
        times = " ".join(f"{seconds:>10.4f}" for seconds in medians.values())
        print(f"{path.stem:<18} {problem.num_nodes:>5} {labels:>7}  {'met' if met else 'MISSED':<7}  {times}")
    print(f"{'sum':<42} {' '.join(f'{seconds:>10.4f}' for seconds in sums.values())}")
    print(f"slower than max(50 ms, 1.2 x reference): {', '.join(slow) or 'none'}")
    in_half = all(sums[name] <= 0.5 * sums["reference"] for name in SUBJECTS)
    print(f"sum at most half of the reference's: {'yes' if in_half else 'NO'}")
    return is_right and in_half and not slow


def is_optimal(problem: Problem, optimum: float) -> bool:
    """Return whether every subject and the reference find the optimum, the subjects proving it."""
    values = [reference_elimination(problem)]
    for name in SUBJECTS:
        found = solve(problem, name)
        values += [found.time, found.lower_bound]
    return all(math.isclose(value, optimum, rel_tol=_RELATIVE_TOLERANCE) for value in values)


def time_solvers(problem: Problem, repeats: int) -> dict[str, float]:
    """Return the median seconds of the reference and of each subject."""
    runs: dict[str, Callable[[], object]] = {"reference": functools.partial(reference_elimination, problem)}
    runs |= {name: functools.partial(solve, problem, name) for name in SUBJECTS}
    return {name: measured(run, repeats)[0] for name, run in runs.items()}


def compare_large() -> bool:
    """Check and time, once each, problems as large as a Transformer's on 64 devices, layers equal and not."""
    is_right = True
    for jitter, kind in ((0.0, "equal layers"), (0.05, "no two layers equal")):
        problem = transformer_problem(64, jitter=jitter)
        most = max(problem.num_configurations)
        print(f"\nTransformer, 64 devices, {kind}: {problem!r}, at most {most} a node")
        start = time.process_time()
        optimum = reference_elimination(problem)
        reference = time.process_time() - start
        print(f"  reference {reference:7.3f} s")
        for name in SUBJECTS:
            start = time.process_time()
            found = solve(problem, name)
            seconds = time.process_time() - start
            met = math.isclose(found.time, optimum, rel_tol=_RELATIVE_TOLERANCE) and found.gap == 0
            print(f"  {name:<9} {seconds:7.3f} s, {reference / seconds:5.1f} x, {'met' if met else 'MISSED'}")
            is_right &= met and (name != "auto" or (seconds < 3 and 3 * seconds <= reference))
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
    parser.add_argument("--skip-large", action="store_true", help="leave out the problems of minutes")
    parser.add_argument(
        "--models", nargs="*", help="real steps instead of the above; default: all of the table"
    )
    parser.add_argument("--devices", type=int, nargs="*", default=[8, 16, 64], help="for --models")
    parser.add_argument("--limit", type=float, default=60.0, help="processor seconds of a solver of --models")
    parser.add_argument(
        "--records", type=Path, help="file of --models to go on with: one line of JSON a solver"
    )
    options = parser.parse_args(arguments)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}")
    if options.models is not None:
        import jax

        jax.config.update("jax_platforms", "cpu")  # steps are traced here, nothing runs
        names = options.models or MODELS
        return 0 if compare_models(names, options.devices, options.limit, options.records) else 1
    is_right = True
    if options.instances is not None:
        is_right = compare_instances(options.instances, options.repeats)
        is_right &= compare_frontiers(options.instances)
    if not options.skip_large:
        is_right &= compare_large()
    heuristic_loss()
    time_layers(options.repeats)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
