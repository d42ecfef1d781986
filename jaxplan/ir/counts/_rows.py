"""Look-ups, updates and slices: they touch the rows that they name, not the whole of their tables."""

from __future__ import annotations

import math

from jaxplan.core import _compat
from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import register_count
from jaxplan.ir._registry import Aval, Avals, Params

_COMBINING = ("scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")


@register_count("gather", "slice", "dynamic_slice", kind="rows touched")
def rows_read(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """As many bytes of the table as the result has; indices and the result as they are."""
    touched = float(_num_bytes(out_avals[0]))
    return Count(touched=(touched, *(None,) * (len(in_avals) - 1 + len(out_avals))), streams=True)


@register_count(*_COMBINING, kind="rows touched")
def rows_combined(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Each update is combined with the row that it names, which is read and written; rows are named equally often."""
    updates = in_avals[2]
    number = math.prod(updates.shape)
    is_once = bool(params.get("unique_indices"))
    return Count(
        vector=((str(updates.dtype), float(number)),),
        rewrites=2.0 * _row_bytes(in_avals[0], updates),
        added_to=0.0 if is_once else number / max(1, math.prod(in_avals[0].shape)),
        streams=True,
    )


@register_count("scatter", kind="rows touched")
def rows_written(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Each update is written over the row that it names."""
    return Count(rewrites=_row_bytes(in_avals[0], in_avals[2]), streams=True)


@register_count("dynamic_update_slice", kind="rows touched")
def slice_written(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """The update is written over a part of the operand."""
    return Count(rewrites=_row_bytes(in_avals[0], in_avals[1]), streams=True)


def _row_bytes(table: Aval, updates: Aval) -> float:
    return float(math.prod(updates.shape) * _compat.itemsize(table.dtype))


def _num_bytes(aval: Aval) -> int:
    return math.prod(aval.shape) * _compat.itemsize(aval.dtype)
