"""Paths of array leaves as people write them, and the patterns that select some of them.

JAX writes the key path of a leaf as ``[0].params['Dense_0']['kernel']``; people write ``state/params/Dense_0/kernel``:
the name of the argument and the keys, joined by slashes.
"""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_KEY = re.compile(
    r"""\[<flat\ index\ (\d+)>\]      # a leaf of a custom node
    | \[\s*'((?:[^'\\]|\\.)*)'\s*\]   # a string key
    | \[\s*"((?:[^"\\]|\\.)*)"\s*\]
    | \[([^\[\]]*)\]                  # a number or another key
    | \.(\w+)                         # an attribute""",
    re.VERBOSE,
)
_ARGUMENT = re.compile(r"^\[(\d+)\]")


def argument_names(step: Callable[..., Any] | None) -> tuple[str, ...]:
    """Names of the positional parameters of a step, in order; none where the step does not tell them.

    Example:
      >>> argument_names(lambda state, batch: state)
      ('state', 'batch')
    """
    try:
        parameters = inspect.signature(step).parameters.values() if step is not None else ()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in positional)


def keys(path: str) -> tuple[str, ...]:
    """The keys of a JAX key path, outermost first; of an argument by position the first one is its number.

    Example:
      >>> keys("[0].params['Dense_0']['kernel']")
      ('0', 'params', 'Dense_0', 'kernel')
    """
    return tuple(next(filter(None, found.groups()), "") for found in _KEY.finditer(path))


def readable_path(path: str, names: Sequence[str] = ()) -> str:
    """A JAX key path with slashes, the argument by its name where ``names`` has it, else by its number.

    Example:
      >>> readable_path("[0].params['Dense_0']['kernel']", ("state", "batch"))
      'state/params/Dense_0/kernel'
      >>> readable_path("['x']")
      'x'
    """
    found = list(keys(path))
    number = _ARGUMENT.match(path)
    if number and int(number[1]) < len(names):
        found[0] = names[int(number[1])]
    return "/".join(found) or path


def matches(path: str, pattern: str) -> bool:
    """Whether a pattern (`fnmatch`) selects the leaf at a readable path.

    A pattern may leave out leading parts of the path, and one that names a subtree selects every leaf of it.

    Example:
      >>> path = "params/block_3/mlp/up/kernel"
      >>> matches(path, "block_3/*/kernel"), matches(path, "*/up"), matches(path, "mlp/down")
      (True, True, False)
    """
    parts = path.split("/")
    subtrees = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
    return any(fnmatch.fnmatchcase(tree, pattern) or fnmatch.fnmatchcase(tree, f"*/{pattern}") for tree in subtrees)


def nearest(wanted: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that a misspelt one may have meant, nearest first.

    Example:
      >>> nearest("params/dense/kernal", ["params/dense/kernel", "x"])
      ['params/dense/kernel']
    """
    return difflib.get_close_matches(wanted, list(dict.fromkeys(known)), n=most, cutoff=0.5)
