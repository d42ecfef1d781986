"""Arrays of TPU programs lie in memory in tiles of 8 x 128 elements of their two innermost dimensions.

https://openxla.org/xla/tiled_layout and, for the sizes, https://docs.jax.dev/en/latest/pallas/tpu/details.html . The
compiler chooses which two dimensions are the innermost: those with the least padding, for arguments, and for most
computed values. Convolutions read and make images with batch and features innermost, at any padding.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from jaxplan.cost._splits import tensor_splits
from jaxplan.ir import GroupSpace, StepGraph
from jaxplan.xla._buffers import Buffers
from jaxplan.xla._storage import ChannelGroups
from jaxplan.xla.rules.gpu.padding import padded_share
from jaxplan.xla.rules.tpu.dot_operands import is_batch_larger

TILE = (8, 128)
"""Rows and columns."""
TILE_BYTES = 4096
"""Of one tile: of 32-bit elements those, of 16 bits twice as many rows."""
_NEARLY = 1.01
"""Of the least bytes: 1500 frames take 1504 rows, and were turned (`are_turned`); 28 pixels take 32, and were not."""
_PADDING_THAT_COUNTS = 0.01
_LEAST_BYTES = 512
"""Of any buffer, a scalar's too."""


def _padded_elements(rows: int, columns: int) -> int:
    """Elements of a matrix in whole tiles; one of less than five rows has tiles of four, two or one."""
    tile = min(TILE[0], 1 << (max(rows, 1) - 1).bit_length())
    return math.ceil(rows / tile) * tile * math.ceil(columns / TILE[1]) * TILE[1]


@functools.lru_cache(maxsize=2**14)
def padded_bytes(shape: tuple[int, ...], itemsize: int, inner: tuple[int, ...] = ()) -> int:
    """Bytes of an array of a local shape.

    ``inner`` are the two innermost dimensions, in the order with the less padding; by default any two, those with the
    least.
    """
    if len(shape) < 2:
        return _bytes_in_tiles(shape, itemsize, 1, math.prod(shape))
    candidates = [shape[d] for d in inner] if inner else shape
    return min(_bytes_in_tiles(shape, itemsize, *pair) for pair in itertools.permutations(candidates, 2))


def image_bytes(shape: tuple[int, ...], itemsize: int, inner: tuple[int, ...], groups: ChannelGroups | None) -> int:
    """`padded_bytes` of an array with channels that may lie in groups."""
    return padded_bytes(groups.shape(shape), itemsize, groups.inner) if groups else padded_bytes(shape, itemsize, inner)


def scattered_in_tiles(part: tuple[int, ...], itemsize: int) -> int | None:
    """Bytes of a part of a reduce-scatter that is brought into whole tiles for it, padded; None for other parts.

    Such parts have fewer rows than a tile, or would more than double row by row and end in a part of a tile that
    counts (of large images it does not, and the compiler failed to cut the padding off again). Not where more than a
    quarter would be padding.
    """
    if len(part) < 2:
        return None
    size = math.prod(part) * itemsize
    padding = -size % TILE_BYTES
    is_image = len(part) > 3 and row_by_row_bytes(part, 1) > 2 * padded_bytes(part, 1)
    counts = padding > _PADDING_THAT_COUNTS * size if is_image else part[least_padded(part)[0]] < TILE[0]
    return size + padding if counts and padding <= size / 3 else None


def row_by_row_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """Bytes of an array of two dimensions or more with the last two innermost, in their order."""
    return _bytes_in_tiles(shape, itemsize, *shape[-2:])


def is_least_row_by_row(shape: tuple[int, ...]) -> bool:
    """Whether an array of two dimensions or more takes the least bytes with its last two dimensions innermost."""
    return row_by_row_bytes(shape, 1) == padded_bytes(shape, 1)


def are_turned(shape: tuple[int, ...], inner: tuple[int, ...]) -> bool:
    """Whether a dot over the last dimension has others innermost than ``inner``, those of its operands.

    Batches of whole columns fill the units that multiply: there it has batch and features innermost. Else it has those
    of its operands, except images of which pixels instead of the batch take nearly the least bytes. Of tokens
    without ``inner`` those are turned that are fewer than sequences, but in batches of whole columns.
    """
    if not inner:
        return is_batch_larger(shape) and shape[0] % TILE[1] != 0
    reads_batch = inner[0] == 0
    if shape[0] % TILE[1] == 0:
        return not reads_batch
    least = min(_bytes_in_tiles(shape, 1, rows, shape[-1]) for rows in shape[1:-1])
    return reads_batch and least <= _NEARLY * padded_bytes(shape, 1)


def least_padded(shape: tuple[int, ...]) -> tuple[int, int]:
    """Which two dimensions, rows and columns, are innermost where an array of two or more takes the least bytes.

    Of equal ones those with more rows. Dimensions of size 1 are none; where less than two others are there, the last
    two.
    """
    large = [d for d, n in enumerate(shape) if n > 1]
    return min(
        itertools.permutations(large, 2),
        key=lambda pair: (_bytes_in_tiles(shape, 1, shape[pair[0]], shape[pair[1]]), -shape[pair[0]]),
        default=(len(shape) - 2, len(shape) - 1),
    )


def _bytes_in_tiles(shape: tuple[int, ...], itemsize: int, rows: int, columns: int) -> int:
    matrices = math.prod(shape) // max(1, rows * columns)
    return max(_LEAST_BYTES, matrices * _padded_elements(rows, columns) * itemsize)


def local_bytes(
    graph: StepGraph, buffers: Buffers, space: GroupSpace, splits: np.ndarray, t: int
) -> np.ndarray:
    """Bytes of a device's piece of a group's tensor under each of its configurations, shape (K,).

    ``splits`` is (K, C), the number of parts of each class.
    """
    tensor = graph.program.tensors[t]
    dims = space.tensor_dims.get(t, ((),) * len(tensor.shape))
    parts = [splits[:, list(classes)].prod(axis=1) for classes in dims] or [np.ones(len(splits))]
    storage = buffers.storage_of(t)
    if not buffers.is_tiled:
        whole = buffers.num_bytes[t] / tensor_splits(space, splits, t)
        if storage.matrices is None:
            return whole
        return whole * padded_share(tensor.shape / np.stack(parts, axis=1), storage.matrices)
    distinct, place = np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)
    shapes = [tuple([math.ceil(n / p) for n, p in zip(tensor.shape, row)]) for row in distinct.tolist()]
    batch, itemsize = buffers.batched.get(t, ()), storage.itemsize or tensor.itemsize
    sizes = [image_bytes(shape, itemsize, storage.inner, storage.groups) for shape in shapes]
    if batch:
        sizes = [0 if all(shape[d] == 1 for d in batch) else size for shape, size in zip(shapes, sizes)]
    if t in buffers.turned:
        sizes = [size if are_turned(shape, buffers.turned[t]) else 0 for shape, size in zip(shapes, sizes)]
    return np.array(sizes, dtype=np.float64)[place.ravel()]
