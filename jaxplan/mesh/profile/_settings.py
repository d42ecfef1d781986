"""Settings of a measurement: sizes, shapes and dtypes, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp

from jaxplan.errors import ArgumentError
from jaxplan.mesh import COLLECTIVES, Topology
from jaxplan.mesh._profile_check import group_shapes
from jaxplan.mesh._profile_table import Key

ITEMSIZE = 4
"""Bytes of an element of the arrays that are communicated, float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes 2^i, and shapes of matrix products.

    Attributes:
      min_bytes, max_bytes: of collectives, as `jaxplan.mesh.collective_seconds` counts them, and of element-wise
        passes (read and written). Powers of two.
      dtypes: of matrix products.
      extents: of m, k and n of a single dot, ascending.
      batch, batch_extents: the same for a batch of dots.
      longest_seconds: shapes with a longer expected dot are left out.
      sample_seconds: how long one sample runs, about.
      num_samples: of each measurement; the quickest counts, since other programs only ever add time.
      num_repairs: rounds in which operations that took longer than a larger one are measured again.
    """

    min_bytes: int = 1 << 10
    max_bytes: int = 1 << 26
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    extents: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    batch: int = 16
    batch_extents: tuple[int, ...] = (16, 64, 256)
    longest_seconds: float = 0.2
    sample_seconds: float = 0.02
    num_samples: int = 3
    num_repairs: int = 3

    def __post_init__(self) -> None:
        for name in ("min_bytes", "max_bytes"):
            value = getattr(self, name)
            if value < 64 or value & (value - 1):
                raise ArgumentError(f"{name} is {value}; expected a power of two of at least 64")
        if self.min_bytes > self.max_bytes:
            raise ArgumentError(f"min_bytes {self.min_bytes} is above max_bytes {self.max_bytes}")
        for dtype in self.dtypes:
            if not _is_number(dtype):
                raise ArgumentError(
                    f"dtypes names {dtype!r}, which is no dtype of numbers that JAX knows.\n"
                    "  expected: names such as float32, bfloat16, float16, int8"
                )

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(1 << i for i in range(self.min_bytes.bit_length() - 1, self.max_bytes.bit_length()))

    def keys(self, topology: Topology) -> tuple[Key, ...]:
        """Everything to measure, small things first within a kind."""
        return (*self._collectives(topology), *self._matmuls(), *(("memory", size) for size in self.sizes))

    def _collectives(self, topology: Topology) -> Iterator[Key]:
        for shape in group_shapes(topology):
            for kind in COLLECTIVES:
                for size in self.sizes:
                    yield "collective", kind, shape, size

    def _matmuls(self) -> Iterator[Key]:
        shapes = [(1, m, k, n) for m in self.extents for k in self.extents for n in self.extents]
        few = self.batch_extents
        shapes += [(self.batch, m, k, n) for m in few for k in few for n in few]
        shapes.sort(key=lambda s: (s[0] * s[1] * s[2] * s[3], s))
        for dtype in self.dtypes:
            for shape in shapes:
                yield "matmul", dtype, *shape


def _is_number(dtype: str) -> bool:
    try:
        return bool(jnp.issubdtype(jnp.dtype(dtype), jnp.number))
    except TypeError:
        return False
