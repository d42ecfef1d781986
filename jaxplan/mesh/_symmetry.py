"""States of a board that are alike as seen from one of them: a chain costs the same from each of these.

Labels of one level and size that are idle in the goal, or partial, may change their names, and so may dimensions of one
cap that the goal does not split. Of three dimensions on 32 devices that is half to a seventieth of the states.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jaxplan.mesh._board import Board, board
from jaxplan.mesh._states import Ints, State

Sets = tuple[tuple[int, ...], ...]


class Symmetry(NamedTuple):
    """Labels, and dimensions, that may change their names among themselves; sets of one are left out."""

    labels: Sets
    dims: Sets


class Orbits(NamedTuple):
    """(S,) the class of each state, and (C,) the first state of each class."""

    of_state: Ints
    first: Ints


def symmetry(goal: State, caps: Sequence[int], sizes: Sequence[int], levels: Sequence[int]) -> Symmetry:
    """What may change its name without a change of the goal."""
    split = {label for labels in goal.dims for label in labels}
    free = [x for x in range(len(sizes)) if x not in split]
    empty = [d for d, labels in enumerate(goal.dims) if not labels]
    return Symmetry(
        labels=_alike(((x in goal.partial, levels[x], sizes[x]), x) for x in free),
        dims=_alike((caps[d], d) for d in empty),
    )


def _alike(keyed: Iterable[tuple[Hashable, int]]) -> Sets:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for key, x in keyed:
        found[key].append(x)
    return tuple(tuple(xs) for xs in found.values() if len(xs) > 1)


@lru_cache(maxsize=2**8)
def orbits(caps: tuple[int, ...], sizes: tuple[int, ...], alike: Symmetry) -> Orbits:
    """Classes of the states of a board."""
    found = _least_codes(board(caps, sizes), alike)
    _, first, of_state = np.unique(found, return_index=True, return_inverse=True)
    return Orbits(of_state.astype(np.int64), first)


def _least_codes(states: Board, alike: Symmetry) -> Ints:
    """(S,) the least code of a state under all changes of names."""
    table = states.table
    least = np.full(len(table.codes), np.iinfo(np.int64).max)
    for orders in itertools.product(*(itertools.permutations(dims) for dims in alike.dims)):
        home = np.arange(table.num_dims + 2)
        for dims, order in zip(alike.dims, orders, strict=True):
            home[list(dims)] = order
        slot = home[table.home] * max(1, table.num_labels) + table.place
        for labels in alike.labels:
            columns = list(labels)
            slot[:, columns] = np.sort(slot[:, columns], axis=1)
        np.minimum(least, slot @ table.digit, out=least)
    return least
