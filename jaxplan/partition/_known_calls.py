"""Which calls a planned program serves: those of the arguments it was planned for, and those that trace to it again.

Trees hold values that are no arrays, such as the functions of an optimizer, and a function that was defined again is
another object. Then the step is traced once more on the arguments given, and the programs are compared.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from jaxplan.errors import JaxplanError, PlanMismatchError
from jaxplan.frontend._call import Aval, Call, argument_path
from jaxplan.frontend._static_leaves import Static, equal, has_statics, is_static, release_statics
from jaxplan.ir import Program, Source, first_difference

MAX_KNOWN = 16
"""Kinds of calls that are remembered, the least recently used forgotten first."""
_MOST_NAMED = 4
_LEAF = object()

_OTHER_PROGRAM_MSG = (
    "the step on these arguments is another program than the one that was planned: it {difference}.\n"
    "  given:        {parts}\n"
    "  expected:     arguments on which the step computes what was planned; only the values of arrays may differ\n"
    "  likely cause: a setting that is no array, such as the learning rate of an optimizer, is not the plan's\n"
    "  fix:          plan again for these arguments; @jaxplan.auto does so by itself"
)
_STRUCTURE_MSG = (
    "the arguments have another structure than those the plan was made for.\n"
    "  differs:      {parts}\n"
    "  expected:     the arrays that the plan was made for, in the same places\n"
    "  likely cause: an argument or a part of the state was added or left out\n"
    "  fix:          plan again for these arguments"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """How flat results become the results of the step for one kind of call.

    Attributes:
      tree: their structure.
      has_statics: whether values that are no arrays are among them.
    """

    tree: Any
    has_statics: bool

    @classmethod
    def of(cls, program: Program) -> Results:
        tree = program.out_tree
        try:
            found = has_statics(jax.tree.unflatten(tree, [_LEAF] * tree.num_leaves))
        except Exception:  # a class that does not take placeholders
            found = True
        return cls(tree=tree, has_statics=found)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        results = jax.tree.unflatten(self.tree, leaves)
        return release_statics(results) if self.has_statics else results


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kind:
    """Calls that differ in nothing but the values of arrays."""

    tree: Any
    avals: tuple[Aval, ...]
    statics: tuple[tuple[Any, Static], ...]
    results: Results

    def is_of(self, call: Call) -> bool:
        return (
            self.avals == call.avals
            and (self.statics is call.statics or self.statics == call.statics)
            and _equal_trees(self.tree, call.tree)
        )


class KnownCalls:
    """The kinds of calls that one planned program serves."""

    def __init__(self, program: Program, source: Source) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._kinds: collections.deque[_Kind] = collections.deque(maxlen=MAX_KNOWN)
        self._source = source
        self._remember(program.in_tree, source.avals, source.statics, program)

    def results_of(self, call: Call) -> Results:
        """How results are to be returned for a call.

        Raises:
          PlanMismatchError: the step is another program on these arguments; names the difference.
        """
        for kind in tuple(self._kinds):
            if kind.is_of(call):
                return kind.results
        _check_arrays(self._program, call)
        try:
            program = self.trace(call)
        except JaxplanError as error:
            raise PlanMismatchError(_STRUCTURE_MSG.format(parts=_parts(self._program, call))) from error
        results = self.admit(call, program)
        if results is None:
            difference = first_difference(self._program, program)
            raise PlanMismatchError(
                _OTHER_PROGRAM_MSG.format(difference=difference, parts=_parts(self._program, call))
            )
        return results

    def trace(self, call: Call) -> Program:
        """The step on the arguments of a call."""
        return self._source.trace(call.args, call.kwargs)

    def admit(self, call: Call, program: Program) -> Results | None:
        """Serve a call that traces to this program, if it is the one that was planned."""
        if first_difference(self._program, program) is not None:
            return None
        return self._remember(call.tree, call.avals, call.statics, program)

    def _remember(self, tree: Any, avals: Any, statics: Any, program: Program) -> Results:
        results = Results.of(program)
        with self._lock:
            self._kinds.appendleft(_Kind(tree=tree, avals=avals, statics=statics, results=results))
        return results


def _equal_trees(a: Any, b: Any) -> bool:
    try:
        return a == b
    except Exception:  # values that cannot be compared, such as arrays as metadata
        return False


def _check_arrays(program: Program, call: Call) -> None:
    """Raise PlanMismatchError where the arrays alone are not those of the plan."""
    tensors = [program.tensors[t] for t in program.inputs]
    paths = call.paths()
    if len(tensors) != len(call.avals):
        raise PlanMismatchError(_STRUCTURE_MSG.format(parts=_parts(program, call)))
    for path, (shape, dtype, _), tensor in zip(paths, call.avals, tensors, strict=True):
        if shape != tensor.shape:
            raise PlanMismatchError(
                f"argument {path} has shape {shape}; the plan was made for {tensor.shape}.\n"
                "  fix: plan again for these arguments"
            )
        if dtype != tensor.dtype:
            raise PlanMismatchError(
                f"argument {path} is {dtype}; the plan was made for {tensor.dtype}.\n"
                "  fix: convert it, or plan again for these arguments"
            )


def _parts(program: Program, call: Call) -> str:
    """Where the arguments are not those of the plan: arrays, settings, structure."""
    paths = call.paths()
    added = [p for p in paths if p not in set(program.in_paths)]
    missing = [p for p in program.in_paths if p not in set(paths)]
    if added or missing:
        given = f"arrays only in the call: {_few(added)}" if added else ""
        planned = f"arrays only in the plan: {_few(missing)}" if missing else ""
        return "; ".join(filter(None, (given, planned)))
    source = program.source
    found = [] if source is None else [str(a) for a in _changed_statics(source.statics, call.statics)]
    if source is not None and not found:
        found = [
            f"{path} is a Python number or another weakly typed value"
            if weak
            else f"{path} is not weakly typed"
            for path, (_, _, weak), (_, _, planned) in zip(paths, call.avals, source.avals, strict=True)
            if weak != planned
        ]
    found += [argument_path(path, call.dynamic) for path in _changed_nodes(program.in_tree, call.tree)]
    return f"other than in the plan: {_few(found)}" if found else "the same settings"


def _changed_statics(ours: Sequence[Any], theirs: Sequence[Any]) -> Iterator[str]:
    planned: Mapping[Any, Any] = dict(ours)
    for label, value in theirs:
        if label not in planned:
            yield f"{label}={value.value!r}"
        elif planned[label] != value:
            yield f"{label}={value.value!r}, and {planned[label].value!r} in the plan"


def _changed_nodes(ours: Any, theirs: Any) -> list[tuple[Any, ...]]:
    """Key paths of the parts of two trees that differ in type or in values beside arrays."""
    try:
        trees = [jax.tree.unflatten(tree, [_LEAF] * tree.num_leaves) for tree in (ours, theirs)]
        return list(_differences((), trees[0], trees[1]))
    except Exception:  # a class that does not take placeholders: the error goes without paths
        return []


def _differences(path: tuple[Any, ...], a: Any, b: Any) -> Iterator[tuple[Any, ...]]:
    if a is _LEAF or b is _LEAF:
        return
    (a_children, a_tree), (b_children, b_tree) = _one_level(a), _one_level(b)
    if not _equal_trees(a_tree, b_tree):
        names = _changed_attributes(a, b) if type(a) is type(b) and not is_static(a) else []
        yield from ((*path, jax.tree_util.GetAttrKey(name)) for name in names) if names else (path,)
    if len(a_children) == len(b_children):
        for (key, x), (_, y) in zip(a_children, b_children, strict=True):
            yield from _differences((*path, *key), x, y)


def _one_level(node: Any) -> tuple[list[Any], Any]:
    return jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)


def _changed_attributes(a: Any, b: Any) -> list[str]:
    """Names of attributes that hold no arrays and differ."""
    ours, theirs = getattr(a, "__dict__", None), getattr(b, "__dict__", None)
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return []
    return [
        name
        for name, value in ours.items()
        if name in theirs
        and not equal(value, theirs[name])
        and not any(leaf is _LEAF for leaf in jax.tree.leaves(value))
    ]


def _few(items: Sequence[str]) -> str:
    more = f", and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return (", ".join(items[:_MOST_NAMED]) or "none") + more
