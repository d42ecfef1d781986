"""Rates of matrix products by dtype and shape, interpolated between the shapes that were measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxplan.errors import ProfileError

Array = npt.NDArray[np.float64]
Shape = tuple[int, int, int, int]
_MOST_SHAPES = 1 << 16
"""Of the grid of one dtype, which is filled shape by shape."""
_ITEMSIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatmulRates:
    """Dots (batch, m, k) x (batch, k, n) on a grid of extents, per dtype.

    Attributes:
      extents: per dtype, the ascending extents of batch, m, k and n that were measured.
      log_rates: per dtype, logarithm of FLOP/s on that grid; a shape too large to be measured has the rate of the
        nearest one that was.
    """

    extents: Mapping[str, tuple[Array, Array, Array, Array]]
    log_rates: Mapping[str, Array]

    @classmethod
    def of(cls, seconds: Mapping[tuple[str, int, int, int, int], float]) -> MatmulRates:
        """The grid of measured seconds by (dtype, batch, m, k, n)."""
        extents, rates = {}, {}
        for dtype in sorted({key[0] for key in seconds}):
            of_dtype: dict[Shape, float] = {key[1:]: s for key, s in seconds.items() if key[0] == dtype}
            axes = tuple(sorted({shape[i] for shape in of_dtype}) for i in range(4))
            if math.prod(map(len, axes)) > _MOST_SHAPES:
                raise ProfileError(
                    f"matrix products in {dtype} span a grid of {math.prod(map(len, axes))} shapes; at most "
                    f"{_MOST_SHAPES} are expected: batch, m, k and n of few different extents each"
                )
            extents[dtype] = tuple(np.array(axis, dtype=np.float64) for axis in axes)
            rates[dtype] = _filled({s: np.log(2.0 * np.prod(s) / t) for s, t in of_dtype.items()}, axes)
        return cls(extents=extents, log_rates=rates)

    def seconds(self, dtype: str, batch: Array, m: Array, k: Array, n: Array) -> Array:
        """Seconds of dots of these extents.

        Log of the rate is multilinear in the logs of the extents. Beyond the largest extent the rate is constant,
        below the smallest the time is. A dtype that was not measured takes the rate of the next wider one
        that was, or of the widest.
        """
        name = self._measured_like(dtype)
        corners = []
        at_least = []
        for axis, extent in zip(self.extents[name], (batch, m, k, n)):
            extent = np.maximum(np.asarray(extent, dtype=np.float64), axis[0])
            at_least.append(extent)
            position = np.interp(np.log(extent), np.log(axis), np.arange(len(axis)))
            low = np.minimum(position.astype(np.int64), max(0, len(axis) - 2))
            share = position - low
            corners.append(((low, 1 - share), (np.minimum(low + 1, len(axis) - 1), share)))
        log_rate = 0.0
        for corner in itertools.product(*corners):
            index, weights = zip(*corner)
            log_rate = log_rate + self.log_rates[name][index] * np.prod(np.broadcast_arrays(*weights), axis=0)
        return 2.0 * np.prod(np.broadcast_arrays(*at_least), axis=0) / np.exp(log_rate)

    def _measured_like(self, dtype: str) -> str:
        if dtype in self.extents:
            return dtype
        size = _ITEMSIZES.get(dtype, 4)
        sizes = {name: _ITEMSIZES.get(name, 4) for name in self.extents}
        return min(sizes, key=lambda name: (sizes[name] < size, abs(sizes[name] - size), name))


def _filled(log_rates: Mapping[Shape, float], axes: tuple[list[int], ...]) -> Array:
    """The whole grid: a shape that was not measured has the rate of the nearest shape, in steps of the grid."""
    positions = {
        tuple(axis.index(e) for axis, e in zip(axes, shape)): rate for shape, rate in log_rates.items()
    }
    known = np.array(list(positions), dtype=np.int64)
    rates = np.array(list(positions.values()))
    grid = np.empty([len(axis) for axis in axes])
    for index in np.ndindex(grid.shape):
        grid[index] = rates[np.abs(known - np.array(index)).sum(axis=1).argmin()]
    return grid
