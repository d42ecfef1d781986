"""Checks of frontiers on instances with seeded memories: certificates, hypervolume, against programmes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.solvers._instances import load_instance
from jaxplan.solvers import Problem, Solution, frontier, solve
from jaxplan.solvers._ft import HEURISTICS, track_frontier
from jaxplan.solvers._hull import lower_hull
from jaxplan.solvers._minimise import minimiser

# Most bytes of a configuration; every configuration of every node draws its own.
_MOST_BYTES = 10**8
_GRID = 4000
LIMITED = ("alexnet_p4", "alexnet_p32", "rnnlm_p8", "rnnlm_p64", "inception3_p4")
FRACTIONS = (0.25, 0.5, 0.75)


def with_memory(problem: Problem, seed: int = 0) -> Problem:
    """Return the problem with random bytes for every configuration of every node, alike on every machine."""
    rng = np.random.default_rng(seed)
    memory = [rng.integers(1, _MOST_BYTES, size) for size in problem.num_configurations]
    return Problem(time=problem.time, memory=memory, edges=problem.edges)


def hypervolume_share(problem: Problem, points: tuple[Solution, ...]) -> float:
    """Return the points' hypervolume in log time over that of the Lagrangian bound.

    Reference point: the time of the leanest, the memory of the fastest.
    """
    lean, fast = points[0], points[-1]
    if lean.memory == fast.memory:
        return 1.0
    hull = lower_hull(problem, minimiser(problem)[0], max_solves=256)
    memories = np.linspace(lean.memory, fast.memory, _GRID)
    places = np.searchsorted([point.memory for point in points], memories, side="right") - 1
    reached = np.array([points[place].time for place in places])
    bound = np.array([min(lean.time, hull.lower_bound(int(memory))) for memory in memories])
    return float(np.log(lean.time / reached).sum() / np.log(lean.time / bound).sum())


def compare_frontiers(folder: Path) -> bool:
    """Print the frontiers' figures; return whether all bars are met."""
    print(
        f"\nfrontiers with seeded memories\n{'instance':<16} {'points':>6} {'seconds':>8} {'gap median':>10} "
        f"{'90 %':>8} {'largest':>8} {'hypervolume':>11} {'leanest':>8}  above the programme at three limits"
    )
    is_right = True
    for name in LIMITED:
        problem = with_memory(load_instance(folder / f"{name}.npz")[0])
        start = time.perf_counter()
        points = frontier(problem)
        seconds = time.perf_counter() - start
        gaps = sorted(point.gap for point in points)
        leanest = minimiser(problem)[0]((0.0, 1.0)).value
        share = hypervolume_share(problem, points)
        above = [_above_programme(problem, points, fraction) for fraction in FRACTIONS]
        most = gaps[int(0.9 * (len(gaps) - 1))]
        is_lean = points[0].memory == int(leanest)
        certified = all(0 < point.lower_bound <= point.time for point in points)
        is_right &= is_lean and certified and share >= 0.99 and max(above) <= 0.01
        print(
            f"{name:<16} {len(points):>6} {seconds:>8.2f} {gaps[len(gaps) // 2]:>10.3%} {most:>8.3%} "
            f"{gaps[-1]:>8.3%} {share:>11.3%} {'exact' if is_lean else 'MISSED':>8}  "
            + " ".join(f"{excess:.3%}" for excess in above)
        )
    return is_right


def _above_programme(problem: Problem, points: tuple[Solution, ...], fraction: float) -> float:
    """Return how far above the proven optimum the default solver is at a limit between the two ends."""
    limit = int(points[0].memory + fraction * (points[-1].memory - points[0].memory))
    return solve(problem, "auto", limit).time / solve(problem, "exact", limit).time - 1.0


def heuristic_loss(num_problems: int = 20) -> None:
    """Print the loss of TensorOpt's heuristic elimination (Eq. 7) against exact lists, on joined-up problems."""
    for name, heuristics in (("one heuristic", HEURISTICS[:1]), ("all", HEURISTICS)):
        out_of_reach, slower = np.mean([_loss(seed, heuristics) for seed in range(num_problems)], axis=0)
        print(
            f"\nEq. 7, {name}, on {num_problems} problems of 6 nodes, all joined: {out_of_reach:.0%} of "
            f"the exact points out of reach, the others {slower:.1%} slower (median)"
        )


def _loss(seed: int, heuristics: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The fraction of exact points with a memory that no found point has, and how much slower the rest is (median)."""
    rng = np.random.default_rng(seed)
    pairs = [(u, v) for u in range(6) for v in range(u + 1, 6)]
    problem = Problem(
        time=[rng.random(4) for _ in range(6)],
        memory=[rng.integers(0, 100, 4) for _ in range(6)],
        edges=[(u, v, rng.random((4, 4)), rng.integers(0, 100, (4, 4))) for u, v in pairs],
    )
    exact = track_frontier(problem, cap=None, budget=10**8)
    assert exact is not None and exact.is_exact
    times, memories, _ = problem.evaluate_many(exact.assignments, exact.choices)
    best = np.full(len(memories), np.inf)
    for heuristic in heuristics:
        fixed = track_frontier(problem, cap=None, budget=10**8, max_group=1, heuristic=heuristic)
        assert fixed is not None
        less, at, _ = problem.evaluate_many(fixed.assignments, fixed.choices)
        best = np.minimum(best, [less[at <= memory].min(initial=np.inf) for memory in memories])
    found = np.isfinite(best)
    return float(1 - found.mean()), float(np.median(best[found] / times[found]) - 1)
