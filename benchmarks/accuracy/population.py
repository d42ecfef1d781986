"""Memory of plain steps drawn at random: predicted beside compiled, on seeds that nobody has looked at.

    python -m benchmarks.accuracy.population --count 60 --save drawn.jsonl      # seeds derived from the current commit
    python -m benchmarks.accuracy.population --first 0 --count 60 --cache .aot  # seeds 0 to 59
    python -m benchmarks.accuracy.population --read drawn.jsonl                 # report saved records
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
from benchmarks.accuracy._measure import chosen_points, line_of, measure
from benchmarks.accuracy._population import draw_step
from benchmarks.accuracy._record import Record, read_records, write_records
from benchmarks.accuracy._report import memory_errors

PLANS_OF_A_STEP = 5
SEEDS = 10**6
"""First seeds are below this number."""


def seed_of_commit() -> int:
    """A seed that is another one for every commit."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    return int(head[:12], 16) % SEEDS


def run_seed(seed: int, topology: str, cache: Path | None) -> list[Record]:
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
    return records


def summary(records: Sequence[Record]) -> str:
    """A row of quantiles for each family, and one for all."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.model.split(": ")[1].split(",")[0]].append(record)
        groups["all"].append(record)
    groups["all"] = groups.pop("all")
    rows = [f"{'':<16} {'plans':>5} {'median':>7} {'95 %':>7} {'lowest':>8} {'highest':>8} {'below -10 %':>12}"]
    for name, members in groups.items():
        errors = memory_errors(members)
        rows.append(
            f"{name:<16} {len(errors):>5} {np.median(abs(errors)):>7.1%} {np.quantile(abs(errors), 0.95):>7.1%} "
            f"{errors.min():>+8.1%} {errors.max():>+8.1%} {int((errors < -0.1).sum()):>12}"
        )
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy.population", description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, help="first seed; default: derived from the current commit")
    parser.add_argument("--count", type=int, default=60, help="number of steps")
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--cache", type=Path, help="folder to keep compiled programs in")
    parser.add_argument("--save", type=Path, help="write the records as JSON lines")
    parser.add_argument("--read", type=Path, nargs="+", help="compile nothing: report these saved records")
    parser.add_argument("--describe", action="store_true", help="plan and compile nothing: print the steps")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    first = seed_of_commit() if options.first is None else options.first
    if options.describe:
        for seed in range(first, first + options.count):
            drawn = draw_step(seed)
            print(drawn.name, jax.make_jaxpr(drawn.step)(*drawn.args), sep="\n")
        return 0
    records = read_records(options.read) if options.read else []
    for seed in () if options.read else range(first, first + options.count):
        records += run_seed(seed, options.topology, options.cache)
        if options.save:
            write_records(options.save, records)
    print(summary([record for record in records if not record.failure]))
    failed = [record for record in records if record.failure]
    print("\n".join(f"failed: {record.model} {record.point}: {record.failure[-200:]}" for record in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
