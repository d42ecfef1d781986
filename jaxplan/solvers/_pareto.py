"""Pareto lists of (seconds, bytes), many at once: reduce, product, union, thinning.

Source: TensorOpt, section 3.1 and Algorithm 1. Letters: `R` lists, `N` candidates of each, `P` points kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Candidates that are sorted at a time: 2**20 of them take about 50 MB of working memory.
_BLOCK_CANDIDATES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lists:
    """One list of points in each cell of a table, ascending in memory and descending in time.

    Attributes:
      time: (*cells, P) seconds; infinite past the end of a list.
      memory: (*cells, P) bytes.
      source: (*cells, P) which candidate each point was, as the operation that made it counts them.
      is_exact: whether the operation that made it thinned no point away.
    """

    time: np.ndarray
    memory: np.ndarray
    source: np.ndarray
    is_exact: bool = True

    @property
    def cells(self) -> tuple[int, ...]:
        return self.time.shape[:-1]

    @property
    def length(self) -> int:
        return self.time.shape[-1]


def reduce_lists(time: np.ndarray, memory: np.ndarray, cap: int | None = None) -> Lists:
    """Return the frontier of each cell's candidates (Algorithm 1), thinned to `cap` points.

    Of equal points the first candidate is kept.

    Args:
      time: (*cells, N) seconds; infinite candidates are dropped.
      memory: (*cells, N) bytes.
      cap: most points of a list; None keeps all.
    """
    cells, num = time.shape[:-1], time.shape[-1]
    flat_time, flat_memory = time.reshape(-1, num), memory.reshape(-1, num)
    order = np.argsort(flat_memory, axis=1, kind="stable")
    flat_time = np.take_along_axis(flat_time, order, axis=1)
    flat_memory = np.take_along_axis(flat_memory, order, axis=1)
    keep = np.isfinite(flat_time)
    keep[:, 1:] &= flat_time[:, 1:] < np.minimum.accumulate(flat_time, axis=1)[:, :-1]
    # Of several kept points of equal memory the last is the fastest.
    next_kept = _next_kept_memory(flat_memory, keep)
    keep &= flat_memory != next_kept
    is_exact = True
    if cap is not None and (too_long := keep.sum(axis=1) > cap).any():
        keep[too_long] = _thinned(flat_time[too_long], flat_memory[too_long], keep[too_long], cap)
        is_exact = False
    return _compact(flat_time, flat_memory, order, keep, cells, is_exact)


def product(first: Lists, second: Lists, cap: int | None = None) -> Lists:
    """Return the frontier of all sums of a point of `first` and one of `second`, cell by cell.

    Cells broadcast. Candidate `i * second.length + j` is point i of `first` with point j of `second`.
    """
    cells = np.broadcast_shapes(first.cells, second.cells)
    if first.length == 1 or second.length == 1:
        time = np.ascontiguousarray(
            np.broadcast_to(first.time + second.time, (*cells, _longer(first, second)))
        )
        memory = np.where(np.isfinite(time), first.memory + second.memory, 0)
        source = np.broadcast_to(np.arange(time.shape[-1]), time.shape)
        lists = Lists(time=time, memory=memory, source=source)
        if cap is not None and time.shape[-1] > cap:
            return reduce_lists(time, memory, cap)
        return lists
    rows = _blocks(cells, first.length * second.length)
    flat = [
        np.broadcast_to(array, (*cells, array.shape[-1])).reshape(-1, array.shape[-1])
        for array in (first.time, first.memory, second.time, second.memory)
    ]
    parts = []
    for start, stop in rows:
        t1, m1, t2, m2 = (array[start:stop] for array in flat)
        time = (t1[:, :, None] + t2[:, None, :]).reshape(stop - start, -1)
        memory = (m1[:, :, None] + m2[:, None, :]).reshape(stop - start, -1)
        parts.append(reduce_lists(time, memory, cap))
    return _stacked(parts, cells)


def union_first_axis(lists: Lists, cap: int | None = None) -> Lists:
    """Return the frontier of the union over the first axis of cells.

    Candidate `k * lists.length + i` is point i of entry k of the axis.
    """
    size, *cells = lists.cells
    flat_time = np.moveaxis(lists.time, 0, -2).reshape(-1, size * lists.length)
    flat_memory = np.moveaxis(lists.memory, 0, -2).reshape(-1, size * lists.length)
    parts = [
        reduce_lists(flat_time[start:stop], flat_memory[start:stop], cap)
        for start, stop in _blocks(tuple(cells), size * lists.length)
    ]
    return _stacked(parts, tuple(cells))


def _longer(first: Lists, second: Lists) -> int:
    return max(first.length, second.length)


def _blocks(cells: tuple[int, ...], num_candidates: int) -> list[tuple[int, int]]:
    """Cut the cells into runs with at most `_BLOCK_CANDIDATES` candidates."""
    total = int(np.prod(cells, dtype=np.int64))
    step = max(1, _BLOCK_CANDIDATES // num_candidates)
    return [(start, min(start + step, total)) for start in range(0, total, step)]


def _next_kept_memory(memory: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Return for each entry the memory of the next kept one to its right, -1 where there is none."""
    num = memory.shape[1]
    places = np.where(keep, np.arange(num), num)
    following = np.full_like(places, num)
    following[:, :-1] = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1][:, 1:]
    padded = np.concatenate([memory, np.full((len(memory), 1), np.iinfo(np.int64).min)], axis=1)
    return np.take_along_axis(padded, following, axis=1)


