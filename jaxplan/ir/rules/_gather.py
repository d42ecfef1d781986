"""Gather and scatter: table look-ups, their transposes, and updates at indices.

In JAX the last dimension of the indices holds the coordinates of one look-up; the others are look-ups.
Semantics: https://openxla.org/stablehlo/spec#gather and #scatter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jax import lax

from jaxplan.core._compat import is_key_dtype
from jaxplan.ir._registry import Aval, Avals, Params, register_local_params, register_rule
from jaxplan.ir._rule import Dimension, OperatorRule, Reducer, Shape
from jaxplan.ir.rules._builder import Factors

_ONE_HOT = getattr(lax.GatherScatterMode, "ONE_HOT", None)
# The operation that joins updates of different devices; None where the last writer wins.
_SCATTER_REDUCERS: dict[str, Reducer] = {
    "scatter-add": "sum",
    "scatter-sub": "sum",
    "scatter-mul": "prod",
    "scatter-min": "min",
    "scatter-max": "max",
}


@register_rule("gather")
def gather_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Embedding look-up ``v d, b s 1 -> b s d`` with v reduced, and everything else `lax.gather` can do.

    Look-up dimensions are mapped from the indices; slice dimensions are mapped from the operand where they
    are taken in full; dimensions of which one element is taken are reduced (every device looks up its own part,
    and the results add up); cut dimensions are whole; batching dimensions are shared by all three.
    """
    numbers = params["dimension_numbers"]
    operand_shape, indices_shape, result_shape = in_avals[0].shape, in_avals[1].shape, out_avals[0].shape
    factors = Factors()
    lookups = factors.add_all(indices_shape[:-1])
    operand = _batching_dims(lookups, numbers.operand_batching_dims, numbers.start_indices_batching_dims)
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    slice_axes = [axis for axis in range(len(operand_shape)) if axis not in dropped]
    result: dict[int, Dimension] = {}
    single = _single(numbers.start_index_map, in_avals[0], params, params["slice_sizes"])
    for operand_axis, result_axis in zip(slice_axes, numbers.offset_dims, strict=True):
        size = operand_shape[operand_axis]
        if operand_axis in single:
            operand[operand_axis], result[result_axis] = factors.add(size, "reduce", "sum"), ()
            continue
        is_full = result_shape[result_axis] == size
        operand[operand_axis] = factors.add(size, "map" if is_full else "whole")
        result[result_axis] = operand[operand_axis] if is_full else factors.whole(result_shape[result_axis])
    for axis in numbers.collapsed_slice_dims:
        size = operand_shape[axis]
        operand[axis] = factors.add(size, "reduce", "sum") if axis in single else factors.whole(size)
    _fill(result, lookups, len(result_shape))
    return factors.rule(
        [_ordered(operand), (*lookups, factors.whole(indices_shape[-1]))],
        [_ordered(result)],
        "gather",
        ((0,),),
        indexed=tuple((operand[axis][0], column) for axis, column in single.items()),
    )


@register_local_params("gather")
def gather_params(params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> Params:
    """Dimensions that are taken in full are taken in full of a piece."""
    numbers = params["dimension_numbers"]
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    sizes = iter(out_shapes[0][axis] for axis in numbers.offset_dims)
    slice_sizes = [1 if axis in dropped else next(sizes) for axis in range(len(in_shapes[0]))]
    return {**params, "slice_sizes": tuple(slice_sizes)}


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
    """Gradient of an embedding ``v d, b s 1, b s d -> v d`` with v mapped and b, s reduced.

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
    window_sizes = [1] * len(operand_shape)
    for axis, update_axis in zip(window_axes, numbers.update_window_dims, strict=True):
        window_sizes[axis] = updates_shape[update_axis]
    single = _single(numbers.scatter_dims_to_operand_dims, in_avals[0], params, window_sizes)
    updates: dict[int, Dimension] = {}
    for operand_axis, update_axis in zip(window_axes, numbers.update_window_dims, strict=True):
        size = operand_shape[operand_axis]
        if operand_axis in single:
            operand[operand_axis], updates[update_axis] = factors.add(size), ()
            continue
        is_full = updates_shape[update_axis] == size
        operand[operand_axis] = factors.add(size, "map" if is_full else "whole")
        updates[update_axis] = operand[operand_axis] if is_full else factors.whole(updates_shape[update_axis])
    for axis in numbers.inserted_window_dims:
        size = operand_shape[axis]
        operand[axis] = factors.add(size) if axis in single else factors.whole(size)
    _fill(updates, lookups, len(updates_shape))
    indices = (*lookups, factors.whole(indices_shape[-1]))
    tensors = [_ordered(operand), indices, _ordered(updates)]
    indexed = tuple((operand[axis][0], column) for axis, column in single.items())
    return factors.rule(tensors, [_ordered(operand)], "scatter", linear, indexed)


def _single(
    index_map: Sequence[int], operand: Aval, params: Params, slice_sizes: Sequence[int]
) -> dict[int, int]:
    """Dimensions of which an index picks one element, with the position of that index.

    Results of several devices are added up, so truth values and keys, which do not add, are left out.
    """
    if is_key_dtype(operand.dtype) or operand.dtype == bool or params["mode"] == _ONE_HOT:
        return {}
    shape = operand.shape
    return {
        axis: column for column, axis in enumerate(index_map) if slice_sizes[axis] == 1 and shape[axis] > 1
    }


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
