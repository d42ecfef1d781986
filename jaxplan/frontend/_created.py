"""Results of an initialiser, beside the arguments of the step that it creates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxplan.core._units import counted
from jaxplan.errors import ArgumentError
from jaxplan.frontend import _nnx
from jaxplan.frontend._arguments import is_array_like, step_name
from jaxplan.frontend._static_leaves import hold_statics, release_statics

Leaves = tuple[tuple[str, tuple[int, ...], Any], ...]
"""(Key path, shape, dtype) of each array of a tree."""

_UNMATCHED_MSG = (
    "what {name} returns is no argument of the planned step: {differs}.\n"
    "  given:        {given}\n"
    "  expected:     one argument of the step, or a tuple of several: {expected}\n"
    "  likely cause: the step was planned for another model or optimizer, or {name} returns more than the state\n"
    "  fix:          return the arguments as the step takes them, each whole: plan.init(lambda: (params, opt_state))"
)
_MOST_NAMED = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Initialiser:
    """A function that creates arguments of a step, on flat arrays, NNX objects opened.

    Attributes:
      arrays: those among its own arguments.
      function: the arrays to the initialiser's result.
    """

    name: str
    arrays: tuple[Any, ...]
    function: Callable[..., Any]

    @classmethod
    def of(cls, init: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Initialiser:
        """Whatever of the arguments is no array is closed over: models, configurations, shapes."""
        leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
        places = [i for i, leaf in enumerate(leaves) if _is_traced(leaf)]

        def function(*arrays: Any) -> Any:
            given = list(leaves)
            for i, array in zip(places, arrays, strict=True):
                given[i] = array
            args, kwargs = jax.tree.unflatten(tree, given)
            return hold_statics(_nnx.opened_tree(init(*args, **kwargs)))

        return cls(name=step_name(init), arrays=tuple(leaves[i] for i in places), function=function)

    def shapes(self) -> Any:
        """The result, with `jax.ShapeDtypeStruct` in place of arrays; nothing is allocated."""
        return jax.eval_shape(self.function, *self.arrays)

    @staticmethod
    def closed(result: Any) -> Any:
        """The user function's result, from the result of ``function``."""
        return _nnx.closed(release_statics(result))


def _is_traced(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and is_array_like(leaf)


def match_arguments(name: str, shapes: Any, arguments: Mapping[str, Leaves]) -> list[tuple[str, int]]:
    """For each array of an initialiser's result, the argument and the position among its arrays.

    Args:
      shapes: the result; as a whole an argument, or a tuple of several.
      arguments: the arrays of each argument of the step, by a label such as ``[0]``.

    Raises:
      ArgumentError: it is neither.
    """
    whole = _leaves(shapes)
    found = next(_fitting(whole, arguments, frozenset()), None)
    if found is not None:
        return [(found, i) for i in range(len(whole))]
    places: list[tuple[str, int]] = []
    taken: set[str] = set()
    for part in shapes if isinstance(shapes, tuple | list) else [shapes]:
        leaves = _leaves(part)
        found = next(_fitting(leaves, arguments, taken), None) if leaves else ""
        if found is None:
            raise ArgumentError(_unmatched(name, leaves, arguments))
        taken.add(found)
        places += [(found, i) for i in range(len(leaves))]
    return places


def _leaves(tree: Any) -> Leaves:
    return tuple(
        (jax.tree_util.keystr(path), tuple(leaf.shape), leaf.dtype)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    )


def _fitting(leaves: Leaves, arguments: Mapping[str, Leaves], taken: Any) -> Iterator[str]:
    """Arguments with the same arrays in the same order, those with the same key paths first."""
    free = {label: of for label, of in arguments.items() if label not in taken and of}
    yield from (label for label, of in free.items() if of == leaves)
    types = [leaf[1:] for leaf in leaves]
    yield from (label for label, of in free.items() if [leaf[1:] for leaf in of] == types)


def _unmatched(name: str, leaves: Leaves, arguments: Mapping[str, Leaves]) -> str:
    """Compared with the argument that has most of the arrays."""
    near = max(arguments, key=lambda label: len({*arguments[label]} & {*leaves}), default="")
    ours, theirs = dict(_by_path(leaves)), dict(_by_path(arguments.get(near, ())))
    added, missing = [p for p in ours if p not in theirs], [p for p in theirs if p not in ours]
    unlike = [p for p in ours if p in theirs and ours[p] != theirs[p]]
    changed = [f"{p or 'it'} is {ours[p]}, and {theirs[p]} in the plan" for p in unlike]
    parts = [
        f"argument {near} has no {', '.join(added[:_MOST_NAMED])}" if added else "",
        f"argument {near} also has {', '.join(missing[:_MOST_NAMED])}" if missing else "",
        "; ".join(changed[:_MOST_NAMED]),
    ]
    first, more = [*ours.items()][:_MOST_NAMED], " ..." if len(ours) > _MOST_NAMED else ""
    return _UNMATCHED_MSG.format(
        name=name,
        differs="; ".join(filter(None, parts)) or "the order of its arrays differs",
        given=f"{counted(len(leaves), 'array')}: {', '.join(f'{p} {t}'.strip() for p, t in first)}{more}",
        expected=", ".join(f"{label} ({counted(len(of), 'array')})" for label, of in arguments.items()),
    )


def _by_path(leaves: Leaves) -> Iterator[tuple[str, str]]:
    for path, shape, dtype in leaves:
        yield path, f"{dtype}[{','.join(map(str, shape))}]"
