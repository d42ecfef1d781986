"""Ordered shardings of one tensor over the atomic axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxplan.errors import ArgumentError
from jaxplan.mesh._axes import AtomicAxis

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


@dataclass(frozen=True, slots=True, repr=False)
class Sharding:
    """How one tensor lies on the devices.

    Attributes:
      dims: for each tensor dimension the indices of the atomic axes that split it, major to minor.
      partial: sorted indices of the axes over which the value is a sum that has not been taken yet.

    An axis appears at most once; an axis that does not appear holds copies.

    Example:
      >>> axes = Topology.parse("h100:2x8").axes  # node, gpu0, gpu1, gpu2, each of size 2
      >>> Sharding(((0, 1), ())).describe(axes)
      '(node gpu0),-'
      >>> Sharding(((), ()), partial=(1,)).describe(axes)  # every device holds a summand
      '-,-|+gpu0'
    """

    dims: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()
    _hash: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        used = [axis for dim in self.dims for axis in dim]
        used.extend(self.partial)
        if len(set(used)) != len(used):
            raise ArgumentError(
                f"sharding {self!r} uses an axis twice; an atomic axis splits one dimension or is partial, once"
            )
        if len(self.partial) > 1:
            object.__setattr__(self, "partial", tuple(sorted(self.partial)))
        object.__setattr__(self, "_hash", hash((self.dims, self.partial)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def replicated(cls, rank: int) -> Sharding:
        """A full copy on every device."""
        return cls(((),) * rank)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def used(self) -> tuple[int, ...]:
        """Axes that split a dimension or are partial, in order of appearance."""
        return tuple(axis for dim in self.dims for axis in dim) + self.partial

    def num_splits(self, axes: Sequence[AtomicAxis]) -> tuple[int, ...]:
        """Into how many parts each dimension is split."""
        return tuple([_product(dim, axes) for dim in self.dims])

    def divides(self, shape: Sequence[int], axes: Sequence[AtomicAxis]) -> bool:
        """Whether every dimension of the global shape splits evenly."""
        return len(shape) == len(self.dims) and all(
            size % _product(dim, axes) == 0 for size, dim in zip(shape, self.dims)
        )

    def local_shape(self, shape: Sequence[int], axes: Sequence[AtomicAxis]) -> tuple[int, ...]:
        """Shape of the piece on one device.

        Example:
          >>> Sharding(((0, 1), ())).local_shape((64, 512), Topology.parse("h100:2x8").axes)
          (16, 512)
        """
        if not self.divides(shape, axes):
            raise ArgumentError(
                f"sharding {self.describe(axes)} splits {self.num_splits(axes)} does not divide the "
                f"shape {tuple(shape)}; "
                "each dimension must be a multiple of its number of parts"
            )
        return tuple([size // _product(dim, axes) for size, dim in zip(shape, self.dims)])

    def partition_spec(self, axes: Sequence[AtomicAxis]) -> PartitionSpec:
        """The same sharding for JAX: one entry per dimension, axis names major to minor.

        Example:
          >>> tuple(Sharding(((0, 1), ())).partition_spec(Topology.parse("h100:2x8").axes))
          (('node', 'gpu0'), None)
        """
        from jax.sharding import PartitionSpec

        if self.partial:
            raise ArgumentError(
                f"sharding {self.describe(axes)} is partial over {[axes[a].name for a in self.partial]}, which "
                "a PartitionSpec cannot say; resolve it with an all-reduce or reduce-scatter first"
            )
        return PartitionSpec(*(_spec_entry([axes[a].name for a in dim]) for dim in self.dims))

    def describe(self, axes: Sequence[AtomicAxis] | None = None) -> str:
        """Short text such as `(gpu0 gpu1),-|+gpu2`: dimensions, then partial axes; `-` is an unsplit dimension."""

        def name(axis: int) -> str:
            return str(axis) if axes is None else axes[axis].name

        def entry(dim: tuple[int, ...]) -> str:
            return "-" if not dim else name(dim[0]) if len(dim) == 1 else f"({' '.join(map(name, dim))})"

        text = ",".join(map(entry, self.dims)) or "scalar"
        return text + (f"|+{' +'.join(map(name, self.partial))}" if self.partial else "")

    def __repr__(self) -> str:
        return self.describe()


def _product(dim: tuple[int, ...], axes: Sequence[AtomicAxis]) -> int:
    splits = 1
    for axis in dim:
        splits *= axes[axis].size
    return splits


def _spec_entry(names: list[str]) -> str | tuple[str, ...] | None:
    return None if not names else names[0] if len(names) == 1 else tuple(names)
