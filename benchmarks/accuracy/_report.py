"""Tables and bars of `benchmarks.accuracy`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxplan.audit._audit import SMALL_BYTES, SMALL_SHARE

if TYPE_CHECKING:
    from benchmarks.accuracy._record import Record

MEMORY_MEDIAN, MEMORY_95, MEMORY_BELOW = 0.05, 0.12, 0.08
BYTES_MEDIAN, BYTES_WORST = 0.02, 0.10
FLOPS_WORST = 0.01
LEAST_PLANS, LEAST_NOT_DATA_PARALLEL = 120, 3
_HEADER = (
    f"{'':<28} {'plans':>5} {'memory: median':>14} {'95 %':>7} {'lowest':>7} {'highest':>7} "
    f"{'bytes: median':>13} {'worst':>7} {'unexpected':>10} {'FLOPs: worst':>12}"
)


def report(records: Sequence[Record], held_out: Mapping[str, str]) -> int:
    """Print tables by model, topology and kind of point, then the bars; 1 if one is missed."""
    done = [r for r in records if not r.failure]
    if not done:
        print("nothing compiled")
        return 1
    print(f"\n{_HEADER}")
    for key in (lambda r: r.model, lambda r: r.topology, lambda r: r.kind):
        for name, members in _by(done, key).items():
            print(_row(name + (f" (held out{held_out[name]})" if name in held_out else ""), members))
        print()
    print(_row("all", done))
    return 0 if _bars(records, done) else 1


def memory_errors(records: Iterable[Record]) -> np.ndarray:
    """Predicted over compiled bytes, minus 1; programs that the compiler rematerialised are left out."""
    return np.array([r.predicted_memory / r.compiled_memory - 1 for r in records if not r.rematerialised])


def bytes_errors(records: Iterable[Record]) -> np.ndarray:
    """|predicted - compiled| over the larger, per plan and kind of collective; small ones as in an audit."""
    errors = []
    for record in records:
        small = max(SMALL_BYTES, SMALL_SHARE * sum(made for _, _, made in record.collectives))
        pairs = [(asked, made) for _, asked, made in record.collectives if max(asked, made) >= small]
        errors += [abs(asked - made) / max(asked, made) for asked, made in pairs]
    return np.array(errors)


def flops_errors(records: Iterable[Record]) -> np.ndarray:
    return np.array([r.predicted_flops / r.compiled_flops - 1 for r in records if r.compiled_flops])


def _by(records: Sequence[Record], key: Callable[[Record], str]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return dict(groups)


def _row(name: str, records: Sequence[Record]) -> str:
    memory, moved, flops = memory_errors(records), bytes_errors(records), flops_errors(records)
    unexpected = sum(bool(r.unexpected) for r in records)
    return (
        f"{name:<28} {len(records):>5} {_median(abs(memory)):>14.1%} {_quantile(abs(memory), 0.95):>7.1%} "
        f"{_least(memory):>+7.1%} {-_least(-memory):>+7.1%} {_median(moved):>13.2%} {-_least(-moved):>7.1%} "
        f"{unexpected:>10} {-_least(-abs(flops)):>12.2%}"
    )


def _bars(records: Sequence[Record], done: Sequence[Record]) -> bool:
    memory, moved, flops = memory_errors(done), bytes_errors(done), flops_errors(done)
    pairs = _by(done, lambda r: f"{r.model} on {r.topology}")
    below = int((memory < -MEMORY_BELOW).sum())
    fewest = min(sum(not r.data_parallel for r in members) for members in pairs.values())
    bars = {
        f"at least {LEAST_PLANS} plans compiled: {len(done)}": len(done) >= LEAST_PLANS,
        f"every plan compiles: {len(records) - len(done)} do not": len(done) == len(records),
        f"not data parallel on every pair: at least {fewest}": fewest >= LEAST_NOT_DATA_PARALLEL,
        f"memory, median error: {_median(abs(memory)):.1%}": _median(abs(memory)) <= MEMORY_MEDIAN,
        f"memory, 95th percentile: {_quantile(abs(memory), 0.95):.1%}": _quantile(abs(memory), 0.95)
        <= MEMORY_95,
        f"memory, furthest below compiled: {_least(memory):.1%}, {below} by more than {MEMORY_BELOW:.0%}": not below,
        f"collectives, median error of bytes per kind: {_median(moved):.2%}": _median(moved) <= BYTES_MEDIAN,
        f"collectives, worst: {-_least(-moved):.1%}": -_least(-moved) <= BYTES_WORST,
        f"plans with collectives not asked for: {sum(bool(r.unexpected) for r in done)}": not any(
            r.unexpected for r in done
        ),
        f"FLOPs, worst: {-_least(-abs(flops)):.2%}": -_least(-abs(flops)) <= FLOPS_WORST,
    }
    print()
    for text, holds in bars.items():
        print(f"{'ok  ' if holds else 'MISS'} {text}")
    flagged = [f"{r.model} {r.topology} {r.point}" for r in done if r.rematerialised]
    if flagged:
        print(f"rematerialised by the compiler, memory not judged: {', '.join(flagged)}")
    return all(bars.values())


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else 0.0


def _quantile(values: np.ndarray, share: float) -> float:
    return float(np.quantile(values, share)) if values.size else 0.0


def _least(values: np.ndarray) -> float:
    return float(values.min()) if values.size else 0.0
