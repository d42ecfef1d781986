"""Flax NNX objects as arguments: the one seam to `flax.nnx`.

A step may take NNX modules and optimizers and update them in place, as it may under `nnx.jit`. Around planning and
running, each such object is opened into a `GraphNode`, a pytree of its arrays, all of a call jointly, so that what
they share stays shared; inside the traced step they are objects again, and the step's changes come back in
an `Updated`. References are counted by NNX: https://flax.readthedocs.io/en/latest/api_reference/nnx/graph.html
(`nnx.update_context`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

_TAG = "jaxplan"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Name:
    """Key of one array inside an object, such as ``.blocks[0].kernel``."""

    text: str

    def __str__(self) -> str:
        return self.text


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphNode:
    """An opened NNX object.

    Attributes:
      graphdef: its structure and static attributes, hashable.
      state_tree: structure of its `nnx.State`.
      names: of the leaves.
      leaves: arrays.
    """

    graphdef: Any
    state_tree: Any
    names: tuple[_Name, ...]
    leaves: tuple[Any, ...]

    @classmethod
    def split(cls, context: Any, node: Any) -> GraphNode:
        """Open a node within an `nnx.split_context`."""
        graphdef, state = context.split(node)
        items, tree = jax.tree_util.tree_flatten_with_path(state)
        names = tuple(_Name(text=_dotted(path)) for path, _ in items)
        return cls(graphdef=graphdef, state_tree=tree, names=names, leaves=tuple(leaf for _, leaf in items))

    @property
    def state(self) -> Any:
        """`nnx.State` with the leaves."""
        return jax.tree.unflatten(self.state_tree, self.leaves)

    def merge(self, context: Any) -> Any:
        """The object again, within an `nnx.merge_context`."""
        return context.merge(self.graphdef, self.state)

    def same_as(self, other: GraphNode) -> bool:
        """Whether neither structure nor any array differs."""
        return (
            self.graphdef.with_no_outer_index() == other.graphdef.with_no_outer_index()
            and self.state_tree == other.state_tree
            and all(a is b for a, b in zip(self.leaves, other.leaves, strict=True))
        )

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        return self.leaves, (self.graphdef, self.state_tree, self.names)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[_Name, Any], ...], Any]:
        children, static = self.tree_flatten()
        return tuple(zip(self.names, children, strict=True)), static

    @classmethod
    def tree_unflatten(cls, static: Any, children: Sequence[Any]) -> GraphNode:
        graphdef, state_tree, names = static
        return cls(graphdef=graphdef, state_tree=state_tree, names=names, leaves=tuple(children))


def _dotted(path: Sequence[Any]) -> str:
    """``.blocks[0].kernel`` for the path of an array in an `nnx.State` (its last key is the variable's own)."""
    keys = [getattr(key, "key", None) for key in path]
    return "".join(
        f"[{key}]" if isinstance(key, int) else f".{key}" if isinstance(key, str) else str(entry)
        for key, entry in zip(keys, path, strict=True)
        if not (isinstance(entry, jax.tree_util.GetAttrKey) and entry.name == "value")
    )


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Unchanged:
    """In place of a `GraphNode` with arrays that the step did not replace."""

    graphdef: Any


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Updated:
    """Result of a step with NNX arguments when traced: its results, and its arguments' objects afterwards.

    Attributes:
      arguments: per positional and then per keyword argument (in alphabetical order), the argument with None for leaves
        outside of objects.
      results: of the step; the elements where it returned a tuple, so that a functional state among them has the
        path of an argument.
      is_tuple: whether it did.
    """

    arguments: tuple[Any, ...]
    results: tuple[Any, ...]
    is_tuple: bool

    @property
    def out(self) -> Any:
        return self.results if self.is_tuple else self.results[0]

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        return (*self.results, *self.arguments), (len(self.results), self.is_tuple)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], Any]:
        children, static = self.tree_flatten()
        names = [f"[{i}]" if self.is_tuple else "" for i in range(len(self.results))]
        names += [f"[updated {i}]" for i in range(len(self.arguments))]
        return tuple((_Name(text=name), child) for name, child in zip(names, children, strict=True)), static

    @classmethod
    def tree_unflatten(cls, static: Any, children: Sequence[Any]) -> Updated:
        num_results, is_tuple = static
        results, arguments = tuple(children[:num_results]), tuple(children[num_results:])
        return cls(arguments=arguments, results=results, is_tuple=is_tuple)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The arguments of one call, NNX objects opened; `args` and `kwargs` themselves where there is none.

    Attributes:
      args, kwargs: arguments with a `GraphNode` for each object.
      has_graph: whether there is one.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    has_graph: bool = False

    def functional(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step on opened arguments; it returns an `Updated`."""
        if not self.has_graph:
            return step
        from flax import nnx

        @functools.wraps(step)
        def functional_step(*args: Any, **kwargs: Any) -> Updated:
            with nnx.merge_context(_TAG, True) as context:
                live, live_kwargs = _map(lambda node: node.merge(context), (list(args), kwargs), _is_opened)
            out = step(*live, **live_kwargs)
            results = out if type(out) is tuple else (out,)
            with nnx.split_context(_TAG) as context:
                after = (*live, *(live_kwargs[name] for name in sorted(live_kwargs)))
                after, results = _map(
                    lambda node: GraphNode.split(context, node), (after, results), _is_graph
                )
            before = (*args, *(kwargs[name] for name in sorted(kwargs)))
            arguments = tuple(_difference(a, b) for a, b in zip(after, before, strict=True))
            return Updated(arguments=arguments, results=results, is_tuple=type(out) is tuple)

        return functional_step

    def close(self, result: Any) -> Any:
        """Update the caller's objects in place from an `Updated`; returns the step's own result."""
        if not isinstance(result, Updated):
            return result
        from flax import nnx

        before = _nodes((*self.args, *(self.kwargs[name] for name in sorted(self.kwargs))))
        after = jax.tree.leaves(result.arguments, is_leaf=lambda x: isinstance(x, GraphNode | _Unchanged))
        with nnx.merge_context(_TAG, False) as context:
            for old, new in zip(before, after, strict=True):
                state = old.state if isinstance(new, _Unchanged) else new.state
                context.merge(new.graphdef, state)
            return _map(lambda node: node.merge(context), result.out, _is_opened)


@contextlib.contextmanager
def opened(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Opened]:
    """Open the NNX objects among the arguments of one call; inside the context they can be closed again.

    Nothing of Flax is imported for a program that did not import `flax.nnx` itself.
    """
    args = tuple(args)
    if not _has_graph((args, kwargs)):
        yield Opened(args=args, kwargs=kwargs)
        return
    from flax import nnx

    with nnx.update_context(_TAG):
        with nnx.split_context(_TAG) as context:
            split = _map(lambda node: GraphNode.split(context, node), (list(args), dict(kwargs)), _is_graph)
        yield Opened(args=tuple(split[0]), kwargs=split[1], has_graph=True)


def opened_tree(tree: Any) -> Any:
    """A tree with a `GraphNode` for each object, shared parts kept; `closed` makes objects again."""
    if not _has_graph(tree):
        return tree
    from flax import nnx

    with nnx.split_context() as context:
        return _map(lambda node: GraphNode.split(context, node), tree, _is_graph)


def closed(tree: Any) -> Any:
    """A tree with new objects for the opened ones, with the same parts shared."""
    if not _nodes(tree):
        return tree
    from flax import nnx

    with nnx.merge_context() as context:
        return _map(lambda node: node.merge(context), tree, _is_opened)


def states(tree: Any) -> Any:
    """A tree with an `nnx.State` for each opened object; of an `Updated`, the results."""
    tree = tree.out if isinstance(tree, Updated) else tree
    return _map(lambda node: node.state, tree, _is_opened)


def _difference(after: Any, before: Any) -> Any:
    """The objects of one argument after the step; `_Unchanged` where the step replaced nothing in the argument.

    All of an argument comes back or nothing: it is donated as a whole or not at all.
    """
    old, new = _nodes(before), _nodes(after)
    unchanged = len(old) == len(new) and all(a.same_as(b) for a, b in zip(new, old, strict=True))

    def keep(leaf: Any) -> Any:
        if not _is_opened(leaf):
            return None
        return _Unchanged(graphdef=leaf.graphdef) if unchanged else leaf

    return jax.tree.map(keep, after, is_leaf=_is_opened)


def _nodes(tree: Any) -> list[GraphNode]:
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=_is_opened) if _is_opened(leaf)]


def _is_opened(value: Any) -> bool:
    return isinstance(value, GraphNode)


def _is_graph(value: Any) -> bool:
    from flax import nnx

    return isinstance(value, nnx.Pytree | nnx.Variable)


def _is_state(value: Any) -> bool:
    """Whether a value is a plain tree for its user although variables are in it: ``nnx.split`` made it."""
    from flax import nnx

    return isinstance(value, nnx.State)


def _has_graph(tree: Any) -> bool:
    if "flax.nnx" not in sys.modules:
        return False
    from flax import nnx

    stops = (nnx.Pytree, nnx.Variable, nnx.State)
    leaves = jax.tree.leaves(tree, is_leaf=lambda value: isinstance(value, stops))
    return any(isinstance(leaf, stops[:2]) for leaf in leaves)


def _map(function: Callable[[Any], Any], tree: Any, is_node: Callable[[Any], bool]) -> Any:
    """Apply to the nodes of a tree and leave the rest."""
    stop = is_node if is_node is _is_opened else lambda value: is_node(value) or _is_state(value)
    return jax.tree.map(lambda x: function(x) if is_node(x) else x, tree, is_leaf=stop)
