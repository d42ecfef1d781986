"""Which elements of its neighbours a device needs where a sliding window is split: integers only.

Along one dimension, window ``o`` of ``out_size`` covers the positions ``o stride - before .. + extent`` of the operand,
with ``in_size`` elements that stand ``dilation`` apart. Both sides are cut into ``parts`` equal blocks.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Halo:
    """The elements that a device adds to its block, and where its windows lie in the result.

    Attributes:
      before, after: elements of the previous and the next block.
      starts: per part, where its first window begins in the extended block; without dilation alone, else empty.
      padding: reach of the windows beyond the extended block, or beyond the part cut out of it.
    """

    before: int
    after: int
    starts: tuple[int, ...]
    padding: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window along one dimension.

    Attributes:
      extent: elements from its first to its last, holes of its own dilation included.
      stride: elements from one window to the next.
      dilation: elements from one element of the operand to the next, 1 without holes.
      padding: elements before and after the operand, negative where it is cut.
      in_size, out_size: elements of the operand, number of windows.
    """

    extent: int
    stride: int
    dilation: int
    padding: tuple[int, int]
    in_size: int
    out_size: int

    @property
    def is_disjoint(self) -> bool:
        """Whether windows lie side by side: nothing reaches into a neighbour's part."""
        return self.extent <= self.stride and self.dilation == 1 and not any(self.padding)

    @property
    def maps(self) -> bool:
        """Whether each window has a part of the operand to itself, with nothing left over."""
        return self.is_disjoint and self.in_size == self.out_size * self.stride

    def reach(self, num_windows: int) -> int:
        """Positions that so many neighbouring windows cover."""
        return (num_windows - 1) * self.stride + self.extent

    def halo(self, parts: int) -> Halo | None:
        """The halo for so many parts; None if they are unequal or reach beyond the next neighbour."""
        return _halo(self, parts)

    def scatter_halos(self, parts: int) -> tuple[Halo, Halo] | None:
        """Halos of the operand and of the windows' values, where windows write to the operand (`select_and_scatter`).

        None as for `halo`, and where parts of the operand do not begin where windows do.
        """
        return _scatter_halos(self, parts)

    def most_parts(self, *, scatters: bool = False) -> int:
        """The largest number of parts that has, and all smaller ones that divide have, a halo."""
        common, most = math.gcd(self.in_size, self.out_size), 1
        for parts in (n for n in range(2, common + 1) if common % n == 0):
            if (self.scatter_halos(parts) if scatters else self.halo(parts)) is None:
                break
            most = parts
        return most


@functools.lru_cache(maxsize=4096)
def _halo(window: Window, parts: int) -> Halo | None:
    if window.in_size % parts or window.out_size % parts:
        return None
    block, windows = window.in_size // parts, window.out_size // parts
    if window.dilation == 1:
        return _fitting(_undilated(window, parts, block, windows), block)
    if windows * window.stride != block * window.dilation:
        return None
    before = max(0, window.padding[0] // window.dilation)
    last = (windows - 1) * window.stride - window.padding[0] + window.extent - 1
    after = max(0, last // window.dilation - block + 1)
    low = window.padding[0] - before * window.dilation
    held = (block + before + after - 1) * window.dilation + 1
    halo = Halo(before=before, after=after, starts=(), padding=(low, window.reach(windows) - low - held))
    return _fitting(halo, block)


def _undilated(window: Window, parts: int, block: int, windows: int) -> Halo:
    """The blocks of the windows may be shorter than those of the operand: then each part begins elsewhere in it."""
    firsts = [d * (windows * window.stride - block) - window.padding[0] for d in range(parts)]
    before = max(0, -min(firsts))
    after = max(0, max(firsts) + window.reach(windows) - block)
    starts = tuple(first + before for first in firsts)
    return Halo(before=before, after=after, starts=starts, padding=(0, 0))


@functools.lru_cache(maxsize=4096)
def _scatter_halos(window: Window, parts: int) -> tuple[Halo, Halo] | None:
    if window.dilation != 1 or min(window.padding) < 0 or window.in_size != window.out_size * window.stride:
        return None
    if window.out_size % parts:
        return None
    windows, low = window.out_size // parts, window.padding[0]
    block = windows * window.stride
    earlier, later = max(0, (window.extent - 1 - low) // window.stride), -(-low // window.stride)
    before, after = earlier * window.stride + low, (later - 1) * window.stride - low + window.extent
    if after < 0:
        return None
    operand = _fitting(Halo(before=before, after=after, starts=(0,) * parts, padding=(0, 0)), block)
    source = _fitting(Halo(before=earlier, after=later, starts=(0,) * parts, padding=(0, 0)), windows)
    return None if operand is None or source is None else (operand, source)


def _fitting(halo: Halo, block: int) -> Halo | None:
    return halo if max(halo.before, halo.after) <= block else None
