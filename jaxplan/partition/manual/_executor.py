"""Steps of a resharding on one device's pieces, inside a manual program."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxplan.core import _compat
from jaxplan.mesh import AtomicAxis, Sharding, Step
from jaxplan.partition._steps import Executor
from jaxplan.partition.manual._free_values import FreeValue, FreeValues


class ManualExecutor(Executor):
    """Steps over one mesh, called where all of its axes are manual: a value is the piece of one device.

    A partial sum has the shape of its sum. Values computed from constants alone are whole, or `FreeValue`.
    """

    keeps_free = True

    def __init__(
        self, mesh: Any, axes: tuple[AtomicAxis, ...], *, tiled: bool = False, ordered: bool = False
    ) -> None:
        super().__init__(mesh, axes, tiled=tiled, ordered=ordered)
        self.free = FreeValues(self)

    def constrain(self, value: Any, sharding: Sharding) -> Any:
        """The piece as it is: it was made in its sharding."""
        return value

    def place(self, value: Any, sharding: Sharding) -> Any:
        """The device's piece of a value that is whole on every device."""
        if isinstance(value, FreeValue):
            return self.free.piece(value, sharding)
        for dim, axes in enumerate(sharding.dims):
            value = self.part(value, dim, axes)
        return value

    def whole(self, value: Any) -> Any:
        """A value that is whole, computed if it was deferred."""
        return self.free.whole(value) if isinstance(value, FreeValue) else value

    def zeros(self, shape: Sequence[int], dtype: Any, sharding: Sharding) -> Any:
        return jnp.zeros(sharding.local_shape(shape, self.axes), dtype)

    def manual(self, fn: Any, operands: list[Any], sources: list[Sharding], target: Any) -> Any:
        return fn(*operands)

    def apply(self, value: Any, step: Step) -> Any:
        """The piece after one step."""
        if step.kind == "slice":
            assert step.dim is not None
            return self.part(value, step.dim, step.axes)
        return of_words(lambda x: self._moved(x, step), value)

    def part(self, x: Any, dim: int, axes: tuple[int, ...]) -> Any:
        """The device's part of a dimension that is cut into as many as ``axes`` have devices, major to minor."""
        if not axes or self.size(axes) == 1:
            return x
        size = np.shape(x)[dim] // self.size(axes)
        return lax.dynamic_slice_in_dim(jnp.asarray(x), self.place_along(axes) * size, size, axis=dim)

    def place_along(self, axes: tuple[int, ...]) -> Any:
        """The device's number along ``axes``, the first of them the major one."""
        number: Any = jnp.int32(0)
        for a in axes:
            number = number * self.axes[a].size + lax.axis_index(self.axes[a].name)
        return number

    def gathered(self, x: Any, sharding: Sharding) -> Any:
        """A value whole on every device, from pieces in a sharding without partial sums."""
        for dim, axes in enumerate(sharding.dims):
            if axes:
                gather = functools.partial(lax.all_gather, axis_name=self.names(axes), axis=dim, tiled=True)
                x = of_words(gather, x)
        return x


def of_words(move: Any, x: Any) -> Any:
    """``move(x)``, of random keys on their words: collectives take no keys."""
    if not _compat.is_key_dtype(x.dtype):
        return move(x)
    words = move(jax.random.key_data(x))
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(x))
