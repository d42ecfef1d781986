"""Gather and scatter: table look-ups, their transposes, and updates at indices.

In JAX the last dimension of the indices holds the coordinates of one look-up; the others are look-ups.
Semantics: https://openxla.org/stablehlo/spec#gather and #scatter.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import Dimension, OperatorRule, Reducer
from jaxplan.ir.rules._builder import Factors

# What joins the updates that different devices made; None where the last writer wins.
_SCATTER_REDUCERS: dict[str, Reducer] = {
    "scatter-add": "sum",
    "scatter-sub": "sum",
    "scatter-mul": "prod",
    "scatter-min": "min",
    "scatter-max": "max",
}


@register_rule("gather")
def gather_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Embedding look-up ``v d, b s 1 -> b s d`` with v whole, and everything else `lax.gather` can do.

    Look-up dimensions are mapped from the indices; slice dimensions are mapped from the operand where they
    are taken in full; indexed or cut dimensions are whole; batching dimensions are shared by all three.
    """
    numbers = params["dimension_numbers"]
    operand_shape, indices_shape, result_shape = in_avals[0].shape, in_avals[1].shape, out_avals[0].shape
    factors = Factors()
    lookups = factors.add_all(indices_shape[:-1])
    operand = _batching_dims(lookups, numbers.operand_batching_dims, numbers.start_indices_batching_dims)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    slice_axes = [axis for axis in range(len(operand_shape)) if axis not in dropped]
    result: dict[int, Dimension] = {}
    for operand_axis, result_axis in zip(slice_axes, numbers.offset_dims, strict=True):
        size = operand_shape[operand_axis]
        is_full = result_shape[result_axis] == size
        operand[operand_axis] = factors.add(size, "map" if is_full else "whole")
        result[result_axis] = operand[operand_axis] if is_full else factors.whole(result_shape[result_axis])
    for axis in numbers.collapsed_slice_dims:
        operand[axis] = factors.whole(operand_shape[axis])
    _fill(result, lookups, len(result_shape))
    return factors.rule(
        [_ordered(operand), (*lookups, factors.whole(indices_shape[-1]))],
        [_ordered(result)],
        "gather",
        ((0,),),
    )


@register_rule("scatter")
def overwrite_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """`lax.scatter`: which update wins is not known where they collide, so look-up dimensions are whole."""
    return _scatter_rule(in_avals, params, None, ((0, 2),))


def _register(name: str, reducer: Reducer) -> None:
    linear = ((0, 2),) if reducer == "sum" else ()

    @register_rule(name)
    def rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
        return _scatter_rule(in_avals, params, reducer, linear)


for _name, _reducer in _SCATTER_REDUCERS.items():
    _register(_name, _reducer)


def _scatter_rule(
    in_avals: Avals, params: Params, reducer: Reducer | None, linear: tuple[tuple[int, ...], ...]
) -> OperatorRule:
    """Gradient of an embedding ``v d, b s 1, b s d -> v d`` with v whole and b, s reduced.

    Look-up dimensions of indices and updates are reduce factors: a device that applies its part of the
    updates holds a partial result. The operand does not carry them, so whoever executes the split must let it
    count once: the operand on one of the devices that split the factor, the neutral element of the reducer on
    the others.
    """
    numbers = params["dimension_numbers"]
    operand_shape, indices_shape, updates_shape = (aval.shape for aval in in_avals)
    factors = Factors()
    batching = set(numbers.scatter_indices_batching_dims)
    lookups = tuple(
        factors.add(size) if axis in batching else _lookup(factors, size, reducer)
        for axis, size in enumerate(indices_shape[:-1])
    )
    operand = _batching_dims(lookups, numbers.operand_batching_dims, numbers.scatter_indices_batching_dims)
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window_axes = [axis for axis in range(len(operand_shape)) if axis not in dropped]
    updates: dict[int, Dimension] = {}
    for operand_axis, update_axis in zip(window_axes, numbers.update_window_dims, strict=True):
        size = operand_shape[operand_axis]
        is_full = updates_shape[update_axis] == size
        operand[operand_axis] = factors.add(size, "map" if is_full else "whole")
        updates[update_axis] = operand[operand_axis] if is_full else factors.whole(updates_shape[update_axis])
    for axis in numbers.inserted_window_dims:
        operand[axis] = factors.whole(operand_shape[axis])
    _fill(updates, lookups, len(updates_shape))
    indices = (*lookups, factors.whole(indices_shape[-1]))
    return factors.rule(
        [_ordered(operand), indices, _ordered(updates)], [_ordered(operand)], "scatter", linear
    )


def _lookup(factors: Factors, size: int, reducer: Reducer | None) -> Dimension:
    return factors.add(size, "reduce", reducer) if reducer else factors.whole(size)


def _batching_dims(
    lookups: tuple[Dimension, ...], operand_axes: Iterable[int], indices_axes: Iterable[int]
) -> dict[int, Dimension]:
    """Operand dimensions that go with a look-up dimension; JAX keeps the last indices dimension last."""
    return {
        operand_axis: lookups[indices_axis] for operand_axis, indices_axis in zip(operand_axes, indices_axes)
    }


def _fill(dims: dict[int, Dimension], lookups: tuple[Dimension, ...], rank: int) -> None:
    """The dimensions that are not slice dimensions are the look-ups, in order."""
    free = [axis for axis in range(rank) if axis not in dims]
    dims.update(zip(free, lookups, strict=True))


def _ordered(dims: dict[int, Dimension]) -> tuple[Dimension, ...]:
    return tuple(dims[axis] for axis in range(len(dims)))
