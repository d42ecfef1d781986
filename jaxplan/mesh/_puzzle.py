"""A change of sharding without names: labels for axes, and dimensions in an order of their own.

Where all shardings of the tensor on the machine are few, a puzzle has all its axes and dimensions, and shardings that
differ in names come to one. Otherwise fewer labels stand for them: see `_fewer`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from jaxplan.mesh._board import num_states
from jaxplan.mesh._sharding import Sharding
from jaxplan.mesh._shortest import Game
from jaxplan.mesh._states import State
from jaxplan.mesh._topology import Topology

Axes = tuple[int, ...]

# Boards of more states are looked for a smaller one in place of: a shortest path on them takes more than some 10 ms.
MOST_STATES = 10_000
# With one label per axis, where not all of the tensor is on the board and nothing is summed. A sum by blocks of axes
# may be several times dearer than the cheapest, so sums have as many states as can be listed.
MOST_SINGLE = 15_000
# Boards of more states are not listed at all.
MOST_LISTED = 30_000


class Puzzle(NamedTuple):
    """Two shardings on a board, and the meaning of its labels and dimensions.

    Attributes:
      game: the board and its prices.
      source, target: the shardings as its states.
      pieces: into which the axes that are on no label split the tensor, all the way.
      axes_of_label: the atomic axes of each label, major to minor.
      dims: the tensor's dimension for each of the board.
      prefixes: axes that stay, major to all labels, in each dimension of the board.
      kept: partial axes on no label.
    """

    game: Game
    source: State
    target: State
    pieces: int
    axes_of_label: tuple[Axes, ...]
    dims: tuple[int, ...]
    prefixes: tuple[Axes, ...]
    kept: Axes

    @property
    def is_listed(self) -> bool:
        """Whether all states of the board are listed."""
        return num_states(self.game.caps, self.game.sizes) <= MOST_LISTED

    def axes(self, labels: Iterable[int]) -> Axes:
        """The atomic axes of labels."""
        return tuple(axis for label in labels for axis in self.axes_of_label[label])


def is_on_one_board(caps: tuple[int, ...], topology: Topology) -> bool:
    """Whether all shardings of a tensor are on one board, every axis as a label."""
    sizes = tuple([axis.size for axis in topology.axes])
    return num_states(tuple(sorted([cap for cap in caps if cap > 1])), sizes) <= MOST_STATES


def puzzle(source: Sharding, target: Sharding, caps: tuple[int, ...], topology: Topology) -> Puzzle:
    """The puzzle of two shardings; ``caps``: per dimension, the number that its splits must divide."""
    if not is_on_one_board(caps, topology):
        return _fewer(source, target, caps, topology)
    split = [d for d, cap in enumerate(caps) if cap > 1]
    split.sort(key=lambda d: (caps[d], _form(target.dims[d], topology)))
    blocks = _named(source, target, split, topology)
    return _on_board(source, target, caps, topology, blocks, tuple(split), ((),) * len(split))


def _named(source: Sharding, target: Sharding, split: list[int], topology: Topology) -> list[Axes]:
    """Every axis as a label of its own; those of one level and size by appearance, in the target first."""
    axes, order = topology.axes, dict.fromkeys(
        itertools.chain(
            *(target.dims[d] for d in split), target.partial, *(source.dims[d] for d in split), source.partial,
            range(len(topology.axes)),
        )
    )  # fmt: skip
    return sorted([(a,) for a in order], key=lambda block: (axes[block[0]].level, axes[block[0]].size))


@lru_cache(maxsize=2**14)
def _form(dim: Axes, topology: Topology) -> tuple[tuple[int, int], ...]:
    """Levels and sizes of the axes of a dimension."""
    return tuple((topology.axes[a].level, topology.axes[a].size) for a in dim)


def _on_board(
    source: Sharding,
    target: Sharding,
    caps: tuple[int, ...],
    topology: Topology,
    blocks: list[Axes],
    dims: tuple[int, ...],
    prefixes: tuple[Axes, ...],
) -> Puzzle:
    """The puzzle with a label for each block of axes, which stand for no more than these dimensions split."""
    axes = topology.axes
    label_of = {block[0]: label for label, block in enumerate(blocks)}
    pieces_of = [math.prod([axes[a].size for a in prefix]) for prefix in prefixes]

    def state(sharding: Sharding) -> State:
        return State(
            tuple(
                [
                    tuple([label_of[a] for a in sharding.dims[d][len(p) :] if a in label_of])
                    for d, p in zip(dims, prefixes)
                ]
            ),
            tuple(sorted([label_of[a] for a in sharding.partial if a in label_of])),
        )

    sizes = tuple([math.prod([axes[a].size for a in block]) for block in blocks])
    most = math.prod(sizes)
    on_labels = {a for block in blocks for a in block}
    staying = [a for d, dim in enumerate(source.dims) for a in (dim if d not in dims else ())]
    return Puzzle(
        game=Game(
            tuple([math.gcd(caps[d] // n, most) for d, n in zip(dims, pieces_of)]),
            sizes,
            tuple([axes[block[0]].level for block in blocks]),
            topology,
        ),
        source=state(source),
        target=state(target),
        pieces=math.prod(pieces_of) * math.prod([axes[a].size for a in staying]),
        axes_of_label=tuple(blocks),
        dims=dims,
        prefixes=prefixes,
        kept=tuple([a for a in target.partial if a not in on_labels]),
    )


def _fewer(source: Sharding, target: Sharding, caps: tuple[int, ...], topology: Topology) -> Puzzle:
    """The puzzle without the common part of both shardings: axes major in a dimension, and partial axes that are kept.

    The first of these whose board has few states: every axis by itself, with all dimensions, with those that change and
    the one of the others that can be split most, with those that change alone; the same with axes of one level that
    stand side by side, in the same order, before and after, as one label, and so idle ones.
    """
    prefixes = {d: _common(before, after) for d, (before, after) in enumerate(zip(source.dims, target.dims))}
    left = {d: cap // _pieces(prefixes[d], topology) for d, cap in enumerate(caps)}
    staying = {*itertools.chain(*prefixes.values()), *target.partial}
    joined = _joined(source, target, staying, topology)
    single = [(axis,) for block in joined for axis in block]
    changed = [d for d in prefixes if source.dims[d] != target.dims[d]]
    others = sorted((d for d in prefixes if d not in changed and left[d] > 1), key=lambda d: -left[d])
    splits = list(dict.fromkeys((*changed, *others[:count]) for count in (len(others), 1, 0)))
    is_sum = not set(source.partial) <= set(target.partial)
    ways = ((single, MOST_LISTED if is_sum else MOST_SINGLE), (joined, MOST_STATES), (single, MOST_LISTED))
    boards = [(blocks, split, most) for blocks, most in ways for split in splits]

    def fits(blocks: list[Axes], split: tuple[int, ...], most: int) -> bool:
        sizes = tuple(sorted(_pieces(block, topology) for block in blocks))
        return num_states(tuple(sorted(left[d] for d in split)), sizes) <= most

    blocks, split, _ = next((one for one in boards if fits(*one)), (joined, splits[-1], 0))
    dims = sorted(
        split,
        key=lambda d: (
            left[d],
            _form(target.dims[d][len(prefixes[d]) :], topology),
            _form(source.dims[d][len(prefixes[d]) :], topology),
        ),
    )
    axes = topology.axes
    blocks = sorted(blocks, key=lambda block: (axes[block[0]].level, _pieces(block, topology)))
    return _on_board(source, target, caps, topology, blocks, tuple(dims), tuple(prefixes[d] for d in dims))


def _common(before: Axes, after: Axes) -> Axes:
    return tuple(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after)))


def _pieces(axes: Axes, topology: Topology) -> int:
    return math.prod([topology.axes[a].size for a in axes])


def _joined(source: Sharding, target: Sharding, staying: set[int], topology: Topology) -> list[Axes]:
    """Axes that do not stay, in the order in which the target, then the source has them, joined where both agree."""
    after_old, after_new = _successors(source.dims), _successors(target.dims)
    in_old, in_new = (set(itertools.chain(*sharding.dims)) for sharding in (source, target))
    partial = set(source.partial) - staying

    def joined(a: int, b: int) -> bool:
        idle_before = not {a, b} & (in_old | partial)
        idle_after = not {a, b} & in_new
        before = after_old.get(a) == b or idle_before or {a, b} <= partial
        after = after_new.get(a) == b or idle_after
        return before and after and topology.axes[a].level == topology.axes[b].level

    order = dict.fromkeys(
        itertools.chain(*target.dims, *source.dims, source.partial, range(len(topology.axes)))
    )
    blocks: list[Axes] = []
    for axis in order:
        if axis in staying:
            continue
        if blocks and joined(blocks[-1][-1], axis):
            blocks[-1] += (axis,)
        else:
            blocks.append((axis,))
    return blocks


def _successors(dims: tuple[Axes, ...]) -> dict[int, int]:
    return {a: b for dim in dims for a, b in itertools.pairwise(dim)}
