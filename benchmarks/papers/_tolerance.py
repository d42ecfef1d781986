"""When a figure of ours is a published one: one tolerance for all claims.

Within a quarter counts as met, and each end of a published range is widened by as much. A speed-up is compared by its
gain, so that 1.6 times is 60 % and not "a quarter from nothing". Words have numbers too: see `WORDS`.
"""

from __future__ import annotations

from collections.abc import Iterable

TOLERANCE = 0.25
SAME = 1.02
"""Two predictions within 2 % are equal."""
NOTABLE = 1.25
"""Significantly, rapidly, much: by so many times at least; marginally, similar, almost, slightly: by less."""
WORDS = (
    "A published figure is met within 25 %, and each end of a published range is widened by as much. A speed-up is "
    "compared by its gain (1.6 times is a gain of 60 %), a saving by the percent saved. *Significantly*, *rapidly* "
    "and *much* are 1.25 times at least, *similar*, *marginally*, *almost* and *slightly* less than that. Two "
    "predictions within 2 % are equal. An order has to hold in every case, and what fits is taken at its bytes. "
    "Seconds of searches that ran on other machines are compared by order and ratio alone."
)


def near(ours: float, published: float) -> bool:
    """Whether a figure is the published one.

    Example:
      >>> near(0.57, 0.5), near(0.093, 0.063)
      (True, False)
    """
    return abs(ours / published - 1) <= TOLERANCE


def in_range(ours: Iterable[float], low: float, high: float) -> bool:
    """Whether all figures lie in a published range, widened at both ends.

    Example:
      >>> in_range([0.65, 0.87], 0.38, 0.61), in_range([0.76, 0.87], 0.6, 0.95)
      (False, True)
    """
    return all(low * (1 - TOLERANCE) <= figure <= high * (1 + TOLERANCE) for figure in ours)


def near_gain(ours: float, published: float) -> bool:
    """The same of a speed-up, by its gain.

    Example:
      >>> near_gain(1.65, 1.85), near_gain(1.19, 1.6)
      (True, False)
    """
    return near(ours - 1, published - 1)


def gains_in_range(ours: Iterable[float], low: float, high: float) -> bool:
    """Whether all speed-ups lie in a published range, by their gains.

    Example:
      >>> gains_in_range([1.25, 1.62], 1.3, 3.3), gains_in_range([1.05], 1.3, 3.3)
      (True, False)
    """
    return in_range([figure - 1 for figure in ours], low - 1, high - 1)
