"""Python source of the tree of a step's results, from its flat results and its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxplan.errors import UnsupportedError
from jaxplan.frontend._static_leaves import is_static
from jaxplan.partition.export._literals import Literals, NotWritable

_NO_SOURCE_MSG = (
    "the results of the step cannot be written as a script: they hold {value}.\n"
    "  expected: dicts, lists, tuples, named tuples, dataclasses, and parts that have the structure of an argument\n"
    "  likely cause: a class that keeps Python values beside its arrays, such as an optimizer\n"
    "  fix: return its arrays, or the object as the argument that it came in as"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaf:
    number: int


class ResultTrees:
    """Source of trees with leaves `results[0]`, `results[1]`, ...

    Attributes:
      arguments: source of an argument, or of a part of it -> its structure.
      uses_like: whether `like` was needed.
    """

    def __init__(self, literals: Literals, arguments: Mapping[str, Any]) -> None:
        self._literals = literals
        self._parts: dict[Any, str] = {}
        self.uses_like = False
        for source, tree in arguments.items():
            self._add_parts(source, tree)

    def source(self, out_tree: Any) -> str:
        """Source of the results.

        Raises:
          UnsupportedError: they hold objects that have none.
        """
        try:
            return self._of(jax.tree.unflatten(out_tree, [_Leaf(i) for i in range(out_tree.num_leaves)]))
        except NotWritable as error:
            raise UnsupportedError(_NO_SOURCE_MSG.format(value=error)) from error

    def _add_parts(self, source: str, tree: Any) -> None:
        if jax.tree.leaves(tree) and not jax.tree.all(jax.tree.map(lambda leaf: leaf is tree, tree)):
            self._parts.setdefault(jax.tree.structure(tree), source)
            items, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
            for (key,), part in items:
                if not isinstance(key, jax.tree_util.FlattenedIndexKey):
                    self._add_parts(f"{source}{key}", part)

    def _of(self, tree: Any) -> str:
        if isinstance(tree, _Leaf):
            return f"results[{tree.number}]"
        if is_static(tree):
            return self._literals.of(tree.value)
        if tree is None:
            return "None"
        if type(tree) is dict:
            return f"{{{', '.join(f'{key!r}: {self._of(part)}' for key, part in tree.items())}}}"
        if type(tree) is list:
            return f"[{self._all(tree)}]"
        if type(tree) is tuple:
            return f"({self._all(tree)}{',' if len(tree) == 1 else ''})"
        known, leaves = self._parts.get(jax.tree.structure(tree)), jax.tree.leaves(tree)
        if known is not None and all(isinstance(leaf, _Leaf) for leaf in leaves):
            self.uses_like = True
            return f"like({known}, results[{leaves[0].number}:{leaves[-1].number + 1}])"
        return self._made(tree)

    def _made(self, tree: Any) -> str:
        """A named tuple, a mapping or a dataclass by its fields."""
        name = self._literals.named(type(tree))
        names = getattr(tree, "_fields", None)
        if isinstance(tree, tuple) and names is not None:
            return f"{name}({self._fields(dict(zip(names, tree, strict=True)))})"
        if isinstance(tree, Mapping):
            return f"{name}({self._of(dict(tree))})"
        if dataclasses.is_dataclass(tree):
            return f"{name}({self._fields({f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)})})"
        raise NotWritable(f"a {type(tree).__module__}.{type(tree).__qualname__}")

    def _fields(self, fields: Mapping[str, Any]) -> str:
        return ", ".join(
            f"{name}={self._of(part) if _has_leaf(part) else self._literals.of(part)}" for name, part in fields.items()
        )

    def _all(self, parts: Sequence[Any]) -> str:
        return ", ".join(map(self._of, parts))


def _has_leaf(tree: Any) -> bool:
    return tree is None or any(isinstance(leaf, _Leaf) for leaf in jax.tree.leaves(tree)) or not jax.tree.leaves(tree)
