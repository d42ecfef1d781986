"""An experiment as text: its table, and a line per claim."""

from __future__ import annotations

from collections import Counter

from benchmarks.papers._experiment import Experiment, Verdict
from benchmarks.papers._records import Record
from benchmarks.papers._registry import EXPERIMENTS


def verdict_line(verdict: Verdict) -> str:
    """One line: source, published, ours, outcome, and the reason with its figures where they differ."""
    claim = verdict.claim
    line = f"{verdict.outcome.upper():<12} {claim.source}: {claim.published}"
    if verdict.ours:
        line += f"  OURS: {verdict.ours}"
    if verdict.why:
        line += f"  WHY: {verdict.why}"
    return line + ("  (NOT CONFIRMED)" if verdict.confirmed is False else "")


def report(experiment: Experiment, record: Record | None) -> str:
    """The table and verdicts of a record; of an experiment that is not on record, that it is not."""
    if record is None:
        return f"{experiment.name}: not on record; run it without --recorded"
    lines = [f"\n{experiment.title}", experiment.setting, "", experiment.table(record.rows), ""]
    lines += [verdict_line(verdict) for verdict in experiment.verdicts(record.rows, record.causes)]
    return "\n".join([*lines, f"{record.seconds:.0f} s"])


def tally(name: str, record: Record | None) -> str:
    """How many claims agree, disagree and are not covered."""
    experiment = EXPERIMENTS[name]
    if record is None:
        return f"{experiment.title} (not on record)"
    counts = Counter(verdict.outcome for verdict in experiment.verdicts(record.rows, record.causes))
    words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("agrees", "disagrees", "not covered"))
    return f"{experiment.title}: {words}; {record.seconds:.0f} s"
