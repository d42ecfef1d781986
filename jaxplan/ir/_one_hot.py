"""One look-up per row as a comparison instead of a gather or scatter.

``take_along_axis`` with one index per row (the label's logit in a cross-entropy loss) is a gather, and its gradient a
scatter-add into zeros: opaque to fusion, so that the gradient of the logits exists in float32, and indivisible along
the axis that is indexed. Written as ``sum(where(iota == index, x, 0))`` and ``where(iota == index, update, operand)``
both are exact (one term is added to zeros), fuse with their neighbours, and split along every dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def one_hot_form(eqn: Any) -> Callable[..., Any] | None:
    """An equal function of the equation's operands, or None when it is no look-up of one index per row."""
    if eqn.primitive.name == "gather":
        return _gather_form(eqn)
    if eqn.primitive.name == "scatter-add":
        return _scatter_form(eqn)
    return None


def _gather_form(eqn: Any) -> Callable[..., Any] | None:
    numbers, operand, indices = eqn.params["dimension_numbers"], eqn.invars[0].aval, eqn.invars[1].aval
    axis = _row_axis(
        operand.shape, indices.shape, numbers.operand_batching_dims, numbers.start_indices_batching_dims,
        numbers.start_index_map, numbers.collapsed_slice_dims,
    )  # fmt: skip
    if axis is None or numbers.offset_dims or not jnp.issubdtype(operand.dtype, jnp.number):
        return None
    mode, fill = eqn.params["mode"], eqn.params["fill_value"]
    out = eqn.outvars[0].aval

    def look_up(x: jax.Array, index: jax.Array) -> jax.Array:
        row = _bounded(index.reshape(operand.shape[:axis]), operand.shape[axis], mode)
        found = jnp.sum(
            jnp.where(_matches(x.shape, axis, row), x, jnp.zeros_like(x)), axis=axis, dtype=x.dtype
        )
        if mode == lax.GatherScatterMode.FILL_OR_DROP:
            inside = (row >= 0) & (row < operand.shape[axis])
            found = jnp.where(inside, found, jnp.asarray(_fill(fill, x.dtype), x.dtype))
        return found.reshape(out.shape)

    return look_up


def _scatter_form(eqn: Any) -> Callable[..., Any] | None:
    numbers = eqn.params["dimension_numbers"]
    operand, indices = eqn.invars[0].aval, eqn.invars[1].aval
    axis = _row_axis(
        operand.shape, indices.shape, numbers.operand_batching_dims, numbers.scatter_indices_batching_dims,
        numbers.scatter_dims_to_operand_dims, numbers.inserted_window_dims,
    )  # fmt: skip
    if axis is None or numbers.update_window_dims or not jnp.issubdtype(operand.dtype, jnp.number):
        return None
    mode = eqn.params["mode"]

    def add_at(x: jax.Array, index: jax.Array, update: jax.Array) -> jax.Array:
        row = _bounded(index.reshape(operand.shape[:axis]), operand.shape[axis], mode)
        value = jnp.expand_dims(update.reshape(operand.shape[:axis]), axis)
        return x + jnp.where(_matches(x.shape, axis, row), value, jnp.zeros_like(value))

    return add_at


def _row_axis(shape, index_shape, operand_batch, index_batch, index_map, collapsed) -> int | None:
    """The indexed axis when it is the last one, every other axis is a batch axis, and each row has one index."""
    axis = len(shape) - 1
    batch = tuple(range(axis))
    if axis < 1 or shape[axis] < 2 or tuple(operand_batch) != batch or tuple(index_batch) != batch:
        return None
    if tuple(index_map) != (axis,) or tuple(collapsed) != (axis,):
        return None
    return (
        axis
        if tuple(index_shape[:axis]) == tuple(shape[:axis]) and all(n == 1 for n in index_shape[axis:])
        else None
    )


def _matches(shape: tuple[int, ...], axis: int, row: jax.Array) -> jax.Array:
    return lax.broadcasted_iota(row.dtype, shape, axis) == jnp.expand_dims(row, axis)


def _bounded(row: jax.Array, size: int, mode: Any) -> jax.Array:
    return jnp.clip(row, 0, size - 1) if mode == lax.GatherScatterMode.CLIP else row


def _fill(fill: Any, dtype: Any) -> Any:
    """The value read at an index outside the row, as `jax.lax.gather` documents it."""
    if fill is not None:
        return fill
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.nan
    return jnp.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.iinfo(dtype).max
