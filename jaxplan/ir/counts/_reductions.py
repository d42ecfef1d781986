"""Reductions and windows: one operation for each element that is combined."""

from __future__ import annotations

import math

from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import register_count
from jaxplan.ir._registry import Avals, Params

_REDUCTIONS = (
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor reduce argmax argmin"
)


@register_count(*_REDUCTIONS.split(), kind="one per element")
def reduction(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Each element of the operands is combined once; operands are computed as they are read."""
    return _streaming(in_avals, max(math.prod(aval.shape) for aval in in_avals))


@register_count(
    "reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min", kind="windows"
)
@register_count("select_and_gather_add", kind="windows")
def window(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Each window combines all of its elements."""
    return _streaming(in_avals, math.prod(out_avals[0].shape) * math.prod(params["window_dimensions"]))


@register_count("select_and_scatter", "select_and_scatter_add", kind="windows")
def unpooling(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """A comparison per element of each window, and one addition per window; there are as many as source elements."""
    windows = min(math.prod(aval.shape) for aval in in_avals if aval.shape)
    return _streaming(in_avals, windows * (math.prod(params["window_dimensions"]) + 1))


def _streaming(in_avals: Avals, number: float) -> Count:
    return Count(vector=((str(in_avals[0].dtype), float(number)),), streams=True)
