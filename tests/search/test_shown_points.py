"""Which plans become points: counted by hand."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from jaxplan.plans._undominated import undominated
from jaxplan.search._shown_points import NUM_RUNGS, shown_points


@dataclass(frozen=True)
class Priced:
    memory_bytes: int
    time_seconds: float


def test_undominated_plans_are_better_in_time_or_in_memory() -> None:
    first, twin, slower, larger = Priced(10, 5.0), Priced(10, 5.0), Priced(12, 6.0), Priced(20, 4.0)
    best = undominated([larger, slower, first, twin])
    assert best == [first, larger]
    assert best[0] is first  # of equals the first given


def test_both_ends_and_a_point_at_each_rung_are_shown() -> None:
    found = [Priced(1000 + 20 * i, 1000.0 - i) for i in range(500)]
    shown = shown_points([], found, None)
    assert (shown[0], shown[-1]) == (found[0], found[-1])
    assert len(shown) <= NUM_RUNGS + 1
    assert shown == sorted(shown, key=lambda p: p.memory_bytes)
    steps = [b.memory_bytes / a.memory_bytes for a, b in itertools.pairwise(shown)]
    assert (
        max(steps) < 11 ** (1.5 / NUM_RUNGS) + 0.02
    )  # the whole range is 11-fold: no gap of more than 1.5 rungs


def test_of_plans_nearer_than_a_hundredth_the_fastest_is_shown() -> None:
    lean, near, fast = Priced(10_000, 9.0), Priced(19_900, 5.0), Priced(20_000, 3.0)
    assert shown_points([], [lean, near, fast], None) == [lean, fast]


@pytest.mark.parametrize("limit, expected", [(None, [10, 20, 40]), (39, [10, 20]), (9, [])])
def test_only_what_fits_is_shown(limit: int | None, expected: list[int]) -> None:
    found = [Priced(10, 3.0), Priced(20, 2.0), Priced(40, 1.0)]
    assert [p.memory_bytes for p in shown_points([], found, limit)] == expected


def test_no_reference_is_leaner_than_the_leanest_point() -> None:
    """The two leanest are nearer than a hundredth; the other is shown too unless it is as slow as the reference."""
    reference, near, fast = Priced(10_000, 9.0), Priced(10_050, 5.0), Priced(20_000, 3.0)
    assert shown_points([reference], [near, fast], None) == [reference, near, fast]
    assert shown_points([reference], [Priced(10_050, 8.95), fast], None) == [reference, fast]


def test_a_reference_within_a_hundredth_of_the_fastest_is_matched_beside_it() -> None:
    reference, fast = Priced(9_950, 9.0), Priced(10_000, 3.0)
    assert shown_points([reference], [fast], None) == [reference, fast]
