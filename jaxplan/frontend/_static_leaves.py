"""Leaves of arguments that are no arrays: functions and strings are part of a tree's structure, compared by value.

`jax.jit` refuses such leaves, and people put them into trees all the same: activation functions in Equinox modules, an
optimizer in a state. They are taken as settings, as `equinox.filter_jit` takes them. A Python number is an array, as
for `jax.jit`, but inside an Equinox module, where `filter_jit` would not trace it either.
"""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

import jax
import numpy as np

_ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


@jax.tree_util.register_static
class Static:
    """A tree without leaves that holds one Python value; equal where type and value are."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Static({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and equal(self.value, other.value)

    def __hash__(self) -> int:
        return value_hash(self.value)


def equal(a: Any, b: Any) -> bool:
    """Whether two Python values are of one type and equal; False where they do not say."""
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:
        return False


def value_hash(value: Any) -> int:
    """A hash that agrees with `equal`, of whatever value."""
    try:
        return hash((type(value), value))
    except TypeError:
        return hash(type(value))


def hold_statics(tree: Any, *, numbers: bool = False) -> Any:
    """The tree with a `Static` for each leaf that is a setting.

    Args:
      numbers: whether Python numbers are settings too, outside of Equinox modules.
    """

    def held(leaf: Any) -> Any:
        if _is_module(leaf):
            return jax.tree.map(lambda x: Static(x) if _is_setting(x, numbers=True) else x, leaf)
        return Static(leaf) if _is_setting(leaf, numbers=numbers) else leaf

    return jax.tree.map(held, tree, is_leaf=_is_module)


def release_statics(tree: Any, *, by: Any = lambda value: value) -> Any:
    """The tree that `hold_statics` was given; with ``by``, something else in the place of each setting."""
    return jax.tree.map(lambda x: by(x.value) if is_static(x) else x, tree, is_leaf=is_static)


def is_static(value: Any) -> bool:
    return isinstance(value, Static)


def has_statics(tree: Any) -> bool:
    return any(map(is_static, jax.tree.leaves(tree, is_leaf=is_static)))


def _is_setting(leaf: Any, *, numbers: bool) -> bool:
    if isinstance(leaf, _ARRAYS):
        return False
    if isinstance(leaf, str | bytes | enum.Enum | np.dtype):
        return True
    if callable(leaf):
        return not hasattr(leaf, "__jax_array__") and not _holds_arrays(leaf)
    return numbers and isinstance(leaf, bool | int | float | complex)


def _holds_arrays(value: Any, depth: int = 5) -> bool:
    """Whether a callable object has arrays as attributes: a model that is not registered as a pytree is no setting."""
    if depth == 0 or isinstance(value, type | types.ModuleType):
        return False
    attributes = jax.tree.leaves(dict(getattr(value, "__dict__", {})))
    return any(isinstance(leaf, _ARRAYS) or _holds_arrays(leaf, depth - 1) for leaf in attributes)


def _is_module(value: Any) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(value, equinox.Module)
