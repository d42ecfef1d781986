"""Values of a jaxpr that are known when it is traced, as NumPy arrays: positions, fills, and values computed from them.

A value with one element, repeated, is a view without strides, so that a fill of any shape costs nothing. JAX itself
would compile each operator, and put its operands on a device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

MOST_ELEMENTS = 1 << 24
"""Of a table with more elements nothing is known."""


def _quotient(a: Any, b: Any) -> Any:
    """XLA's division: of integers towards zero; by zero it is not asked for."""
    if not np.issubdtype(np.asarray(a).dtype, np.integer):
        return np.divide(a, b)
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.maximum(np.abs(b), 1))).astype(np.asarray(a).dtype)


def _select(which: Any, *cases: Any) -> Any:
    return np.choose(np.asarray(which).astype(np.intp), cases)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "add_any": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _quotient,
    "rem": np.fmod,
    "neg": operator.neg,
    "sign": np.sign,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "stop_gradient": lambda x: x,
    "select_n": _select,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}
_SHAPES = ("broadcast_in_dim", "transpose", "reshape", "squeeze", "expand_dims")


def evaluate(name: str, params: Mapping[str, Any], operands: Sequence[np.ndarray], aval: Any) -> np.ndarray | None:
    """The result of an equation with known operands; None where it is not computed here.

    Args:
      aval: of the only result.
    """
    with np.errstate(all="ignore"):  # as XLA does
        return _evaluate(name, params, operands, aval)


def _evaluate(name: str, params: Mapping[str, Any], operands: Sequence[np.ndarray], aval: Any) -> np.ndarray | None:
    shape = tuple(aval.shape)
    if not _is_plain(aval.dtype) or any(not _is_plain(x.dtype) for x in operands):
        return None
    if name == "iota":
        return _iota(params, aval)
    if not operands or any(x.size == 0 for x in operands):
        return None
    if is_elementwise(name):
        few = [_without_repeats(x) for x in operands]
        if np.broadcast(*few).size > MOST_ELEMENTS:
            return None
        found = np.asarray(_ELEMENTWISE[name](*few) if name in _ELEMENTWISE else few[0])
        return np.broadcast_to(found.astype(aval.dtype), shape)
    if name not in _SHAPES:
        return None
    (operand,) = operands
    if is_uniform(operand):
        return np.broadcast_to(operand[(0,) * operand.ndim], shape)
    if name == "broadcast_in_dim":
        unit = [1] * len(shape)
        for axis, size in zip(params["broadcast_dimensions"], operand.shape, strict=True):
            unit[axis] = size
        return np.broadcast_to(operand.reshape(unit), shape)
    if name == "transpose":
        return operand.transpose(params["permutation"])
    keeps_order = name != "reshape" or params.get("dimensions") is None
    return operand.reshape(shape) if keeps_order and aval.size <= MOST_ELEMENTS else None


def is_elementwise(name: str) -> bool:
    """Whether `evaluate` computes each element of a primitive's result of those in the same place."""
    return name in _ELEMENTWISE or name == "convert_element_type"


def _without_repeats(x: np.ndarray) -> np.ndarray:
    """The array with one element along each dimension that has no strides."""
    return x[tuple(slice(1) if stride == 0 else slice(None) for stride in x.strides)]


def _iota(params: Mapping[str, Any], aval: Any) -> np.ndarray:
    axis = params["dimension"]
    unit = [1] * len(aval.shape)
    unit[axis] = aval.shape[axis]
    return np.broadcast_to(np.arange(aval.shape[axis]).astype(aval.dtype).reshape(unit), aval.shape)


def _is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype)  # no random keys


def is_uniform(x: np.ndarray, axis: int | None = None) -> bool:
    """Whether all elements are one, or those along an axis."""
    if axis is not None:
        few = _without_repeats(x)
        return few.shape[axis] == 1 or bool((few == few.take([0], axis)).all())
    return all(size == 1 or stride == 0 for size, stride in zip(x.shape, x.strides, strict=True))


def folded(x: np.ndarray) -> np.ndarray:
    """The same array without strides where all its elements are one."""
    if x.size and not is_uniform(x) and bool((_without_repeats(x) == (one := x[(0,) * x.ndim])).all()):
        return np.broadcast_to(one, x.shape)
    return x
