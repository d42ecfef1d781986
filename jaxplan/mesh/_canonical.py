"""From two layouts to a puzzle: what stays is dropped, and names are replaced by an order of forms."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import NamedTuple

from jaxplan.mesh._layout import Layout
from jaxplan.mesh._puzzle import MAX_LABELS_FREELY_MOVED, Puzzle
from jaxplan.mesh._topology import Topology

Axes = tuple[int, ...]


class Canonical(NamedTuple):
    """A puzzle and what its labels and dimensions stand for.

    Attributes:
      puzzle: with dimensions ordered by their form, labels by level, size and appearance in the target.
      pieces: into which the axes that stay split the tensor, all the way.
      axes_of_label: the atomic axes of each label, major to minor.
      dims: the tensor's dimension for each of the puzzle.
    """

    puzzle: Puzzle
    pieces: int
    axes_of_label: tuple[Axes, ...]
    dims: tuple[int, ...]


class _Change(NamedTuple):
    """One dimension: pieces of the common prefix, axes beyond it before and after, and what is compared."""

    pieces: int
    old: Axes
    new: Axes
    form: tuple[tuple[tuple[int, int], ...], ...]


def canonical(source: Layout, target: Layout, caps: tuple[int, ...], topology: Topology) -> Canonical:
    """The puzzle of two layouts; `caps`: per dimension, the number that its splits must divide."""
    found, pieces = [], 1
    for d, (before, after) in enumerate(zip(source.dims, target.dims)):
        change = _change(before, after, topology)
        pieces *= change.pieces
        if before != after:
            found.append((caps[d] // change.pieces, change.form, d, change))
    found.sort(key=lambda item: item[:3])
    changes = [item[3] for item in found]
    partial = tuple([axis for axis in source.partial if axis not in target.partial])
    old, new = tuple([change.old for change in changes]), tuple([change.new for change in changes])
    blocks = _blocks(old, new, partial, topology)
    sizes = [math.prod([topology.axes[a].size for a in block]) for block in blocks]
    most = math.prod(sizes)
    label_of = {block[0]: label for label, block in enumerate(blocks)}
    puzzle = Puzzle(
        source=tuple([tuple([label_of[a] for a in dim if a in label_of]) for dim in old]),
        target=tuple([tuple([label_of[a] for a in dim if a in label_of]) for dim in new]),
        partial=tuple(sorted([label_of[a] for a in partial if a in label_of])),
        caps=tuple([math.gcd(item[0], most) for item in found]),
        sizes=tuple(sizes),
        levels=tuple([topology.axes[block[0]].level for block in blocks]),
    )
    return Canonical(puzzle, pieces, blocks, tuple([item[2] for item in found]))


@lru_cache(maxsize=2**16)
def _change(before: Axes, after: Axes, topology: Topology) -> _Change:
    axes = topology.axes
    common = 0
    while common < min(len(before), len(after)) and before[common] == after[common]:
        common += 1
    forms = [tuple((axes[a].level, axes[a].size) for a in dim[common:]) for dim in (after, before)]
    pieces = math.prod(axes[a].size for a in before[:common])
    return _Change(pieces, before[common:], after[common:], tuple(forms))


def _blocks(
    old: tuple[Axes, ...], new: tuple[Axes, ...], partial: Axes, topology: Topology
) -> tuple[Axes, ...]:
    """Labels: axes of one level that stand side by side, in the same order, before and after, move as one.

    As few as are moved freely stay single.
    """
    order = list(dict.fromkeys([*itertools.chain(*new), *itertools.chain(*old), *partial]))
    blocks: list[Axes] = [(axis,) for axis in order]
    if len(order) > MAX_LABELS_FREELY_MOVED:
        blocks = _joined(order, old, new, partial, topology)
    axes = topology.axes
    blocks.sort(key=lambda block: (axes[block[0]].level, math.prod([axes[a].size for a in block])))
    return tuple(blocks)


def _joined(
    order: list[int], old: tuple[Axes, ...], new: tuple[Axes, ...], partial: Axes, topology: Topology
) -> list[Axes]:
    after_old, after_new = _successors(old), _successors(new)
    in_old, in_new = set(itertools.chain(*old)), set(itertools.chain(*new))
    homeless_old = in_new - in_old - set(partial)
    homeless_new = (in_old | set(partial)) - in_new

    def joined(a: int, b: int) -> bool:
        before = (
            after_old.get(a) == b
            or (a in homeless_old and b in homeless_old)
            or (a in partial and b in partial)
        )
        after = after_new.get(a) == b or (a in homeless_new and b in homeless_new)
        return before and after and topology.axes[a].level == topology.axes[b].level

    blocks: list[Axes] = []
    for axis in order:
        if blocks and joined(blocks[-1][-1], axis):
            blocks[-1] += (axis,)
        else:
            blocks.append((axis,))
    return blocks


def _successors(dims: tuple[Axes, ...]) -> dict[int, int]:
    return {a: b for dim in dims for a, b in itertools.pairwise(dim)}
