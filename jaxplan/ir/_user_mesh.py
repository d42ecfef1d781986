"""Meshes that the step itself names, and their axes among the atomic axes of a machine.

A step may hold `jax.lax.with_sharding_constraint` and `jax.shard_map`. Both name axes of a mesh of the user's; each of
these is an ordered group of atomic axes, because both meshes hold the same devices in the same order.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh

SpecDims = tuple[tuple[str, ...] | None, ...]
"""Per dimension the mesh axes that split it, major to minor; None where the step leaves it open."""


MESH, IN_DIMS, OUT_DIMS = "user_mesh", "user_in_dims", "user_out_dims"
"""Parameters that equations of the user's shardings have in a `Program`: a `UserMesh`, and `SpecDims` per tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMesh:
    """A mesh of the user's.

    Attributes:
      names, sizes: of its axes.
      order: number of the device at each place, row-major, devices counted by id; of a mesh without devices, 0, 1, ...
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def of(cls, mesh: Any) -> UserMesh:
        """From a `jax.sharding.Mesh` or `AbstractMesh`."""
        sizes = tuple(int(size) for size in mesh.axis_sizes)
        if isinstance(mesh, Mesh):
            ids = np.array([device.id for device in np.ravel(mesh.devices)])
            order = tuple(int(place) for place in np.argsort(np.argsort(ids)))
        else:
            order = tuple(range(math.prod(sizes)))
        return cls(names=tuple(map(str, mesh.axis_names)), sizes=sizes, order=order)

    @property
    def is_in_order(self) -> bool:
        """Whether its devices come in the order of their numbers."""
        return self.order == tuple(range(len(self.order)))

    def atomic_axes(self, axis_sizes: Sequence[int]) -> Mapping[str, tuple[int, ...]] | None:
        """Each axis as atomic axes, major to minor; None where there is no such grouping.

        Args:
          axis_sizes: sizes of the atomic axes, outermost first; devices are numbered row-major over them.
        """
        return _atomic_axes(self, tuple(axis_sizes))

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in zip(self.names, self.sizes))
        return f"({axes})" + (
            "" if self.is_in_order else f" over devices in the order {list(self.order[:8])}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAxes:
    """How a step wants one dimension split: axes of its mesh, major to minor, or none."""

    mesh: UserMesh
    names: tuple[str, ...]

    def atomic_axes(self, axis_sizes: Sequence[int]) -> tuple[int, ...] | None:
        """The atomic axes, major to minor; None where the mesh has no such grouping."""
        found = self.mesh.atomic_axes(axis_sizes)
        return None if found is None else tuple(itertools.chain.from_iterable(found[n] for n in self.names))


def spec_dims(spec: Sequence[Any], rank: int, unconstrained: frozenset[int] = frozenset()) -> SpecDims:
    """The entries of a PartitionSpec, one per dimension."""
    entries = [*spec, *[None] * (rank - len(spec))]
    return tuple(
        None if d in unconstrained or not isinstance(entry, str | tuple | list | None) else _names(entry)
        for d, entry in enumerate(entries)
    )


def _names(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


@functools.lru_cache(maxsize=1024)
def _atomic_axes(mesh: UserMesh, axis_sizes: tuple[int, ...]) -> Mapping[str, tuple[int, ...]] | None:
    """The place of each axis is found by the stride of its devices, and then that of every device is checked."""
    if math.prod(mesh.sizes) != math.prod(axis_sizes):
        return None
    strides = {math.prod(axis_sizes[a + 1 :]): a for a, size in enumerate(axis_sizes) if size > 1}
    numbers = np.reshape(mesh.order, mesh.sizes)
    groups: dict[str, tuple[int, ...]] = {}
    places = np.zeros(mesh.sizes, dtype=np.int64)
    for axis, (name, size) in enumerate(zip(mesh.names, mesh.sizes)):
        line = numbers[tuple(slice(None) if d == axis else 0 for d in range(len(mesh.sizes)))]
        group, step = [], 1
        while step < size:
            a = strides.get(int(line[step]))
            if a is None or size % (step * axis_sizes[a]):
                return None
            group.append(a)
            step *= axis_sizes[a]
        groups[name] = tuple(reversed(group))
        places += np.reshape(line, [size if d == axis else 1 for d in range(len(mesh.sizes))])
    return groups if np.array_equal(places, numbers) else None
