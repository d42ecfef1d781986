"""The inner loop of variable elimination: a sum of tables, minimised over its first axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

# Entries of a block of sums that stays in a core's second-level cache (2**16 float64 are 512 KiB).
_BLOCK_ENTRIES = 2**16


def aligned(table: np.ndarray, axes: tuple[int, ...], num_axes: int) -> np.ndarray:
    """Return a view of `table`, axis i standing for variable `axes[i]`, with one axis a variable.

    An axis that stands for no variable (-1) has one entry, and goes.
    """
    order, index = _alignment(axes, num_axes)
    return table.transpose(order)[index]


@functools.cache
def _alignment(axes: tuple[int, ...], num_axes: int) -> tuple[tuple[int, ...], tuple[slice | int | None, ...]]:
    order = tuple(sorted(range(len(axes)), key=lambda place: axes[place]))
    known = tuple(slice(None) if axis in axes else None for axis in range(num_axes))
    return order, (0,) * axes.count(-1) + known


def minimise_first_axis(terms: Sequence[np.ndarray], sizes: tuple[int, ...]) -> np.ndarray:
    """Return the minimum over axis 0 of the broadcast sum of `terms`.

    Small terms are added first. The full sum is never held: blocks of the first axis are made in cache and
    folded into the result in place. (Broadcasting it whole and taking `argmin` is ten times slower; the
    configurations behind the minimum are found again from the tables, see `run_schedule`.)

    Args:
      terms: arrays with one axis for each variable, of its size or 1; axis 0 is never 1 unless its size is.
      sizes: (n,) sizes of the variables.
    """
    parts = _presummed([np.ascontiguousarray(term) for term in terms], sizes)
    shape = sizes[1:]
    block = max(1, _BLOCK_ENTRIES // max(1, math.prod(shape)))
    result = np.full(shape, np.inf)
    buffer = np.empty((min(block, sizes[0]), *shape))
    for start in range(0, sizes[0], block):
        sums = buffer[: min(block, sizes[0] - start)]
        _sum_into(sums, [part[start : start + block] for part in parts])
        np.minimum(result, sums[0] if len(sums) == 1 else sums.min(axis=0), out=result)
    return result


def _presummed(terms: list[np.ndarray], sizes: tuple[int, ...]) -> list[np.ndarray]:
    """Add up terms for as long as their sum is smaller than the full table."""
    parts = sorted(terms, key=lambda term: term.size)
    full = math.prod(sizes)
    done: list[np.ndarray] = []
    for term in parts:
        for place, other in enumerate(done):
            joined = math.prod(map(max, term.shape, other.shape))
            if joined < full or term.size == full:
                done[place] = other + term
                break
        else:
            done.append(term)
    return done


def _sum_into(out: np.ndarray, parts: list[np.ndarray]) -> None:
    """Write the broadcast sum of `parts` into `out`."""
    if len(parts) == 1:
        out[...] = parts[0]
        return
    np.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        np.add(out, part, out=out)