def _thinned(time: np.ndarray, memory: np.ndarray, keep: np.ndarray, cap: int) -> np.ndarray:
    """Return which of the kept points stay: both ends, and one in each of `cap - 1` steps along the curve.

    A step is an equal share of the way from the first to the last point, each objective measured over the
    list's own range.
    """
    rows = np.arange(len(time))
    first = np.argmax(keep, axis=1)
    last = keep.shape[1] - 1 - np.argmax(keep[:, ::-1], axis=1)
    memory_range = (memory[rows, last] - memory[rows, first]).astype(float)
    time_range = time[rows, first] - time[rows, last]
    way = (memory - memory[rows, first][:, None]) / memory_range[:, None]
    way = way + (time[rows, first][:, None] - np.where(keep, time, 0.0)) / time_range[:, None]
    step = np.where(keep, np.minimum((way * (0.5 * (cap - 1))).astype(np.int64), cap - 2), -1)
    highest = np.maximum.accumulate(step, axis=1)
    stays = keep.copy()
    stays[:, 1:] &= step[:, 1:] > highest[:, :-1]
    stays[rows, last] = True
    return stays


def _compact(
    time: np.ndarray,
    memory: np.ndarray,
    order: np.ndarray,
    keep: np.ndarray,
    cells: tuple[int, ...],
    is_exact: bool,
) -> Lists:
    """Move the kept points of each row to its front."""
    length = max(1, int(keep.sum(axis=1).max(initial=0)))
    rows, columns = np.nonzero(keep)
    places = (np.cumsum(keep, axis=1) - 1)[rows, columns]
    out_time = np.full((len(time), length), np.inf)
    out_memory = np.zeros((len(time), length), np.int64)
    out_source = np.zeros((len(time), length), np.int64)
    out_time[rows, places] = time[rows, columns]
    out_memory[rows, places] = memory[rows, columns]
    out_source[rows, places] = order[rows, columns]
    shape = (*cells, length)
    return Lists(
        time=out_time.reshape(shape),
        memory=out_memory.reshape(shape),
        source=out_source.reshape(shape),
        is_exact=is_exact,
    )


def _stacked(parts: list[Lists], cells: tuple[int, ...]) -> Lists:
    """Join blocks of rows into one table."""
    length = max(part.length for part in parts)

    def join(name: str, fill: float) -> np.ndarray:
        arrays = [getattr(part, name) for part in parts]
        padded = [
            np.pad(array, ((0, 0), (0, length - array.shape[1])), constant_values=fill) for array in arrays
        ]
        return np.concatenate(padded).reshape((*cells, length))

    return Lists(
        time=join("time", np.inf),
        memory=join("memory", 0),
        source=join("source", 0),
        is_exact=all(part.is_exact for part in parts),
    )
