"""Does the predicted order of plans hold on this machine? Spearman correlation of predicted with measured step times.

    jaxplan profile --output cpu8.json
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks.order --profile cpu8.json --results FILE

Plans of a step, good and bad: the frontier, the reference strategies, plans made for other machines, these with some
of their operators laid out at random, and the quickest plan and the references with a stretch of operators laid out
as the other does. Of all that the model prices, a chain is run with predicted times at least 10 % apart. Steps
are timed in turns, so that other work of the machine falls on all plans alike, and the median counts. Nothing is
fitted here: the prices are those of the profile.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy import stats

import jaxplan
from benchmarks.models import MODELS
from jaxplan.core._files import write_whole
from jaxplan.cost import CostModel, Predictor, build_cost_model
from jaxplan.mesh import CHIPS, Machine, Topology
from jaxplan.search._make_plan import make_plan
from jaxplan.search._traced import analyse_step
from jaxplan.solvers import frontier
from jaxplan.strategies import apply_strategies, reference_solution

APART = 1.1
"""Predicted times of neighbours in the chain differ by this factor at least."""
OTHER_CHIPS = ("h100", "a100-pcie", "cpu", "k80")
"""Data sheets of these, with as many nodes and devices: the configurations are the same."""
LEAST_PLANS = 12
RANDOM_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
NUM_SEEDS = 12
NUM_CUTS = 20
"""Stretches into which the groups of a plan are cut; for neighbouring stretches a plan takes another's layouts."""
WANTED = 0.9

