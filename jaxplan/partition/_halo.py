"""Exchange of halos: before a window that is split runs, each device gets the edges of its neighbours' blocks.

At most two permutes for each operand that is extended; one where windows reach to one side alone (stride 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxplan.ir import Halo, OperatorRule, SplitWindow

Bind = Callable[[Mapping[str, Any], Sequence[Any]], list[Any]]
_LARGEST = {"reduce_window_max": False, "reduce_window_min": True}
"""Poolings whose neutral value is the largest of its dtype, or the smallest."""


def run_windows(
    name: str,
    rule: OperatorRule,
    bind: Bind,
    params: Mapping[str, Any],
    pieces: Sequence[Any],
    split: Mapping[int, tuple[str, ...]],
) -> list[Any]:
    """Results of an equation with split windows, from one device's pieces.

    Args:
      bind: applies the primitive: (parameters, operands) -> results.
      split: factor -> names of the mesh axes that split it, major to minor.
    """
    pieces, ends = list(pieces), []
    for window in rule.windows:
        if window.factor not in split:
            continue
        names = split[window.factor]
        parts = lax.axis_size(names)
        if window.scatters:
            halos = window.window.scatter_halos(parts)
            assert halos is not None
            by_operand: dict[int, Halo] = {1: halos[0], 0: halos[1]}
        else:
            halo = window.window.halo(parts)
            assert halo is not None
            by_operand = dict.fromkeys(window.operands, halo)
        for i, halo in by_operand.items():
            axis = _axis(rule, i, window)
            block = pieces[i].shape[axis]
            pieces[i] = _extended(pieces[i], axis, halo, names, _outside(name, params, pieces, i))
            if window.scatters and i == 1:
                ends.append((axis, halo.before, block))
            elif not window.scatters:
                pieces[i] = _cut(pieces[i], axis, halo, window, parts, names)
        halo = by_operand[window.operands[0]]
        params = _with_padding(rule, params, _axis(rule, window.operands[0], window), halo.padding)
    results = bind(params, pieces)
    for axis, start, size in ends:
        results = [lax.slice_in_dim(r, start, start + size, axis=axis) for r in results]
    return results


def _axis(rule: OperatorRule, operand: int, window: SplitWindow) -> int:
    """The dimension of an operand along which a window slides."""
    return next(d for d, factors in enumerate(rule.operands[operand]) if window.factor in factors)


def _extended(x: Any, axis: int, halo: Halo, names: tuple[str, ...], outside: Any) -> Any:
    """A block with the last elements of the block before it, and the first of that after it."""
    parts, place, size = lax.axis_size(names), lax.axis_index(names), x.shape[axis]
    pieces = [x]
    if halo.before:
        edge = lax.slice_in_dim(x, size - halo.before, size, axis=axis)
        edge = moved(edge, names, [(i, i + 1) for i in range(parts - 1)])
        pieces.insert(0, _or_outside(edge, place == 0, outside))
    if halo.after:
        edge = lax.slice_in_dim(x, 0, halo.after, axis=axis)
        edge = moved(edge, names, [(i + 1, i) for i in range(parts - 1)])
        pieces.append(_or_outside(edge, place == parts - 1, outside))
    return lax.concatenate(pieces, axis) if len(pieces) > 1 else x


def moved(x: Any, names: tuple[str, ...], pairs: Sequence[tuple[int, int]]) -> Any:
    """A permute between places along ``names``, major to minor.

    `lax.ppermute` numbers the devices in the order of the mesh's axes, whatever order it is given.
    """
    ordered = [name for name in jax.sharding.get_abstract_mesh().axis_names if name in names]
    sizes = [lax.axis_size(name) for name in names]
    numbers = np.arange(math.prod(sizes)).reshape([lax.axis_size(name) for name in ordered])
    place = np.transpose(numbers, [ordered.index(name) for name in names]).ravel().tolist()
    return lax.ppermute(x, tuple(ordered), [(place[i], place[j]) for i, j in pairs])


def _or_outside(edge: Any, is_outside: Any, outside: Any) -> Any:
    """The elements beyond the whole operand; a permute leaves zeros there."""
    return edge if outside is None else jnp.where(is_outside, outside, edge)


def _cut(x: Any, axis: int, halo: Halo, window: SplitWindow, parts: int, names: tuple[str, ...]) -> Any:
    """The part of an extended block that the device's windows read."""
    if not halo.starts:
        return x
    length = window.window.reach(window.window.out_size // parts)
    if len(set(halo.starts)) == 1:
        return lax.slice_in_dim(x, halo.starts[0], halo.starts[0] + length, axis=axis)
    start = jnp.asarray(halo.starts)[lax.axis_index(names)]
    return lax.dynamic_slice_in_dim(x, start, length, axis=axis)


def _with_padding(
    rule: OperatorRule, params: Mapping[str, Any], axis: int, padding: tuple[int, int]
) -> Mapping[str, Any]:
    """Parameters with another padding along a dimension of operand 0 (of the operand, where windows scatter)."""
    place = axis
    if rule.family == "convolution":
        place = params["dimension_numbers"].lhs_spec[2:].index(axis)
    changed = list(params["padding"])
    changed[place] = padding
    return {**params, "padding": tuple(changed)}


def _outside(name: str, params: Mapping[str, Any], pieces: Sequence[Any], operand: int) -> Any:
    """The value beyond the edges of an operand: neutral for the windows' reduction; None for zero."""
    if name == "reduce_window":
        return pieces[len(pieces) // 2 + operand]
    if name in ("select_and_scatter_add", "select_and_gather_add"):
        is_least = params["select_prim"].name in ("ge", "gt")
        return None if operand == 0 else _extreme(pieces[operand].dtype, largest=not is_least)
    return _extreme(pieces[operand].dtype, largest=_LARGEST[name]) if name in _LARGEST else None


def _extreme(dtype: Any, *, largest: bool) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.array(jnp.inf if largest else -jnp.inf, dtype)
    if dtype == jnp.bool_:
        return jnp.array(largest)
    info = jnp.iinfo(dtype)
    return jnp.array(info.max if largest else info.min, dtype)
