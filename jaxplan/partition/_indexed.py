"""Look-ups in, and updates of, a dimension that the devices hold in parts (a vocabulary, the rows of a cache).

Every device sees all indices, shifts them by the start of its part, and does its own: a look-up returns zeros for the
others, so that the results of all devices add up, and an update drops them. (Megatron-LM, section 3, does this to the
embedding: https://arxiv.org/abs/1909.08053.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxplan.ir import OperatorRule

_Mode = lax.GatherScatterMode
Bind = Callable[[Mapping[str, Any], Sequence[Any]], list[Any]]
Split = Mapping[int, tuple[str, ...]]


def own_look_ups(
    rule: OperatorRule, bind: Bind, params: Mapping[str, Any], pieces: Sequence[Any], split: Split
) -> list[Any]:
    """A gather from a piece of the operand: partial sums.

    An index outside of the whole operand is looked up by the first device alone, which reads the fill value for it.
    """
    operand, indices = pieces[0], _signed(pieces[1])
    mode, is_own = _Mode.from_any(params["mode"]), jnp.ones(indices.shape[:-1], bool)
    for size, column, names in _split_columns(rule, operand, split):
        part, num_parts = lax.axis_index(names), lax.axis_size(names)
        index, is_inside = _bounded(indices[..., column], size * num_parts, mode)
        local = index - part * size
        is_here = (local >= 0) & (local < size)
        if mode == _Mode.FILL_OR_DROP:
            is_own &= jnp.where(is_inside, is_here, part == 0)
            local = jnp.where(is_inside, jnp.clip(local, 0, size - 1), size)
        else:
            is_own &= is_here
            local = jnp.clip(local, 0, size - 1)
        indices = indices.at[..., column].set(local)
    (found,) = bind(params, [operand, indices])
    mask = jnp.expand_dims(is_own, tuple(params["dimension_numbers"].offset_dims))
    return [jnp.where(mask, found, jnp.zeros_like(found))]


def own_updates(
    rule: OperatorRule, bind: Bind, params: Mapping[str, Any], pieces: Sequence[Any], split: Split
) -> list[Any]:
    """A scatter into a piece of the operand: the updates of other parts are dropped."""
    operand, indices, updates = pieces[0], _signed(pieces[1]), pieces[2]
    mode = _Mode.from_any(params["mode"])
    for size, column, names in _split_columns(rule, operand, split):
        part, num_parts = lax.axis_index(names), lax.axis_size(names)
        index, is_inside = _bounded(indices[..., column], size * num_parts, mode)
        local = index - part * size
        is_here = is_inside & (local >= 0) & (local < size)
        indices = indices.at[..., column].set(jnp.where(is_here, local, size))
    others = _other_columns_clipped(rule, operand, indices, split, mode)
    return bind({**params, "mode": _Mode.FILL_OR_DROP}, [operand, others, updates])


def in_bounds(name: str, params: Mapping[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
    """The operands of an equation with starts of slices that lie inside, as the primitive itself would clamp them.

    Where a slice is split afterwards, the partitioner of jaxlib 0.10 clamps the start of each device's part instead,
    and hands out elements behind the slice. What is clamped already it leaves alone. Slices of one element are never
    split.
    """
    is_gather = name == "gather" and _Mode.from_any(params["mode"]) == _Mode.CLIP
    if not is_gather and name != "dynamic_slice":
        return operands
    array, *starts = operands
    lengths = params["slice_sizes"]
    dims = params["dimension_numbers"].start_index_map if is_gather else range(len(lengths))
    if all(lengths[d] == 1 for d in dims):
        return operands
    most = [array.shape[d] - lengths[d] for d in dims]
    if is_gather:
        return [array, _clamped(starts[0], most)]
    return [array, *(_clamped(start, [m])[0] for start, m in zip(starts, most, strict=True))]


def _clamped(starts: Any, most: Sequence[int]) -> Any:
    """Starts ``[..., N]`` in [0, most]; a type that cannot hold a bound cannot pass it."""
    starts = jnp.atleast_1d(starts)
    largest = jnp.iinfo(starts.dtype).max
    return jnp.clip(starts, 0, np.array([min(m, largest) for m in most], starts.dtype))


def _other_columns_clipped(rule: OperatorRule, operand: Any, indices: Any, split: Split, mode: Any) -> Any:
    """Indices of dimensions that are not split, clipped if the program clips: from now on outside means dropped."""
    if mode != _Mode.CLIP:
        return indices
    for factor, column in rule.indexed:
        if factor not in split:
            size = operand.shape[rule.operands[0].index((factor,))]
            indices = indices.at[..., column].set(jnp.clip(indices[..., column], 0, size - 1))
    return indices


def _split_columns(rule: OperatorRule, operand: Any, split: Split) -> list[tuple[int, int, tuple[str, ...]]]:
    """Local size of a split dimension that is addressed, position of its index, and the axes that split it."""
    return [
        (operand.shape[rule.operands[0].index((factor,))], column, split[factor])
        for factor, column in rule.indexed
        if factor in split
    ]


def _signed(indices: Any) -> Any:
    """Indices of a type that holds every shifted one: 32 bits and a sign, or more."""
    if jnp.issubdtype(indices.dtype, jnp.unsignedinteger):
        indices = jnp.minimum(indices, min(jnp.iinfo(indices.dtype).max, jnp.iinfo(jnp.int32).max))
        return indices.astype(jnp.int32)
    return indices if indices.dtype.itemsize >= jnp.int32.dtype.itemsize else indices.astype(jnp.int32)


def _bounded(index: Any, size: int, mode: Any) -> tuple[Any, Any]:
    """An index into the whole dimension, clipped where the program says so, and whether it lies inside."""
    index = jnp.clip(index, 0, size - 1) if mode == _Mode.CLIP else index
    return index, (index >= 0) & (index < size)
