"""Leaves of the arguments and results of a step by their key paths, and the subtrees that these form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.ir._program import Tensor

Keys = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf of the arguments or of the results.

    Attributes:
      keys: its path; of an argument, the name or number of the argument first.
      aval: shape and dtype.
      tensor: tensor index.
    """

    keys: Keys
    aval: Any
    tensor: int

    @classmethod
    def of(cls, path: Sequence[Any], tensor: Tensor) -> Leaf:
        """A leaf by its key path, as `jax.tree_util.tree_flatten_with_path` has it."""
        return cls(keys=tuple(map(_plain_key, path)), aval=(tensor.shape, tensor.dtype), tensor=tensor.index)


@dataclass(frozen=True, slots=True)
class Subtree:
    """A subtree of the arguments: its prefix, and its leaves as input positions."""

    prefix: Keys
    leaves: tuple[int, ...]


def _plain_key(key: Any) -> str | int:
    """A position as a number, every other key as its name."""
    for attribute in ("name", "key", "idx"):  # of an object or named tuple, of a dict, of a list
        if hasattr(key, attribute):
            value = getattr(key, attribute)
            return value if isinstance(value, int) else str(value)
    return str(key)


def subtrees_of_arguments(inputs: Sequence[Leaf]) -> Iterator[Subtree]:
    """One node per argument; a keyword argument has its name as a key."""
    groups: dict[str | int, list[int]] = defaultdict(list)
    for i, leaf in enumerate(inputs):
        groups[leaf.keys[0]].append(i)
    for owner, leaves in groups.items():
        by_keys = sorted(
            leaves, key=lambda i: tuple(map(str, inputs[i].keys))
        )  # as any container orders them
        yield Subtree((owner,), tuple(by_keys))


def subtrees_below(inputs: Sequence[Leaf], node: Subtree) -> Iterator[Subtree]:
    """The subtrees one key below; leaves are not subtrees."""
    depth = len(node.prefix)
    groups: dict[str | int, list[int]] = defaultdict(list)
    for i in node.leaves:
        if len(inputs[i].keys) > depth + 1:
            groups[inputs[i].keys[depth]].append(i)
    for key, leaves in groups.items():
        yield Subtree((*node.prefix, key), tuple(leaves))


def is_named(signature: Sequence[tuple[Keys, Any]]) -> bool:
    """Whether a subtree says more than a bare array: it has several leaves, or a name."""
    return len(signature) > 1 or any(isinstance(key, str) for key in signature[0][0])


def ends_alike(a: Keys, b: Keys) -> bool:
    """Whether two paths end in the same name; a position is no name."""
    return bool(a and b) and isinstance(a[-1], str) and a[-1] == b[-1]


def differ_by_name(a: Keys, b: Keys) -> bool:
    """Whether the first keys that differ are names."""
    return next(
        (isinstance(x, str) and isinstance(y, str) for x, y in zip(a, b, strict=False) if x != y), False
    )
