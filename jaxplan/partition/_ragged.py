"""Ragged dots of which the devices hold the groups in parts: each multiplies the rows of its own groups (experts).

Every device has all rows, sorted by group, and all counts. It rolls the rows so that those of its groups come first,
multiplies these, and rolls the results back; the rows of other groups are zeros, so that the results of all devices
add up. Of a weight gradient, whose rows are contracted, it makes the matrices of its own groups.
(https://docs.jax.dev/en/latest/_autosummary/jax.lax.ragged_dot_general.html: rows of no group give zeros.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxplan.ir import OperatorRule

Bind = Callable[[Mapping[str, Any], Sequence[Any]], list[Any]]


def group_axes(rule: OperatorRule, params: Mapping[str, Any], split: Mapping[int, tuple[str, ...]]) -> tuple[str, ...]:
    """The mesh axes over which the groups of a ragged dot are split."""
    axes = params["ragged_dot_dimension_numbers"].rhs_group_dimensions
    dimension = rule.operands[1][axes[0]] if axes else rule.results[0][0]
    return split.get(dimension[0], ()) if dimension else ()


def own_groups(bind: Bind, params: Mapping[str, Any], pieces: Sequence[Any], names: tuple[str, ...]) -> list[Any]:
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
