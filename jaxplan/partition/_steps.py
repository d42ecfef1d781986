"""Execute one primitive resharding step on a global array over the atomic mesh.

Every step that communicates is a fully manual `jax.shard_map` over all axes of the mesh: measured to compile to exactly
the collective it names. A step that does not (a slice) is a sharding constraint.

A value that is a partial sum over axes ``p`` has one extra leading dimension of size ``prod(p)``, split over ``p``:
device i holds its own summand. So partial sums are ordinary global arrays, and linear equations map over the dimension.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout as DimensionOrder
from jax.experimental.layout import with_layout_constraint
from jax.sharding import NamedSharding, PartitionSpec

from jaxplan.cost import (
    TILE,
    TILE_BYTES,
    is_least_row_by_row,
    least_padded,
    padded_bytes,
    row_by_row_bytes,
    scattered_in_tiles,
)
from jaxplan.mesh import AtomicAxis, Sharding, Step, permutation_pairs


class Executor:
    """Steps over one mesh.

    Attributes:
      mesh: over the atomic axes in order (abstract or with devices).
      axes: the atomic axes.
      tiled: the devices keep matrices in tiles (TPU), see `_scatter_tiled`.
      ordered: pieces are put in order where a collective would keep another one (GPU), see `_moved`.
    """

    is_in_loop = False
    """Whether steps run in the body of a loop, or in a branch."""
    keeps_free = False
    """Whether values computed from constants alone stay whole, or are deferred until they are read."""

    def __init__(
        self, mesh: Any, axes: tuple[AtomicAxis, ...], *, tiled: bool = False, ordered: bool = False
    ) -> None:
        self.mesh, self.axes, self.tiled, self.ordered = mesh, axes, tiled, ordered

    def in_loop(self) -> Self:
        """The same for the body of a loop, or for a branch."""
        found = copy.copy(self)
        found.is_in_loop = True
        return found

    def names(self, axes: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.axes[a].name for a in axes)

    def size(self, axes: tuple[int, ...]) -> int:
        """Number of devices over which ``axes`` split."""
        return math.prod(self.axes[a].size for a in axes)

    def spec(self, sharding: Sharding) -> PartitionSpec:
        """PartitionSpec of the global array that stands for a value in ``layout``."""
        dims = Sharding(sharding.dims).partition_spec(self.axes)
        return PartitionSpec(self.names(sharding.partial), *dims) if sharding.partial else dims

    def constrain(self, value: Any, sharding: Sharding) -> Any:
        """Pin a value to a layout."""
        if not self.axes:
            return value
        return lax.with_sharding_constraint(value, NamedSharding(self.mesh, self.spec(sharding)))

    def place(self, value: Any, sharding: Sharding) -> Any:
        """A value that is whole on every device, in a layout."""
        return self.constrain(value, sharding)

    def whole(self, value: Any) -> Any:
        """A value that is whole on every device."""
        return value

    def zeros(self, shape: Sequence[int], dtype: Any, sharding: Sharding) -> Any:
        """Zero, as a value in a layout: partial sums have their leading dimension."""
        leading = (self.size(sharding.partial),) if sharding.partial else ()
        return self.constrain(jnp.zeros((*leading, *shape), dtype), sharding)

    def manual(self, fn: Any, operands: list[Any], sources: list[Sharding], target: Any) -> Any:
        """Run ``fn`` on the devices' own pieces; ``target`` is a layout or a pytree of them."""
        mapped = jax.shard_map(
            fn,
            mesh=self.mesh,
            in_specs=tuple(self.spec(sharding) for sharding in sources),
            out_specs=jax.tree.map(self.spec, target, is_leaf=lambda x: isinstance(x, Sharding)),
            check_vma=False,
        )
        with jax.sharding.use_abstract_mesh(getattr(self.mesh, "abstract_mesh", self.mesh)):
            return mapped(*operands)  # whatever mesh the caller has set

    def apply(self, value: Any, step: Step) -> Any:
        """The value after one step."""
        if step.kind == "slice":
            return self.constrain(value, step.target)
        return self.manual(lambda x: self._local(x, step), [value], [step.source], step.target)

    def behind(self, value: Any, sharding: Sharding, other: Any, other_sharding: Sharding) -> Any:
        """The value, in a way that each device computes after an element of its piece of the other.

        A barrier between the two would make the compiler write the other as a whole. See `_behind_element`.
        """
        return self.manual(_behind_element, [value, other], [sharding, other_sharding], sharding)

    def as_stored(self, value: Any, sharding: Sharding) -> Any:
        """A gradient in the order of dimensions in which its parameter lies in memory (TPU), see `_as_argument`."""
        if not self.tiled or sharding.partial or value.ndim < 2:
            return value
        return self.manual(_as_argument, [value], [sharding], sharding)

    def least_padded(self, value: Any, sharding: Sharding) -> Any:
        """A value in the order of dimensions in which a device's piece takes the least bytes, see `_least_padded`."""
        return self.manual(_least_padded, [value], [sharding], sharding)

    def _local(self, x: Any, step: Step) -> Any:
        """One step on a device's piece, without the leading dimension (of size 1) of a partial value.

        A reduce-scatter behind a dimension of size 1 is an all-reduce to the TPU compiler.
        """
        piece = self._moved(x[0] if step.source.partial else x, step)
        return piece[None] if step.target.partial else piece

    def _moved(self, x: Any, step: Step) -> Any:
        """The piece of a device after one step.

        An all-to-all brings pieces one after the other. Left alone, the GPU compiler kept them so, with the dimension
        that was split in front, and gave that order to all that was computed from them: of a Transformer with an
        embedding split on its width, every residual stream, saved in float32 for it (5 % of memory, 3 % of compute).
        An all-gather or a reduce-scatter has pieces one after the other too: in a loop over layers it gave that order
        to the whole stack of a kernel, which was copied for it.
        """
        names = self.names(step.axes)
        if step.kind == "all-gather":
            piece = self._in_order(x) if self.is_in_loop and _dim(step.dim) else x
            gathered = lax.all_gather(piece, names, axis=_dim(step.dim), tiled=True)
            return _least_padded(gathered) if self.tiled and gathered.ndim > 1 else gathered
        if step.kind == "all-to-all":
            split, concat = _dim(step.to_dim), _dim(step.dim)
            moved = lax.all_to_all(x, names, split_axis=split, concat_axis=concat, tiled=True)
            return self._in_order(moved)
        if step.kind == "collective-permute":
            everything = tuple(axis.name for axis in self.axes)
            return lax.ppermute(x, everything, permutation_pairs(step.source, step.target, self.axes))
        if step.kind == "all-reduce":
            return lax.psum(x, names)
        if step.kind == "reduce-scatter":
            if self.tiled and x.ndim > 1:
                return _scatter_tiled(x, names, _dim(step.dim), self.size(step.axes))
            scattered = lax.psum_scatter(x, names, scatter_dimension=_dim(step.dim), tiled=True)
            return self._in_order(scattered) if self.is_in_loop and _dim(step.dim) else scattered
        raise AssertionError(step.kind)

    def _in_order(self, x: Any) -> Any:
        """An array with its last dimension the fastest in memory (GPU)."""
        return with_layout_constraint(x, DimensionOrder(major_to_minor=tuple(range(x.ndim)))) if self.ordered else x


