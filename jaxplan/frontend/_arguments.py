"""The arguments of a step: checked before it is traced, so that an error speaks of the call and not of JAX."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from jaxplan.errors import ArgumentError
from jaxplan.frontend._static_leaves import hold_statics

_CALL_MSG = (
    "{name} cannot be called with the arguments given: {reason}.\n"
    "  given:        {given}\n"
    "  expected:     {expected}\n"
    "  likely cause: {cause}\n"
    "  fix:          {fix}"
)

_LEAF_MSG = (
    "argument {path} of {name} is {value}, of type {type}, and no array.\n"
    "  expected:     arrays, jax.ShapeDtypeStruct, or pytrees of them\n"
    "  likely cause: {cause}\n"
    "  fix:          {fix}"
)


def step_name(step: Callable[..., Any]) -> str:
    """The name of a step as people wrote it."""
    inner = getattr(step, "func", step)  # functools.partial
    return getattr(inner, "__name__", None) or type(inner).__name__


def argnums(value: int | Sequence[int] | None, option: str) -> tuple[int, ...] | None:
    """Argument numbers as a tuple; one number may stand for itself, as in `jax.jit`."""
    if value is None:
        return None
    numbers = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Iterable) else (value,)
    if any(isinstance(i, bool) or not hasattr(i, "__index__") for i in numbers):
        raise ArgumentError(
            f"{option}={value!r} is not understood; expected an argument number such as 0, or several such as (0, 1). "
            "Arguments that are given by keyword have no number"
        )
    return tuple(i.__index__() for i in numbers)


def argnames(value: str | Sequence[str] | None, option: str) -> tuple[str, ...]:
    """Argument names as a tuple; one name may stand for itself, as in `jax.jit`."""
    names = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            f"{option}={value!r} is not understood; expected the name of an argument such as 'train', or several such "
            "as ('train', 'depth')"
        )
    return tuple(names)


def check_call(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    options: Iterable[str] = (),
    entry: str = "jaxplan.plan",
    before: str = "",
) -> None:
    """Raise ArgumentError, naming the parameters, when the step cannot be called like this.

    Args:
      options: names of the options of the entry point, of which an unknown keyword may be a misspelling.
      entry: the called function; the step itself, or a function that takes the step and its arguments.
      before: arguments of that function before the step.
    """
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):
        return  # a builtin, say: the trace will tell
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            _call_message(step, signature, error, args, kwargs, tuple(options), entry, before)
        ) from None


def _call_message(step, signature, error, args, kwargs, options, entry, before) -> str:
    name, parameters = step_name(step), signature.parameters.values()
    required = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    optional = [p.name for p in parameters if p.default is not p.empty]
    expected = f"{', '.join(required) or 'nothing'}" + (
        f"; may be left out: {', '.join(optional)}" if optional else ""
    )
    unknown = [k for k in kwargs if k not in signature.parameters]
    cause = f"{entry} takes the arguments of the step behind the step itself, all of those without a default"
    fix = f"{entry}({before}{', '.join([name, *required])}); a jax.ShapeDtypeStruct does for an array"
    if entry == name:
        cause = "the decorated step takes the arguments of the step, no more and no fewer"
        fix = f"{name}({', '.join(required)})"
    for keyword in unknown:
        near = difflib.get_close_matches(keyword, [*options, *signature.parameters], n=1)
        if near:
            cause, fix = (
                f"{keyword!r} is a misspelling of {near[0]!r}",
                f"{near[0]}=... instead of {keyword}=...",
            )
    missing = [p for p in required[len(args) :] if p not in kwargs]
    reason = f"{' and '.join(missing)} missing" if missing and not unknown else str(error)
    given = f"{len(args)} positional argument{'' if len(args) == 1 else 's'}"
    if kwargs:
        given += f", and {', '.join(kwargs)} by keyword"
    return _CALL_MSG.format(name=name, reason=reason, given=given, expected=expected, cause=cause, fix=fix)


def check_leaves(step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], static: Any) -> None:
    """Raise ArgumentError with the key path of the first leaf that is no array, abstract one or setting.

    Args:
      static: the settings among the arguments, a `Which`.
    """
    fixed, names = static.positions(args), static.keywords(kwargs)
    items = [(f"[{i}]", arg) for i, arg in enumerate(args) if i not in fixed]
    items += [(f"[{key!r}]", value) for key, value in kwargs.items() if key not in names]
    for prefix, argument in items:
        for path, leaf in jax.tree_util.tree_flatten_with_path(hold_statics(argument))[0]:
            if not is_array_like(leaf):
                raise ArgumentError(_leaf_message(step, prefix, path, leaf))


def is_array_like(leaf: Any) -> bool:
    """Whether JAX can trace a leaf: it has a shape and a dtype, or is a number."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return True
    try:
        jax.typeof(leaf)
    except (TypeError, OverflowError):  # the latter: a Python int that no integer dtype holds
        return False
    return True


def _leaf_message(step: Callable[..., Any], prefix: str, path: Any, leaf: Any) -> str:
    cause, fix = "a setting travels among the arrays", "close over it, or keep it out of the pytree"
    if not path and prefix[1:-1].isdigit():
        number = prefix[1:-1]
        cause = "it is a setting, or an object that is not registered as a pytree"
        fix = f"static_argnums=({number},) if it is a setting, or jax.tree_util.register_dataclass for its class"
    return _LEAF_MSG.format(
        path=prefix + jax.tree_util.keystr(path),
        name=step_name(step),
        value=shortened(leaf),
        type=type(leaf).__name__,
        cause=cause,
        fix=fix,
    )


def shortened(value: Any) -> str:
    """The repr of a value, on one line and not long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
