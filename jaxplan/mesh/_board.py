"""All states of a small puzzle and all moves between them, once for every number of labels and dimensions.

A *board* is a puzzle without source and target: dimensions with their caps, labels with their sizes and levels. All
moves are allowed on it, so that one board serves every source and target, and its prices are arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from jaxplan.mesh._collectives import COLLECTIVES, terms_of_sizes
from jaxplan.mesh._moves import Move, Rules, State, moves
from jaxplan.mesh._topology import Topology

_KINDS = ("slice", *COLLECTIVES)
# Ties go to fewer collectives, then to fewer bytes: so many seconds each, less than any two prices differ by.
_SECONDS_PER_COLLECTIVE, _SECONDS_PER_WHOLE = 1e-12, 1e-13


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Skeleton:
    """States and moves for `n` labels and `d` dimensions, whatever their sizes; S states, E moves.

    Attributes:
      states: all of them.
      index: the position of each state.
      moves: ordered by the state that they start from.
      source, target: (E,) positions of the states of each move.
      first: (S + 1,) where the moves of each state begin.
      kind, group: (E,) index of the kind, and labels of the group as bits.
      members: (S, d, n) whether a label splits a dimension.
    """

    states: tuple[State, ...]
    index: dict[State, int]
    moves: tuple[Move, ...]
    source: np.ndarray
    target: np.ndarray
    first: np.ndarray
    kind: np.ndarray
    group: np.ndarray
    members: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anywhere(Rules):
    """Dimensions that all labels split."""

    def fits(self, dim: int, labels: tuple[int, ...]) -> bool:
        return True


@lru_cache(maxsize=64)
def skeleton(num_dims: int, num_labels: int) -> Skeleton:
    """Every state and move; a reversed or repeated move is a move too."""
    anywhere = _Anywhere(caps=(2**num_labels,) * num_dims, sizes=(2,) * num_labels, levels=(0,) * num_labels)
    states = tuple(_all_states(num_dims, num_labels))
    index = {state: i for i, state in enumerate(states)}
    steps = [list(moves(anywhere, state)) for state in states]
    flat = tuple(itertools.chain(*steps))
    members = np.zeros((len(states), num_dims, num_labels), dtype=bool)
    for i, state in enumerate(states):
        for dim, labels in enumerate(state.dims):
            members[i, dim, list(labels)] = True
    counts = [len(step) for step in steps]
    return Skeleton(
        states=states,
        index=index,
        moves=flat,
        source=np.repeat(np.arange(len(states)), counts),
        target=np.array([index[move.state] for move in flat], dtype=np.int64),
        first=np.concatenate([[0], np.cumsum(counts)]),
        kind=np.array([_KINDS.index(move.kind) for move in flat], dtype=np.int64),
        group=np.array([sum(1 << x for x in move.group) for move in flat], dtype=np.int64),
        members=members,
    )


def _all_states(num_dims: int, num_labels: int) -> Iterator[State]:
    """Each label unused, partial, or at any place of any dimension."""
    for homes in itertools.product(range(-2, num_dims), repeat=num_labels):
        partial = tuple(x for x in range(num_labels) if homes[x] == -2)
        inside = [[x for x in range(num_labels) if homes[x] == d] for d in range(num_dims)]
        for dims in itertools.product(*(tuple(itertools.permutations(labels)) for labels in inside)):
            yield State(tuple(dims), partial)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Board:
    """A skeleton with the moves that its caps allow, priced: fixed + slope x seconds for x bytes unsplit.

    Attributes:
      edges: (E',) indices into the skeleton's moves, by the state that they start from.
      source, target: (E',) positions of states.
      starts: positions in `edges` where the moves of each state that has any begin.
      movable: positions of those states.
      ranges: (S + 1,) where the moves of each state begin and end.
      fixed, slope: (E',) seconds and seconds per byte.
      fixed_with_ties: (E',) the same seconds, and those by which ties are broken.
      moved: (E',) bytes in units of the finest piece, 0 for a slice.
    """

    skeleton: Skeleton
    edges: np.ndarray
    source: np.ndarray
    target: np.ndarray
    starts: np.ndarray
    movable: np.ndarray
    ranges: np.ndarray
    fixed: np.ndarray
    slope: np.ndarray
    moved: np.ndarray
    fixed_with_ties: np.ndarray


@lru_cache(maxsize=2**12)
def board(
    caps: tuple[int, ...], sizes: tuple[int, ...], levels: tuple[int, ...], topology: Topology
) -> Board:
    """The board of dimensions with these caps and labels with these sizes on these levels."""
    bones = skeleton(len(caps), len(sizes))
    splits = np.where(bones.members, np.array(sizes, dtype=np.int64), 1).prod(axis=2)
    fits = (np.array(caps, dtype=np.int64) % splits == 0).all(axis=1)
    permute = _KINDS.index("collective-permute")
    same_shape = (splits[bones.source] == splits[bones.target]).all(axis=1)
    allowed = fits[bones.source] & fits[bones.target] & ((bones.kind != permute) | same_shape)
    edges = np.flatnonzero(allowed)
    source, target, kind = bones.source[edges], bones.target[edges], bones.kind[edges]
    pieces = splits.prod(axis=1)
    # A gather is counted by what comes out of it, everything else by what goes in.
    counted = np.where(kind == _KINDS.index("all-gather"), pieces[target], pieces[source])
    fixed, slope = _terms(sizes, levels, topology)
    movable, starts = np.unique(source, return_index=True)
    moved = np.where(kind == 0, 0, int(np.prod(sizes, dtype=np.int64)) // counted)
    ties = np.where(moved > 0, _SECONDS_PER_COLLECTIVE, 0.0) + moved * (
        _SECONDS_PER_WHOLE / max(1, int(moved.max(initial=1)))
    )
    priced = fixed[kind, bones.group[edges]]
    return Board(
        skeleton=bones,
        edges=edges,
        source=source,
        target=target,
        starts=starts,
        movable=movable,
        ranges=np.searchsorted(source, np.arange(len(bones.states) + 1)),
        fixed=priced,
        slope=slope[kind, bones.group[edges]] / counted,
        moved=moved,
        fixed_with_ties=priced + ties,
    )


def _terms(
    sizes: tuple[int, ...], levels: tuple[int, ...], topology: Topology
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds, and seconds per byte, of every kind (rows) for every group of labels (bits)."""
    fixed, slope = (np.zeros((len(_KINDS), 2 ** len(sizes))) for _ in range(2))
    fixed[0] = topology.chip.launch_seconds
    for group in range(1, 2 ** len(sizes)):
        at_level = [1] * len(topology.levels)
        for label, (size, level) in enumerate(zip(sizes, levels)):
            if group >> label & 1:
                at_level[level] *= size
        for kind in range(1, len(_KINDS)):
            fixed[kind, group], slope[kind, group] = terms_of_sizes(topology, _KINDS[kind], tuple(at_level))
    return fixed, slope