# Small enough for two cores, large enough that a step is tens of milliseconds.
OVERRIDES: dict[str, dict[str, Any]] = {
    "mlp": {"width": 512, "num_classes": 512, "batch_size": 512},
    "gpt-tiny": {"num_layers": 1, "width": 128, "vocab_size": 1024, "batch_size": 16, "sequence_length": 64},
    "vit-tiny": {"num_layers": 1, "width": 128, "image_size": 32, "batch_size": 32},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One plan: its origin, its prediction, and of the steps measured the median, the quickest and the
    distance of the quartiles as a share of the median."""

    origin: str
    summary: str
    predicted_seconds: float
    compute_seconds: float
    communication_seconds: float
    measured_seconds: float
    quickest_seconds: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An assignment and the predicted time of its plan."""

    origin: str
    assignment: tuple[int, ...]
    choices: tuple[int, ...]
    seconds: float


def candidates(model: CostModel) -> list[Candidate]:
    """Assignments of the model's problem, priced by the model; the quickest first."""
    predictor = Predictor(model)
    found: dict[tuple[int, ...], Candidate] = {}

    def add(origin: str, assignment: Sequence[int], choices: Sequence[int] | None = None) -> None:
        key = tuple(map(int, assignment))
        additive_seconds, _, picked = model.problem.evaluate(key, choices)
        # A whole value never becomes a partial sum: the problem forbids such pairs of layouts.
        if key not in found and math.isfinite(additive_seconds):
            seconds = predictor.predict(key, picked)[0].time_seconds
            found[key] = Candidate(origin=origin, assignment=key, choices=picked, seconds=seconds)

    for solution in frontier(model.problem, max_points=24):
        add("frontier", solution.assignment, solution.choices)
    named = apply_strategies(model.graph, model.topology).plans
    for name, strategy_plan in named.items():
        add(name, *reference_solution(model, strategy_plan))
    add("replicated", [0] * len(model.configurations))
    shape = tuple(level.size for level in model.topology.levels)
    for machine in OTHER_CHIPS:
        other = build_cost_model(model.graph, Topology.of(CHIPS[machine], shape))
        assert other.configurations == model.configurations
        for solution in frontier(other.problem, max_points=8):
            add(f"for {machine}", solution.assignment, solution.choices)
    bases = [c for c in found.values() if c.origin in ("frontier", "data", "fsdp", "replicated", "for h100")]
    for seed in range(NUM_SEEDS):
        rng = np.random.default_rng(seed)
        for share in RANDOM_SHARES:
            base = bases[int(rng.integers(len(bases)))]
            changed = [
                int(rng.integers(len(configs))) if rng.random() < share else k
                for k, configs in zip(base.assignment, model.configurations, strict=True)
            ]
            add(f"{base.origin}, {share:.0%} at random", changed)
    quickest = min(found.values(), key=lambda c: c.seconds)
    cuts = np.unique(np.linspace(0, len(quickest.assignment), NUM_CUTS + 1, dtype=int)).tolist()
    others = [c for c in found.values() if c.origin in {*named, "replicated"}]
    for one, two in [*((quickest, other) for other in others), *((other, quickest) for other in others)]:
        for first, last in itertools.combinations(cuts, 2):
            joined = [*one.assignment[:first], *two.assignment[first:last], *one.assignment[last:]]
            add(f"{one.origin}, groups {first} to {last - 1} as {two.origin}", joined)
    return sorted(found.values(), key=lambda c: c.seconds)


def chain(found: Sequence[Candidate], most: int) -> list[Candidate]:
    """Plans with predicted times that are `APART`, from the quickest on; at most so many, spread over all of them."""
    kept: list[Candidate] = []
    for candidate in found:
        if not kept or candidate.seconds >= APART * kept[-1].seconds:
            kept.append(candidate)
    if len(kept) <= most:
        return kept
    return [kept[round(i)] for i in np.linspace(0, len(kept) - 1, most)]


def measure(plans: Sequence[jaxplan.Plan], args: Any, num_rounds: int) -> list[list[float]]:
    """Seconds of each step of each plan, in turns; the arguments are placed, and nothing is donated."""
    functions = []
    for done, plan in enumerate(plans):
        run = plan.jit(donate_argnums=())
        placed = run.shard(*args)
        jax.block_until_ready(run(*placed))
        functions.append((run, placed))
        print(f"  compiled {done + 1} of {len(plans)}", flush=True)
    samples: list[list[float]] = [[] for _ in plans]
    for _ in range(num_rounds):
        for (run, placed), seconds in zip(functions, samples, strict=True):
            gc.collect()
            start = time.perf_counter()
            jax.block_until_ready(run(*placed))
            seconds.append(time.perf_counter() - start)
    return samples


def correlation(predicted: Sequence[float], measured: Sequence[float]) -> tuple[float, float, float]:
    """Spearman's rho and its 95 % interval (Fisher's z, variance of Bonett and Wright 2000)."""
    rho = float(stats.spearmanr(predicted, measured).statistic)
    error = math.sqrt((1 + rho**2 / 2) / (len(predicted) - 3))
    z = math.atanh(min(rho, 1 - 1e-12))
    return rho, math.tanh(z - 1.96 * error), math.tanh(z + 1.96 * error)


def run_model(name: str, topology: Topology, most: int, num_rounds: int) -> tuple[list[Run], float]:
    """Choose plans, run them, print; the runs and rho."""
    spec = MODELS[name].override(**OVERRIDES.get(name, {}))
    step = spec.make_step(spec.config)
    args = (*spec.make_state(spec.config), spec.make_batch(spec.config, jax.random.key(0)))
    graph = analyse_step(step, args, {}, donate_argnums=None, static_argnums=())
    model = build_cost_model(graph, topology)
    found = candidates(model)
    chosen = chain(found, most)
    print(f"{name}: {len(found)} plans priced, {len(chosen)} of them run", flush=True)
    predictor = Predictor(model)
    plans = [make_plan(predictor, c.assignment, c.choices, name=c.origin) for c in chosen]
    samples = measure(plans, args, num_rounds)
    runs = [
        Run(
            origin=candidate.origin,
            summary=plan.summary,
            predicted_seconds=plan.time_seconds,
            compute_seconds=plan.compute_seconds,
            communication_seconds=plan.communication_seconds,
            measured_seconds=statistics.median(seconds),
            quickest_seconds=min(seconds),
            spread=(np.quantile(seconds, 0.75) - np.quantile(seconds, 0.25)) / statistics.median(seconds),
        )
        for candidate, plan, seconds in zip(chosen, plans, samples, strict=True)
    ]
    return runs, report(name, runs)


def report(name: str, runs: Sequence[Run]) -> float:
    """Print predicted beside measured, and return rho."""
    print(f"  {'predicted':>9} {'compute':>8} {'comm.':>8} {'measured':>9} {'spread':>7}   ms")
    for run in runs:
        print(
            f"  {run.predicted_seconds * 1e3:9.1f} {run.compute_seconds * 1e3:8.1f} "
            f"{run.communication_seconds * 1e3:8.1f} {run.measured_seconds * 1e3:9.1f} {run.spread:7.0%}   "
            f"{run.origin}: {run.summary[:60]}"
        )
    predicted, measured = [r.predicted_seconds for r in runs], [r.measured_seconds for r in runs]
    rho, low, high = correlation(predicted, measured)
    verdict = "ok  " if rho >= WANTED and len(runs) >= LEAST_PLANS else "MISS"
    print(
        f"{verdict} {name}: Spearman {rho:.3f}, 95 % interval {low:.3f} to {high:.3f}, {len(runs)} plans\n",
        flush=True,
    )
    return rho


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.order", description="Predicted against measured order.")
    parser.add_argument(
        "--model", choices=list(MODELS), action="append", help="default: the three of OVERRIDES"
    )
    parser.add_argument("--profile", type=Path, help="table of `jaxplan profile`; without it, data sheets")
    parser.add_argument("--plans", type=int, default=16, help="most plans run for each model")
    parser.add_argument("--rounds", type=int, default=9, help="steps timed of each plan")
    parser.add_argument("--results", type=Path, help="file for the figures, JSON")
    options = parser.parse_args(arguments)
    topology = Topology.detect()
    if options.profile:
        topology = topology.with_profile(options.profile)
    machine = Machine.present()
    print(f"{topology.name} on {machine.processor}, {machine.num_cores} cores, jax {machine.jax}\n")
    results, holds = {}, True
    for name in options.model or list(OVERRIDES):
        runs, rho = run_model(name, topology, options.plans, options.rounds)
        results[name] = {"spearman": rho, "runs": [asdict(run) for run in runs]}
        holds = holds and rho >= WANTED and len(runs) >= LEAST_PLANS
        if options.results:
            body = {"machine": asdict(machine), "topology": topology.name, "models": results}
            write_whole(options.results, json.dumps(body, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
