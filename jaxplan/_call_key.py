"""What a plan depends on: calls with equal keys share one plan and one compiled program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxplan import _compat
from jaxplan._errors import ArgumentError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallKey:
    """The cache key of a decorated step.

    Not in it: values, shardings and devices of the arguments. The first state comes from one device or from a
    file, those that follow come as the plan left them, and one plan serves both.

    Attributes:
      tree: structure of the dynamic arguments.
      avals: (shape, dtype, weak type) of each leaf.
      statics: (type, value) of each static argument: 1, 1.0 and True are equal, and trace differently.
      topology: the topology that was asked for, or the devices present.
      context: settings that change what a trace gives, such as `jax_enable_x64`, as `jax.jit` keys on them.
    """

    tree: Any
    avals: tuple[tuple[Any, ...], ...]
    statics: tuple[tuple[type, Any], ...]
    topology: Any
    context: Any


def call_key(args: Sequence[Any], kwargs: Mapping[str, Any], static: Sequence[int], topology: Any) -> CallKey:
    """The key of one call.

    Args:
      static: numbers of static arguments; negative ones count from the end.
      topology: a string, a `Topology`, or None for the devices present.

    Raises:
      ArgumentError: a static argument is not hashable.
      TypeError: a leaf is no array.
    """
    fixed = {i % len(args) for i in static if args}
    leaves, tree = jax.tree.flatten(([a for i, a in enumerate(args) if i not in fixed], dict(kwargs)))
    statics = tuple((type(args[i]), args[i]) for i in sorted(fixed))
    for i, (_, value) in zip(sorted(fixed), statics, strict=True):
        _check_hashable(i, value)
    return CallKey(
        tree=tree,
        avals=tuple(map(_aval, leaves)),
        statics=statics,
        topology=tuple(jax.devices()) if topology is None else topology,
        context=_compat.trace_context(),
    )


def _aval(leaf: Any) -> tuple[Any, ...]:
    aval: Any = leaf if isinstance(leaf, jax.Array) else jax.typeof(leaf)  # an array is faster asked itself
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False)


def _check_hashable(number: int, value: Any) -> None:
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            f"static argument {number} is {value!r}, of type {type(value).__name__}, which is not hashable.\n"
            "  expected:     a hashable Python value: a plan is made for each value and found again by it\n"
            "  likely cause: a list, dict or array was named in static_argnums\n"
            "  fix:          give a tuple, a string, a number or a frozen dataclass, or leave it out of static_argnums"
        ) from None
