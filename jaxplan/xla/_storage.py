"""How a tensor lies in memory, where that is not as the program has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MatrixDims = tuple[tuple[int, ...], tuple[int, ...]]
"""The dimensions of an operand that are the rows of its matrices, and those that are their columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelGroups:
    """Layout of an image with channels in groups of ``width``: batch and width are innermost."""

    batch: int
    features: int
    width: int

    def shape(self, local: tuple[int, ...]) -> tuple[int, ...]:
        """A local shape with groups and the channels of each instead of features."""
        width = min(self.width, local[self.features])
        groups = math.ceil(local[self.features] / width)
        return (*local[: self.features], groups, width, *local[self.features + 1 :])

    @property
    def inner(self) -> tuple[int, int]:
        """The innermost dimensions of such a shape."""
        return self.batch + (self.batch > self.features), self.features + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The properties beside local shape and dtype that decide the bytes of a tensor on a device.

    Attributes:
      itemsize: bytes of an element where they are not those of the dtype.
      inner: the two innermost dimensions, where memory is in tiles; empty: those that take the least padding.
      groups: an image with channels in groups.
      matrices: dots read it as matrices that are padded to whole multiples.
      copies: its resharded copies are held in elements of ``itemsize`` too.
    """

    itemsize: int | None = None
    inner: tuple[int, ...] = ()
    groups: ChannelGroups | None = None
    matrices: MatrixDims | None = None
    copies: bool = False

    def of_copies(self, itemsize: int) -> tuple[int, tuple[int, ...], ChannelGroups | None]:
        """Bytes of an element of resharded copies, with a dtype of ``itemsize`` bytes, and their order in memory."""
        return (self.itemsize or itemsize) if self.copies else itemsize, self.inner, self.groups


Order = tuple[int, ...]
"""Dimensions of a tensor from the slowest to the fastest in memory."""
ShapeOf = Callable[[int], Sequence[int]]
"""Shape of a tensor on one device."""

_TILE, _SHORT_TILE, _SHORT_TILE_ELEMENTS = 16, 8, 64 * 128
"""Both dimensions that a tiled kernel exchanges have 16 elements, or 8 and 8192 together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A transposition of a tensor: the dimensions that are fastest in memory before and after it; none where those
    stay."""

    tensor: int
    before: Order
    after: Order

    def is_tiled(self, shape_of: ShapeOf) -> bool:
        """Whether the kernel that does it moves tiles."""
        shape = shape_of(self.tensor)
        sizes = [math.prod(shape[d] for d in dims) for dims in (self.before, self.after)]
        return min(sizes) >= _TILE or (min(sizes) >= _SHORT_TILE and math.prod(sizes) >= _SHORT_TILE_ELEMENTS)


AS_DECLARED = Storage()
"""As the program has it: dense, in its dtype."""
