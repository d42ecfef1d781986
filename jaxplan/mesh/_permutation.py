"""Which device sends to which when two shardings have the same local shapes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

from jaxplan.errors import ArgumentError
from jaxplan.mesh._axes import AtomicAxis
from jaxplan.mesh._sharding import Sharding


def permutation_pairs(source: Sharding, target: Sharding, axes: Sequence[AtomicAxis]) -> list[tuple[int, int]]:
    """(from, to) device pairs of the permute that turns `source` into `target`, by position in the device
    order.

    Each device receives the piece that `target` wants on it. Where several devices hold copies of a piece,
    those that need it keep their own, and the rest are matched in device order, so every device sends once
    and receives once. Identity pairs are included, as `jax.lax.ppermute` wants them.
    """
    if source.num_splits(axes) != target.num_splits(axes) or source.partial != target.partial:
        raise ArgumentError(
            f"no permute turns {source!r} into {target!r}: the local shapes or partial axes differ"
        )
    holders: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    wanters: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for device, place in enumerate(itertools.product(*(range(axis.size) for axis in axes))):
        holders[_piece(place, source, axes)].append(device)
        wanters[_piece(place, target, axes)].append(device)
    pairs: list[tuple[int, int]] = []
    for piece, senders in holders.items():
        receivers = wanters[piece]
        stay = [device for device in senders if device in receivers]
        pairs.extend((device, device) for device in stay)
        pairs.extend(zip((d for d in senders if d not in stay), (d for d in receivers if d not in stay)))
    return sorted(pairs)


def _piece(place: tuple[int, ...], sharding: Sharding, axes: Sequence[AtomicAxis]) -> tuple[int, ...]:
    """Number of the piece in each dimension, then the place along the partial axes (their terms differ)."""
    numbers = []
    for dim in sharding.dims:
        number = 0
        for axis in dim:
            number = number * axes[axis].size + place[axis]
        numbers.append(number)
    return (*numbers, *(place[axis] for axis in sharding.partial))
