"""What is left of a resharding when names are taken away."""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.mesh._moves import Dims, Rules

# With up to so many labels, or one more in few dimensions, all moves are tried; else those towards the target.
MAX_LABELS_FREELY_MOVED = 3
_FEW_DIMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    """Two layouts of one tensor, canonical: many tensors and axes come to the same puzzle.

    Untouched dimensions and common major prefixes are dropped; labels 0, 1, ... stand for one atomic axis, or for
    several of one level that stay together.

    Attributes:
      source, target: labels of each differing dimension beyond the common prefix, major to minor.
      partial: labels to be resolved: the value is a sum over each.
      caps, sizes, levels: see `Rules`.
    """

    source: Dims
    target: Dims
    partial: tuple[int, ...]
    caps: tuple[int, ...]
    sizes: tuple[int, ...]
    levels: tuple[int, ...]

    @property
    def large(self) -> bool:
        most = MAX_LABELS_FREELY_MOVED + (len(self.caps) <= _FEW_DIMS)
        return len(self.sizes) > most

    @property
    def rules(self) -> Rules:
        """The moves that are tried; those towards the target when the puzzle is large."""
        return Rules(
            caps=self.caps,
            sizes=self.sizes,
            levels=self.levels,
            target=self.target if self.large else None,
        )
