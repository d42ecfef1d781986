"""Published training runs beside our predictions of the same step, machine and sharding.

    python -m benchmarks.published                       # the rows of benchmarks/published/runs.csv
    python -m benchmarks.published --row v5p --row pax   # those whose names begin so
    python -m benchmarks.published --rows other.csv      # another table of the same columns
    python -m benchmarks.published --choices             # the published shardings beside those of a search

Every row is built in JAX from its dimensions (benchmarks/models/_decoder.py), traced on abstract arrays, given its
published sharding as a strategy with its own degrees, and predicted with overlap; nothing is searched, compiled or run.
Sources that rates were fitted on, and those that were never (benchmarks/published/_sources.py, chosen before the first
run), are reported apart; so are runs of PyTorch, which are other programs: a band, not an error. Pairs are of
configurations of one model on one chip that differ by 5 % in tokens per second and device; *order kept* is the share of
them that predictions order alike.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from benchmarks.published._choices import run_choices
from benchmarks.published._predict import Predicted, predict
from benchmarks.published._rows import TABLE, Row, UnknownRowError, read_rows

OWN_FIGURE = 8
"""A chip with so many rows that were never fitted has a figure of its own; the others have one together."""
DIFFERENT = 1.05
"""Configurations are compared in pairs where one is faster by this factor."""
HEADER = "| run | machine | published s | predicted s | error | compute s | communication s | memory GiB | held out |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    row: Row
    predicted: Predicted

    @property
    def error(self) -> float:
        return self.predicted.seconds / self.row.seconds - 1

    def rate(self, seconds: float) -> float:
        """Tokens per second and device."""
        number = self.row.number
        return number("global_batch") * number("seq") / number("devices") / seconds


def line(result: Result) -> str:
    row, found = result.row, result.predicted
    memory = f"{found.memory_bytes / 2**30:.1f}" + (f" ({row.memory_gib:g})" if row.memory_gib else "")
    return (
        f"| {row.name} | {row.topology.name} | {row.seconds:.4g} | {found.seconds:.4g} | {result.error:+.1%} "
        f"| {found.compute_seconds:.4g} | {found.communication_seconds:.4g} | {memory} "
        f"| {'yes' if row.is_held_out else 'no'} |"
    )


def figures(label: str, results: Sequence[Result]) -> str:
    """Quantiles of the absolute errors, and of how many pairs the order is kept."""
    if not results:
        return f"{label:<38} no rows"
    errors = np.abs([r.error for r in results])
    signed = np.median([r.error for r in results])
    kept, pairs = order(results)
    return (
        f"{label:<38} {len(results):>3} rows, median {np.median(errors):6.1%}, 90 % {np.quantile(errors, 0.9):6.1%}, "
        f"signed median {signed:+6.1%}; order kept of {kept} of {pairs} pairs"
    )


def order(results: Iterable[Result]) -> tuple[int, int]:
    """(pairs in the published order, pairs that differ) of configurations of one model on one machine, of a source."""
    groups: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for result in results:
        groups[*map(result.row.fields.__getitem__, ("source", "model", "hardware"))].append(result)
    kept = pairs = 0
    for group in groups.values():
        for one, other in itertools.combinations(group, 2):
            ratio = one.rate(one.row.seconds) / other.rate(other.row.seconds)
            if max(ratio, 1 / ratio) < DIFFERENT:
                continue
            found = one.rate(one.predicted.seconds) / other.rate(other.predicted.seconds)
            pairs += 1
            kept += (found > 1) == (ratio > 1)
    return kept, pairs


def report(results: Sequence[Result]) -> list[str]:
    """Figures of the rows that were never fitted, by chip; of those that were; of PyTorch's."""
    own = [r for r in results if not r.row.is_pytorch]
    held_out = [r for r in own if r.row.is_held_out]
    by_chip: dict[str, list[Result]] = defaultdict(list)
    for result in held_out:
        by_chip[result.row.kind].append(result)
    lines, rest = [], []
    for chip, found in sorted(by_chip.items()):
        if len(found) >= OWN_FIGURE:
            lines.append(figures(f"never fitted, {chip}", found))
        else:
            rest += found
    lines.append(figures("never fitted, other chips", rest))
    lines.append(figures("never fitted, all", held_out))
    lines.append(figures("fitted on", [r for r in own if not r.row.is_held_out]))
    lines.append(figures("PyTorch, a band", [r for r in results if r.row.is_pytorch]))
    return lines


def run(rows: Iterable[Row]) -> list[Result]:
    """Predict rows and print a line of each; those that cannot be built say why."""
    results = []
    print(HEADER + "\n" + "|---" * HEADER.count(" | ") + "|---|")
    for row in rows:
        try:
            results.append(Result(row=row, predicted=predict(row)))
        except UnknownRowError as error:
            print(f"| {row.name} | not built: {error} |", flush=True)
            continue
        print(line(results[-1]), flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.published", description="Published runs beside predictions."
    )
    parser.add_argument(
        "--rows", type=Path, default=TABLE, help="a table with the columns of benchmarks/published"
    )
    parser.add_argument(
        "--row", metavar="NAME", action="append", help="rows whose names begin so; default: all"
    )
    parser.add_argument("--usable", default="A", help="classes of rows in the column usable, such as AB")
    parser.add_argument(
        "--choices", action="store_true", help="search each step, and price the published sharding"
    )
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    start = time.perf_counter()
    rows = [row for row in read_rows(options.rows) if row.fields["usable"] in options.usable]
    if options.row:
        rows = [row for row in rows if row.name.startswith(tuple(options.row))]
    if options.choices:
        return run_choices(rows)
    results = run(rows)
    print()
    print("\n".join(report(results)))
    print(f"{len(results)} of {len(rows)} rows in {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
