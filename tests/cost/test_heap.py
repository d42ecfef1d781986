"""The heap of a TPU program: where buffers come to lie when each takes the smallest gap that it fits in."""

from __future__ import annotations

import numpy as np
import pytest

from jaxplan.cost._heap import heap_bytes
from jaxplan.cost._lifetimes import Lifetimes

Buffer = tuple[int, int, int]
"""First and last position, bytes."""


@pytest.mark.parametrize(
    ("buffers", "taken"),
    [
        ([], 0),
        ([(0, 3, 4), (1, 2, 5)], 9),
        ([(0, 1, 4), (2, 3, 5)], 5),  # one after the other
        ([(0, 1, 4), (1, 9, 1), (2, 3, 4)], 5),  # fits where the first one was
        ([(0, 1, 4), (1, 9, 1), (2, 3, 5)], 10),  # a small one that stays is in the way
        ([(0, 1, 4), (0, 9, 1), (0, 3, 2), (2, 9, 1), (4, 4, 3)], 7),  # the smaller gap is taken, the larger left
        ([(0, 1, 4), (0, 2, 3), (2, 4, 3), (3, 4, 4)], 7),  # two gaps become one
    ],
)
def test_buffers_take_the_smallest_gap(buffers: list[Buffer], taken: int) -> None:
    assert _heap(buffers) == taken


def _heap(buffers: list[Buffer]) -> int:
    first, last, sizes = np.array(buffers, dtype=np.int64).reshape(-1, 3).T
    return heap_bytes(first, last, sizes.astype(np.float64))


def test_heaps_are_those_of_a_search_through_every_buffer() -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        count = int(rng.integers(1, 60))
        first = rng.integers(0, 40, count)
        buffers = list(zip(first, first + rng.integers(0, 25, count), rng.integers(1, 9, count)))
        assert _heap(buffers) == _searched(buffers)


def _searched(buffers: list[Buffer]) -> int:
    """Every place of every buffer, tried byte by byte."""
    placed: list[tuple[int, int, int, int]] = []
    for first, last, size in sorted(buffers, key=lambda b: (b[0], -b[2])):
        taken = {byte for f, e, at, n in placed if f <= last and first <= e for byte in range(at, at + n)}
        end = max(taken, default=-1) + 1
        runs, start = [], 0
        for byte in range(end + 1):
            if byte in taken or byte == end:
                runs += [(byte - start, start)] if byte - start >= size and byte < end else []
                start = byte + 1
        placed.append((first, last, min(runs)[1] if runs else end, size))
    return max(at + n for _, _, at, n in placed)


def test_half_of_the_gaps_count_where_the_compiler_has_them() -> None:
    buffers = np.array([(0, 1, 4), (1, 9, 1), (2, 3, 5)])
    of_plan = {
        "first": buffers[:, 0],
        "last": buffers[:, 1],
        "sizes": buffers[:, 2].astype(np.float64),
        "labels": ("activations",) * 3,
        "resident": {"parameters": 3.0},
        "length": 10,
        "home": {},
        "copies": {},
    }
    assert Lifetimes(**of_plan).peak() == (9, {"parameters": 3, "activations": 6})
    assert Lifetimes(**of_plan, has_gaps=True).peak() == (
        11,
        {"parameters": 3, "activations": 6, "gaps in the heap": 2},
    )
