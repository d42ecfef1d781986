"""One call of a step: its arrays as leaves, and the rest of its arguments as structure and settings."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxplan.core import _compat
from jaxplan.core._interner import distinct
from jaxplan.errors import ArgumentError
from jaxplan.frontend import _nnx
from jaxplan.frontend._arguments import check_leaves, shortened, step_name
from jaxplan.frontend._static_leaves import Static, hold_statics, is_static, release_statics
from jaxplan.frontend._step_options import StepOptions

_DELETED_MSG = (
    "argument {path} was deleted: an earlier call was given it and could reuse its buffer.\n"
    "  likely cause: the step returns it updated, so the plan donates it\n"
    "  fix: pass on what the step returned, or donate nothing (donate_argnums=())"
)
_UNHASHABLE_MSG = (
    "static argument {label} is {value}, of type {type}, which is not hashable.\n"
    "  expected:     a hashable Python value: a plan is made for each value and found again by it\n"
    "  likely cause: a list, dict or array was named in static_argnums or static_argnames\n"
    "  fix:          give a tuple, a string, a number or a frozen dataclass, or do not name it"
)

_MOST_NAMED = 3
_MOST_NESTED = 300
_CONTAINERS = frozenset({dict, list, tuple})

Aval = tuple[tuple[int, ...], Any, bool]
"""Shape, dtype, and whether the dtype is weak."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """The arguments of one call, NNX objects opened; valid while it is open.

    Attributes:
      args, kwargs: as the caller gave them.
      options: how the step takes them.
      opened: those that are no settings.
      leaves: their arrays.
      tree: structure of ``(list of positional arguments, keyword arguments)``; leaves that are settings are in it.
      avals: of each leaf.
      statics: (parameter, value) of each setting, defaults included.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: StepOptions
    opened: _nnx.Opened
    leaves: list[Any]
    tree: Any
    avals: tuple[Aval, ...]
    statics: tuple[tuple[Any, Static], ...]

    @property
    def dynamic(self) -> list[int]:
        """Positions of the arguments that are no settings."""
        static = self.options.static.positions(self.args)
        return [i for i in range(len(self.args)) if i not in static]

    def functional(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step as a function of the leaves of ``tree``, its results without Python values among the leaves."""
        names = self.options.static.keywords(self.kwargs)
        settings = {name: self.kwargs[name] for name in names}

        def on_dynamic(*dynamic: Any, **keywords: Any) -> Any:
            return step(*self.merge(dynamic), **keywords, **settings)

        run = self.opened.functional(on_dynamic)

        def functional_step(dynamic: Any, keywords: Any) -> Any:
            dynamic, keywords = release_statics((dynamic, keywords))
            return hold_statics(run(*dynamic, **keywords), numbers=self.options.numbers_are_static)

        return functional_step

    def merge(self, dynamic: Sequence[Any]) -> list[Any]:
        """Positional arguments, with others in the place of those that are no settings."""
        merged = list(self.args)
        for i, value in zip(self.dynamic, dynamic, strict=True):
            merged[i] = value
        return merged

    def check_alive(self, paths: Sequence[str] | None = None) -> None:
        """Raise ArgumentError for an argument that an earlier call was donated."""
        for position, leaf in enumerate(self.leaves):
            if isinstance(leaf, jax.Array) and not isinstance(leaf, _compat.Tracer) and leaf.is_deleted():
                paths = self.paths() if paths is None else paths
                raise ArgumentError(_DELETED_MSG.format(path=paths[position]))

    def settings(self) -> str:
        """The leaves of arguments that are settings, for an error: path and value of the first few."""
        example = jax.tree.unflatten(self.tree, self.leaves)
        found = [
            f"{argument_path(path, self.dynamic)} = {shortened(leaf.value)}"
            for path, leaf in jax.tree_util.tree_flatten_with_path(example, is_leaf=is_static)[0]
            if is_static(leaf)
        ]
        more = f", and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return ", ".join(found[:_MOST_NAMED]) + more

    def numbers(self) -> str:
        """The first argument that is a tuple or list of ints of Python alone, for an error; '' where there is none."""
        for i in self.dynamic:
            value = self.args[i]
            if isinstance(value, tuple | list) and value and all(type(number) is int for number in value):
                return f"argument [{i}], {shortened(value)},"
        return ""

    def paths(self) -> tuple[str, ...]:
        """Key path of each leaf, such as ``[0]['w']``, or ``['x']`` of a keyword argument."""
        example = jax.tree.unflatten(self.tree, self.leaves)
        keys = [path for path, _ in jax.tree_util.tree_flatten_with_path(example)[0]]
        return tuple(argument_path(path, self.dynamic) for path in keys)


def argument_path(path: tuple[Any, ...], argnums: Sequence[int]) -> str:
    """The key path of a leaf of ``(list of arguments, keyword arguments)``, with the numbers of those arguments."""
    if path[0].idx == 0:
        return f"[{argnums[path[1].idx]}]" + jax.tree_util.keystr(path[2:])
    return jax.tree_util.keystr(path[1:])


@contextlib.contextmanager
def opened_call(
    step: Callable[..., Any], options: StepOptions, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[Call]:
    """Take the arguments of a call apart.

    Raises:
      ArgumentError: a leaf is neither an array nor a setting, or a static argument is not hashable.
    """
    _check_depth((args, kwargs), step)
    args, statics = tuple(args), ()
    dynamic, keywords = list(args), dict(kwargs)
    if options.static:
        positions, names = options.static.positions(args), options.static.keywords(kwargs)
        dynamic = [arg for i, arg in enumerate(args) if i not in positions]
        keywords = {name: value for name, value in kwargs.items() if name not in names}
        statics = _statics(options, args, kwargs)
    with _nnx.opened(dynamic, keywords) as opened:
        arguments = (list(opened.args), dict(opened.kwargs))
        leaves, tree = jax.tree.flatten(arguments)
        if all(isinstance(leaf, jax.Array) for leaf in leaves):
            avals = tuple(map(_aval_of_array, leaves))
        else:
            leaves, tree = jax.tree.flatten(hold_statics(arguments, numbers=options.numbers_are_static))
            avals = _avals(step, leaves, args, kwargs, options)
        yield Call(
            args=args,
            kwargs=kwargs,
            options=options,
            opened=opened,
            leaves=leaves,
            tree=tree,
            avals=avals,
            statics=statics,
        )


def _check_depth(arguments: Any, step: Callable[..., Any]) -> None:
    """Refuse nesting that JAX's own flattening, in C++, would end the process with."""
    level: list[Any] = [arguments]
    for _ in range(_MOST_NESTED):
        level = distinct(
            child
            for of in level
            for child in (of.values() if type(of) is dict else of)
            if type(child) in _CONTAINERS
        )
        if not level:
            return
    raise ArgumentError(
        f"the arguments of {step_name(step)} are nested more than {_MOST_NESTED} levels deep.\n"
        "  expected: trees of arrays\n"
        "  likely cause: a container holds itself\n"
        "  fix: pass the arrays that the step needs"
    )


def _avals(
    step: Callable[..., Any],
    leaves: Sequence[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: StepOptions,
) -> tuple[Aval, ...]:
    """Avals of leaves of which some are no `jax.Array`."""
    try:
        return tuple(
            _aval_of_array(x if isinstance(x, jax.Array | jax.ShapeDtypeStruct) else jax.typeof(x))
            for x in leaves
        )
    except (TypeError, OverflowError):
        check_leaves(step, args, kwargs, options.static)
        raise


def _aval_of_array(array: Any) -> Aval:
    return array.shape, array.dtype, bool(getattr(array, "weak_type", False))


def _statics(
    options: StepOptions, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, Static], ...]:
    """(Name, or position where it has none; value) of each setting, whether it was given or left at its default."""
    names = options.positional_names
    found: dict[Any, Any] = {}
    for i in options.static.positions(args):
        _check_hashable(i, args[i])
        found[names[i] if i < len(names) else i] = args[i]
    for name in options.static.keywords(kwargs):
        _check_hashable(repr(name), kwargs[name])
        found[name] = kwargs[name]
    for name, value in options.static_defaults.items():
        found.setdefault(name, value)
    return tuple((label, Static(found[label])) for label in sorted(found, key=str))


def _check_hashable(label: Any, value: Any) -> None:
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            _UNHASHABLE_MSG.format(label=label, value=shortened(value), type=type(value).__name__)
        ) from None
