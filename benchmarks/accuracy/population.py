"""Memory of plain steps drawn at random: predicted beside compiled, on seeds that nobody has looked at.

    python -m benchmarks.accuracy.population --count 60 --save drawn.jsonl      # seeds derived from the current commit
    python -m benchmarks.accuracy.population --first 0 --count 60 --cache .aot  # seeds 0 to 59
    python -m benchmarks.accuracy.population --read drawn.jsonl                 # report saved records
    python -m benchmarks.accuracy.population --count 60 --plans plans.jsonl     # keep the plans too, for this:
    python -m benchmarks.accuracy.population --again plans.jsonl                # predict them again, without compiling
    python -m benchmarks.accuracy.population --again plans.jsonl --without RULE # as if the compiler did not do that
    python -m benchmarks.accuracy.population --first 7 --count 1 --describe     # print the step of a seed

Five plans of each step are compiled without their devices: the ends and the knee of the frontier, and references. By
default the first seed is derived from the hash of the commit that is measured, so that it is fresh for every commit.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np

import jaxplan
from benchmarks._record import write_lines
from benchmarks.accuracy._drawn_plans import DrawnPlan, predicted_again, read_plans
from benchmarks.accuracy._measure import chosen_points, line_of, measure
from benchmarks.accuracy._population import draw_step
from benchmarks.accuracy._record import Record, read_records, write_records
from benchmarks.accuracy._report import memory_errors
from jaxplan.xla.rules import check_names

PLANS_OF_A_STEP = 5
SEEDS = 10**6
"""First seeds are below this number."""


def seed_of_commit() -> int:
    """A seed that is another one for every commit."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    return int(head[:12], 16) % SEEDS


def run_seed(seed: int, topology: str, cache: Path | None) -> list[tuple[Record, DrawnPlan]]:
    """Plan the step of a seed and compile its points; `Record.model` is the seed's description."""
    jax.clear_caches()
    drawn = draw_step(seed)
    print(drawn.name, flush=True)
    try:
        frontier = jaxplan.plan(drawn.step, *drawn.args, topology=topology, progress=False)
    except jaxplan.InfeasibleError as error:
        print(f"  no plan fits: {error.smallest_memory_bytes}", flush=True)
        return []
    with ThreadPoolExecutor(2) as pool:
        points = chosen_points(frontier, PLANS_OF_A_STEP)
        records = list(pool.map(lambda p: measure(drawn.name, topology, *p, cache), points))
    for record in records:
        print("  " + line_of(record).removeprefix(drawn.name), flush=True)
    return [
        (
            record,
            DrawnPlan(
                model=drawn.name,
                point=name,
                plan=plan.to_json(),
                predicted_memory=record.predicted_memory,
                compiled_memory=record.compiled_memory,
            ),
        )
        for record, (name, _, plan) in zip(records, points, strict=True)
    ]


def summary(errors_of: Sequence[tuple[str, float]]) -> str:
    """A row of quantiles of (description of a step, error of a plan) for each family, and one for all."""
    groups: dict[str, list[float]] = defaultdict(list)
    for model, error in errors_of:
        groups[model.split(": ")[1].split(",")[0]].append(error)
    groups["all"] = [error for _, error in errors_of]
    rows = [f"{'':<16} {'plans':>5} {'median':>7} {'95 %':>7} {'lowest':>8} {'highest':>8} {'below -10 %':>12}"]
    for name, members in groups.items():
        errors = np.array(members)
        rows.append(
            f"{name:<16} {len(errors):>5} {np.median(abs(errors)):>7.1%} {np.quantile(abs(errors), 0.95):>7.1%} "
            f"{errors.min():>+8.1%} {errors.max():>+8.1%} {int((errors < -0.1).sum()):>12}"
        )
    return "\n".join(rows)


def predict_again(path: Path, without: Sequence[str]) -> str:
    """A line for each plan whose prediction has changed, and the summary of all."""
    lines, errors = list[str](), list[tuple[str, float]]()
    for drawn, memory in predicted_again(read_plans(path), check_names(without)):
        errors.append((drawn.model, memory / drawn.compiled_memory - 1))
        if memory != drawn.predicted_memory:
            before = drawn.predicted_memory / drawn.compiled_memory - 1
            lines.append(f"{drawn.model} {drawn.point}: {before:+.1%} -> {errors[-1][1]:+.1%}")
    return "\n".join([*lines, summary(errors)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy.population", description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, help="first seed; default: derived from the current commit")
    parser.add_argument("--count", type=int, default=60, help="number of steps")
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--cache", type=Path, help="folder to keep compiled programs in")
    parser.add_argument("--save", type=Path, help="write the records as JSON lines")
    parser.add_argument("--read", type=Path, nargs="+", help="compile nothing: report these saved records")
    parser.add_argument("--plans", type=Path, help="write the plans as JSON lines, for --again")
    parser.add_argument("--again", type=Path, help="compile nothing: predict the plans of this file again")
    parser.add_argument("--without", metavar="RULE", action="append", default=[], help="with --again: as if not so")
    parser.add_argument("--describe", action="store_true", help="plan and compile nothing: print the steps")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    first = seed_of_commit() if options.first is None else options.first
    if options.describe:
        for seed in range(first, first + options.count):
            drawn = draw_step(seed)
            print(drawn.name, jax.make_jaxpr(drawn.step)(*drawn.args), sep="\n")
        return 0
    if options.again:
        print(predict_again(options.again, options.without))
        return 0
    records, plans = read_records(options.read) if options.read else [], list[DrawnPlan]()
    for seed in () if options.read else range(first, first + options.count):
        found = run_seed(seed, options.topology, options.cache)
        records += [record for record, _ in found]
        plans += [plan for record, plan in found if not record.failure and not record.rematerialised]
        if options.save:
            write_records(options.save, records)
        if options.plans:
            write_lines(options.plans, plans)
    compiled = [record for record in records if not record.failure and not record.rematerialised]
    print(summary(list(zip([record.model for record in compiled], memory_errors(compiled).tolist(), strict=True))))
    failed = [record for record in records if record.failure]
    print("\n".join(f"failed: {record.model} {record.point}: {record.failure[-200:]}" for record in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
