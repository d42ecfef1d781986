"""Verdicts and tables of `benchmarks.quality`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.quality._record import Record

TOLERANCE = 1.01
"""Ours may be this much slower, or larger, than what it is held against."""
NOTABLE = 1.3
"""So many times faster than the best reference is worth an explanation."""
_GIB = 2**30
_TIMES: dict[str, Callable[[Record], float]] = {
    "serial": lambda r: r.serial_seconds,
    "overlapped": lambda r: r.overlapped_seconds,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One model on one machine.

    Attributes:
      ratios: time of the best reference that fits over that of our fastest, by how time is counted; empty where no
        reference fits.
      best: the name of that reference, likewise.
      predicted: the same ratio by the planner's own figures, of all references that were to be compiled.
      undominated: references that no point of ours matches in both time and memory, with the time that it fails in.
      failures: plans that could not be compiled.
    """

    pair: str
    size: str
    ratios: dict[str, float]
    best: dict[str, str]
    predicted: float
    undominated: tuple[str, ...]
    failures: tuple[str, ...]

    @property
    def holds(self) -> bool:
        fast = all(ratio >= 1 / TOLERANCE for ratio in self.ratios.values())
        return fast and not self.undominated and not self.failures

    @property
    def notable(self) -> bool:
        return bool(self.ratios) and min(self.ratios.values()) >= NOTABLE


def dominates(ours: Record, reference: Record, seconds: Callable[[Record], float]) -> bool:
    """Whether ours is as fast and as lean, but for the tolerance."""
    return (
        seconds(ours) <= TOLERANCE * seconds(reference)
        and ours.compiled_memory <= TOLERANCE * reference.compiled_memory
    )


def undominated(records: Sequence[Record]) -> list[tuple[Record, str]]:
    """The references that no point of ours dominates, and the count of time in which they are not."""
    compiled = [r for r in records if not r.failure]
    ours = [r for r in compiled if r.is_ours]
    return [
        (reference, name)
        for reference in compiled
        if reference.is_reference
        for name, seconds in _TIMES.items()
        if not any(dominates(point, reference, seconds) for point in ours)
    ]


def judge(records: Sequence[Record]) -> Verdict:
    """The verdict of the records of one pair, of which the references are those that are predicted to fit."""
    compiled = [r for r in records if not r.failure]
    fastest = next((r for r in compiled if "fastest" in r.roles), None)
    rivals = [r for r in compiled if r.is_reference and r.fits]
    ratios, best = {}, {}
    for name, seconds in _TIMES.items() if fastest is not None and rivals else ():
        rival = min(rivals, key=seconds)
        ratios[name], best[name] = seconds(rival) / seconds(fastest), rival.point  # pyright: ignore
    told = [r.predicted_seconds for r in records if r.is_reference]
    ours = [r.predicted_seconds for r in records if "fastest" in r.roles]
    return Verdict(
        pair=records[0].pair,
        predicted=min(told) / ours[0] if told and ours else math.nan,
        size=records[0].size,
        ratios=ratios,
        best=best,
        undominated=tuple(f"{r.point} ({name})" for r, name in undominated(records)),
        failures=tuple(r.point for r in records if r.failure),
    )


def by_pair(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each pair, pairs in order of appearance."""
    pairs: dict[str, list[Record]] = {}
    for record in records:
        pairs.setdefault(record.pair, []).append(record)
    return pairs


def row(record: Record) -> str:
    """One plan as a line of text."""
    name = f"{record.point} {'/'.join(record.roles)}"
    head = f"{name:<34} {record.predicted_seconds * 1e3:>9.2f} {record.predicted_memory / _GIB:>9.3f}"
    if record.failure:
        return f"{head}  FAILED: {record.failure.splitlines()[-1]}"
    flags = (" rematerialised" if record.rematerialised else "") + (
        "" if record.collectives_ok else " other collectives than planned"
    )
    return (
        f"{head} {record.compiled_memory / _GIB:>9.3f} {record.compute_seconds * 1e3:>9.2f} "
        f"{record.communication_seconds * 1e3:>9.2f} {record.serial_seconds * 1e3:>9.2f} "
        f"{record.overlapped_seconds * 1e3:>10.2f}{'' if record.fits else '  over the limit'}{flags}"
    )


HEADER = (
    f"{'plan':<34} {'pred. ms':>9} {'pred. GiB':>9} {'GiB':>9} {'compute':>9} {'comm.':>9} {'serial':>9} "
    f"{'overlapped':>10}"
)


def sentence(verdict: Verdict, gates: bool) -> str:
    """A verdict as a line of text."""
    mark = ("ok  " if verdict.holds else "MISS") if gates else "    "
    ratios = ", ".join(
        f"{name} {ratio:.3f}x of {verdict.best[name]}" for name, ratio in verdict.ratios.items()
    )
    text = f"{mark} {verdict.pair} ({verdict.size}): {ratios or 'nothing to compare'}"
    text += f"; predicted {verdict.predicted:.3f}x"
    if verdict.undominated:
        text += f"; not matched: {', '.join(verdict.undominated)}"
    return text + (f"; not compiled: {', '.join(verdict.failures)}" if verdict.failures else "")


def report(records: Sequence[Record], gates: Sequence[str]) -> int:
    """Print every plan and every verdict; 1 if a pair that gates is missing or fails."""
    pairs = by_pair(records)
    verdicts = {pair: judge(members) for pair, members in pairs.items()}
    for pair, members in pairs.items():
        print(f"\n{pair}, {members[0].size}\n{HEADER}")
        for record in members:
            print(row(record))
    print("\ntime of the best reference that fits over that of our fastest:")
    for pair, verdict in verdicts.items():
        print(sentence(verdict, pair in gates))
    missing = [pair for pair in gates if pair not in pairs]
    for pair in missing:
        print(f"MISS {pair}: not compiled")
    notable = [pair for pair, verdict in verdicts.items() if verdict.notable]
    print(f"at least {NOTABLE}x faster than every reference that was compiled: {', '.join(notable) or 'none'}")
    return int(bool(missing) or not all(verdicts[pair].holds for pair in gates if pair in verdicts))
