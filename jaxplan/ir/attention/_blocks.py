"""How many keys a block of scores has."""

from __future__ import annotations

MOST_ELEMENTS = 2**25
"""Scores of one block on one device: 128 MiB in float32, large enough for dots to reach their rate."""


def block_keys(num_rows: int, num_keys: int) -> int:
    """The most keys, of a number that divides all of a device, with which a block has at most `MOST_ELEMENTS` scores.

    >>> block_keys(2**18, 1024), block_keys(2**30, 1024), block_keys(8, 1024)
    (128, 1, 1024)
    """
    most = max(1, MOST_ELEMENTS // num_rows)
    return max(n for n in range(1, min(num_keys, most) + 1) if num_keys % n == 0)
