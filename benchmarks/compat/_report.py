"""The table of models, and the bars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.accuracy._report import MEMORY_BELOW
from benchmarks.compat._measure import Record

LEAST_MODELS = 25
MOST_WITHOUT_RULE = 0.01
"""Share of a step's work that may run replicated because no rule describes an operator."""
_HEADER = (
    f"{'model':<28} {'package':<22} {'params':>8} {'operators':>9} {'groups':>6} {'plan s':>7} {'/trace':>6} "
    f"{'unknown':>7} {'no rule':>8} {'unsplit':>8} {'ms':>8} {'data ms':>8} {'memory':>7} {'unexp.':>6}  split"
)


def row(record: Record) -> str:
    """One line; ``memory`` is predicted over compiled bytes of the fastest plan."""
    head = f"{record.model:<28} {record.package + ' ' + record.version:<22}"
    if record.failure:
        return f"{head} FAILED at {record.failure.splitlines()[0][:120]}"
    ratio = record.planning_seconds / max(record.trace_seconds, 0.01)
    compiled = next(iter(record.points), None)
    memory = f"{compiled.predicted_memory / compiled.compiled_memory:7.3f}" if compiled else f"{'-':>7}"
    unexpected = f"{len(compiled.unexpected):>6}" if compiled else f"{'-':>6}"
    return (
        f"{head} {record.parameters / 1e6:7.1f}M {record.operators:9d} {record.groups:6d} "
        f"{record.planning_seconds:7.2f} {ratio:6.1f} {sum(n for _, n in record.unknown):7d} "
        f"{record.without_rule:8.3%} {record.unsplit:8.2%} {record.fastest_seconds * 1e3:8.3f} "
        f"{record.data_seconds * 1e3:8.3f} {memory} {unexpected}  {record.split}"
    )


def report(records: Sequence[Record]) -> int:
    """Print the table and the bars; 1 if one is missed."""
    print(f"\n{_HEADER}")
    for record in records:
        print(row(record))
    done = [r for r in records if not r.failure]
    for record in done:
        for name, count in record.unknown:
            print(f"without a rule in {record.model}: {name}, {count} times")
        for point in record.points:
            for what in point.unexpected:
                print(f"unexpected in {record.model}, {point.point}: {what}")
    compiled = [r for r in done if r.points]
    described = [r for r in compiled if r.without_rule < MOST_WITHOUT_RULE]
    bars = {
        f"{len(compiled)} models of {len(records)} traced, planned and compiled (at least {LEAST_MODELS})": (
            len(compiled) >= LEAST_MODELS and len(compiled) == len(records)
        ),
        f"{len(described)} of them with less than {MOST_WITHOUT_RULE:.0%} of FLOPs replicated for want of a rule": (
            len(described) == len(compiled)
        ),
        "no collective that its plan does not have": not any(p.unexpected for r in done for p in r.points),
    }
    if compiled:
        errors = np.array([r.points[0].predicted_memory / r.points[0].compiled_memory - 1 for r in compiled])
        off = f"median {np.median(abs(errors)):.1%}, lowest {errors.min():+.1%}, highest {errors.max():+.1%}"
        low = f"{np.sum(errors < -MEMORY_BELOW)} by more than {MEMORY_BELOW:.0%} low"
        print(f"memory, predicted beside compiled: {off}, {low}")
    for text, is_met in bars.items():
        print(f"{'ok  ' if is_met else 'MISS'} {text}")
    return 0 if all(bars.values()) else 1