def _least_padded(x: Any) -> Any:
    """An array that rows would more than double, in the order of dimensions that takes the least bytes.

    The TPU compiler was seen to give an array of 1536 x 16 that was gathered along its 16 columns that order, and then
    all that was computed from it, in 8 times the bytes. So it was with the elements of a scan over 256 x 1536 x 16.
    """
    if row_by_row_bytes(x.shape, 1) <= 2 * padded_bytes(x.shape, 1):
        return x
    return with_layout_constraint(x, DimensionOrder(major_to_minor=_least_order(x.shape)))


def _least_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions, the slowest in memory first, in an order that takes the least bytes."""
    inner = least_padded(shape)
    return (*(d for d in range(len(shape)) if d not in inner), *inner)


def _behind_element(x: Any, other: Any) -> Any:
    """``x``, chosen by a comparison with the first element of ``other``; the compiler does not know its outcome.

    A number with its last bit set is not zero, so it is never true.
    """
    first = lax.slice(other, (0,) * other.ndim, (1,) * other.ndim).reshape(())
    if jnp.issubdtype(first.dtype, jnp.floating):
        first = lax.bitcast_convert_type(first.astype(jnp.float32), jnp.int32)
    never = (first.astype(jnp.int32) | 1) == 0
    return lax.select(never, jnp.zeros_like(x), x)


def _as_argument(x: Any) -> Any:
    """An array in the order of its dimensions that an argument of its shape has, where that is known: row after row if
    that takes the least padding, and a matrix column after column if that takes less.

    The TPU compiler was seen to give the update of a parameter the order of its gradient, and to copy the parameter and
    its moments, in float32, into that order and back.
    """
    order = tuple(range(x.ndim))
    is_least = is_least_row_by_row(x.shape)
    if not is_least and x.ndim > 2:
        return x
    return with_layout_constraint(x, DimensionOrder(major_to_minor=order if is_least else order[::-1]))


def _scatter_tiled(x: Any, names: tuple[str, ...], dim: int, parts: int) -> Any:
    """A reduce-scatter of `dim` with parts in a dimension of their own, in front of one matrix or a stack of them.

    The TPU compiler scatters whole tiles of 8 x 128 only. It makes an all-reduce of twice the bytes where a part is
    none (768 columns over 4 devices), where the dimension is neither the first nor in the matrix, or where parts of a
    stack of matrices do not lie one after the other in memory (the experts of a mixture; rows of 7 pixels, which
    would be padded). Of a matrix with scattered rows it wrote the other order first, and then a copy. Parts of
    less rows than a tile has (a head's 32 channels over 8 devices) are brought into whole tiles, padded, if they fill
    one.
    """
    part = tuple(n // parts if d == dim else n for d, n in enumerate(x.shape))
    if x.ndim == 2 and dim == 0:
        x = with_layout_constraint(x, DimensionOrder(major_to_minor=(0, 1)))
    in_tiles = scattered_in_tiles(part, x.dtype.itemsize) is not None
    if x.ndim > 3 and row_by_row_bytes(part, 1) > 2 * padded_bytes(part, 1):
        return _scatter_images(x, names, dim, parts, in_tiles)
    x = jnp.moveaxis(x.reshape(*x.shape[:dim], parts, x.shape[dim] // parts, *x.shape[dim + 1 :]), dim, 0)
    if in_tiles:
        return _scatter_whole_tiles(x.reshape(parts, -1), names).reshape(part)
    if x.ndim > 3 and (dim or x.shape[-2] % TILE[0]):
        x = with_layout_constraint(x, DimensionOrder(major_to_minor=tuple(range(x.ndim))))
    stack = x.reshape(parts, -1, *x.shape[-2:]) if x.ndim > 4 else x
    return lax.psum_scatter(stack, names, scatter_dimension=0, tiled=False).reshape(x.shape[1:])


def _scatter_images(x: Any, names: tuple[str, ...], dim: int, parts: int, in_tiles: bool) -> Any:
    """A reduce-scatter of an array with parts that would more than double row by row: each in the order of least bytes.

    32 features of 128 images of 147 x 147 pixels over 4 devices were written with 8 features innermost, padded to 128:
    a plan of 1.3 GiB took 4.3.
    """
    pieces = jnp.split(x, parts, axis=dim)
    part = pieces[0].shape
    order = _least_order(part)
    stack = jnp.stack([jnp.transpose(piece, order).reshape(-1, part[order[-1]]) for piece in pieces])
    if in_tiles:
        moved = _scatter_whole_tiles(stack.reshape(parts, -1), names)
    else:
        moved = lax.psum_scatter(stack, names, scatter_dimension=0, tiled=False)
    return jnp.transpose(moved.reshape([part[d] for d in order]), [order.index(d) for d in range(x.ndim)])


def _scatter_whole_tiles(flat: Any, names: tuple[str, ...]) -> Any:
    """One part, flat, of those of a sum; padded to whole tiles on the way, or the compiler exchanges parts of tiles."""
    size = flat.shape[1]
    tile = TILE_BYTES // flat.dtype.itemsize
    whole = jnp.pad(flat, ((0, 0), (0, -size % tile))).reshape(len(flat), -1, TILE[1])
    return lax.psum_scatter(whole, names, scatter_dimension=0, tiled=False).ravel()[:size]


def _dim(dim: int | None) -> int:
    assert dim is not None
    return dim
