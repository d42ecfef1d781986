"""Ragged dots of which the devices hold the groups, or blocks of rows, in parts.

Groups (experts): every device has all rows, sorted by group, and all counts. It rolls the rows so that those of its
groups come first, multiplies these, and rolls the results back; the rows of other groups are zeros, so that the results
of all devices add up. Of a weight gradient, where rows are contracted, it makes the matrices of its own groups.
(https://docs.jax.dev/en/latest/_autosummary/jax.lax.ragged_dot_general.html: rows of no group give zeros.)

Blocks of rows, each with counts of its own: a device with one block runs a plain ragged dot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxplan.ir import OperatorRule, block_dimensions

Bind = Callable[[Mapping[str, Any], Sequence[Any]], list[Any]]
"""Applies the primitive: (parameters, operands) -> results."""


def run_ragged(bind: Bind, params: Mapping[str, Any], pieces: Sequence[Any], axes: tuple[str, ...]) -> list[Any]:
    """A ragged dot of one device's pieces: of blocks of rows one plain ragged dot each, which every compiler has.

    Args:
      axes: mesh axes over which the groups are split.
    """
    numbers = params["ragged_dot_dimension_numbers"]
    (lhs_contracted, rhs_contracted), batch = numbers.dot_dimension_numbers
    blocks = block_dimensions(pieces, params)
    if len(blocks) != 1 or any(batch):
        return _multiply(bind, params, pieces, axes)
    (block,) = blocks
    is_summed = block in lhs_contracted
    rhs_block = rhs_contracted[tuple(lhs_contracted).index(block)] if is_summed else None
    pairs = [(a, b) for a, b in zip(lhs_contracted, rhs_contracted, strict=True) if a != block]
    contracted = [_without(block, a) for a, _ in pairs], [_without(rhs_block, b) for _, b in pairs]
    plain = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(contracted, ([], [])),
        lhs_ragged_dimensions=[_without(block, d) for d in numbers.lhs_ragged_dimensions],
        rhs_group_dimensions=list(numbers.rhs_group_dimensions),
    )
    results = []
    for i in range(pieces[0].shape[block]):
        lhs = lax.index_in_dim(pieces[0], i, block, keepdims=False)
        rhs = pieces[1] if rhs_block is None else lax.index_in_dim(pieces[1], i, rhs_block, keepdims=False)
        results += _multiply(bind, {**params, "ragged_dot_dimension_numbers": plain}, [lhs, rhs, pieces[2][i]], axes)
    if is_summed:
        return [sum(results[1:], results[0])]
    free = [d for d in range(pieces[0].ndim) if d not in lhs_contracted]
    return [jnp.stack(results, free.index(block))]


def _multiply(bind: Bind, params: Mapping[str, Any], pieces: Sequence[Any], axes: tuple[str, ...]) -> list[Any]:
    return _own_groups(bind, params, pieces, axes) if axes else bind(params, pieces)


def _without(gone: int | None, dim: int) -> int:
    """The number of a dimension when one is gone."""
    return dim - (gone is not None and dim > gone)


def group_axes(rule: OperatorRule, params: Mapping[str, Any], split: Mapping[int, tuple[str, ...]]) -> tuple[str, ...]:
    """The mesh axes over which the groups of a ragged dot are split."""
    axes = params["ragged_dot_dimension_numbers"].rhs_group_dimensions
    dimension = rule.operands[1][axes[0]] if axes else rule.results[0][0]
    return split.get(dimension[0], ()) if dimension else ()


def _own_groups(bind: Bind, params: Mapping[str, Any], pieces: Sequence[Any], names: tuple[str, ...]) -> list[Any]:
    """A ragged dot with the groups of this device.

    Args:
      bind: applies the primitive: (parameters, operands) -> results.
      pieces: the rows, the matrices of this device or the rows of the other operand, and the counts of all groups.
      names: mesh axes over which the groups are split.
    """
    lhs, rhs, counts = pieces
    num_groups = counts.shape[0] // lax.axis_size(names)
    numbers = params["ragged_dot_dimension_numbers"]
    (lhs_contracted, rhs_contracted), (lhs_batch, _) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    first = lax.axis_index(names) * num_groups
    start = jnp.sum(jnp.where(jnp.arange(counts.shape[0]) < first, counts, 0))
    own = lax.dynamic_slice(counts, (first,), (num_groups,))
    lhs = jnp.roll(lhs, -start, ragged)
    if ragged in lhs_contracted:
        place = tuple(lhs_contracted).index(ragged)
        return bind(params, [lhs, jnp.roll(rhs, -start, rhs_contracted[place]), own])
    free = [d for d in range(lhs.ndim) if d not in (*lhs_contracted, *lhs_batch)]
    (product,) = bind(params, [lhs, rhs, own])
    return [jnp.roll(product, start, len(lhs_batch) + free.index(ragged))]
