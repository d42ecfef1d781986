"""A user's own shardings as a reference strategy: how good are the shardings that they wrote by hand?

Shardings of the arguments say how arrays enter the step. Inside, they are propagated as the partitioner would do
it: the batch stays split as the examples are, parameters are split inside an operator as they are stored unless
the batch has those devices, and are gathered for it then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxplan.core._paths import matches
from jaxplan.core._units import counted
from jaxplan.cost import sharding_of
from jaxplan.errors import ArgumentError
from jaxplan.ir import STORED_KINDS, UNGROUPED, Group, StepGraph, UserMesh, spec_dims
from jaxplan.mesh import AxesNames, Topology, axes_of, named_axes
from jaxplan.strategies._axes import Axes
from jaxplan.strategies._reference import reference_names
from jaxplan.strategies._rules import apply_rules, batch_wishes
from jaxplan.strategies._step import Absent, Step, StrategyPlan, Wishes
from jaxplan.strategies._weights import Weights

_TREE_MSG = (
    "references[{name!r}] does not have the structure of the arguments: {error}\n"
    "  expected: a tuple with one tree of NamedSharding per argument, as jax.jit takes in_shardings (a single sharding "
    "stands for a whole subtree, None for arrays that are whole), or a mapping from path patterns to specs"
)

_MOST_NAMED = 3


def checked_names(references: Any, topology: Topology) -> dict[str, Any]:
    """References of a user by name, their values unread.

    Raises:
      ArgumentError: no mapping, or a name that a strategy or a point of every frontier has.
    """
    if references is None:
        return {}
    if not isinstance(references, Mapping) or not all(isinstance(name, str) and name for name in references):
        raise ArgumentError(
            f"references is {references!r}; expected shardings of the arguments by name, such as "
            "{'mine': in_shardings}"
        )
    taken = {"fastest", "knee", "leanest", *reference_names(topology)}
    for name in references:
        if name in taken or name.isdigit():
            raise ArgumentError(f"references has {name!r}, which is the name of another plan; choose another")
    return dict(references)


def own_strategies(
    graph: StepGraph, topology: Topology, references: Mapping[str, Any], axes: AxesNames | None
) -> dict[str, StrategyPlan | Absent]:
    """`sketch_of_shardings` of each of a user's references."""
    if not graph.spaces:
        return dict.fromkeys(references, Absent(reason="the step computes with scalars only"))
    return {name: sketch_of_shardings(graph, topology, of, name, axes) for name, of in references.items()}


def sketch_of_shardings(
    graph: StepGraph, topology: Topology, shardings: Any, name: str, axes: AxesNames | None = None
) -> StrategyPlan | Absent:
    """The strategy that shardings of the arguments ask for; absent where an operator cannot run on such pieces.

    Args:
      shardings: a tuple of trees as `jax.jit` takes ``in_shardings``, or a mapping from path patterns to specs.
      name: the user's name for it.
      axes: declared names of axes, for specs without a mesh.

    Raises:
      ArgumentError: the trees do not match, a mesh has other devices, or a dimension does not divide.
    """
    shardings = _shardings(graph, topology, shardings, name, axes)
    for t, dims in shardings.items():
        if found := _unsplittable(graph, t, dims):
            return Absent(reason=found)
    step = Step(graph=graph, topology=topology, weights=Weights(graph))
    by_dimension = _by_dimension(graph, shardings)
    batch = next((by_dimension[k] for k in graph.named.batch if by_dimension.get(k)), ())

    def stored(group: Group) -> Wishes:
        dims = graph.spaces[group.index].tensor_dims
        return {
            c: axes
            for t in group.inputs
            for classes, axes in zip(dims.get(t, ()), shardings.get(t, ()))
            for c in classes
            if axes
        }

    def compute(group: Group) -> Wishes:
        wishes = {**stored(group), **batch_wishes(step, group.index, batch)}
        for c, dimension in enumerate(step.named(group.index)):
            rest = tuple(a for a in by_dimension.get(dimension, ()) if a not in batch)
            if rest and c not in wishes:
                wishes[c] = rest
        return wishes

    plan = apply_rules(step, compute, stored, is_given=True)
    if found := _stored_otherwise(graph, plan, shardings):
        return Absent(reason=found)
    return plan


def _stored_otherwise(graph: StepGraph, plan: StrategyPlan, shardings: Mapping[int, Sequence[Axes]]) -> str:
    """Why a parameter or state is not stored as asked for; empty where all are."""
    paths = dict(zip(graph.program.inputs, graph.program.readable_in_paths, strict=True))
    for t, dims in shardings.items():
        v = graph.grouping.tensor_group[t]
        if v == UNGROUPED or graph.grouping.groups[v].kind not in STORED_KINDS:
            continue
        if sharding_of(graph, plan.configurations, v, t, produced=True).dims != tuple(dims):
            others = ", ".join([paths[u] for u in graph.grouping.groups[v].inputs if u != t][:_MOST_NAMED])
            return f"the argument {paths[t]} cannot be stored so" + (f": {others} is updated with it" if others else "")
    return ""


def _by_dimension(graph: StepGraph, shardings: Mapping[int, Sequence[Axes]]) -> dict[int, Axes]:
    """The axes that split each named dimension: those of the largest leaf in which they split it."""
    tensors, found = graph.program.tensors, {}
    for t in sorted(shardings, key=lambda t: (-tensors[t].num_elements, t)):
        for d, axes in enumerate(shardings[t]):
            if axes and (t, d) in graph.named.of:
                found.setdefault(graph.named.of[t, d], axes)
    return found


def _unsplittable(graph: StepGraph, t: int, dims: Sequence[Axes]) -> str:
    """Why an argument cannot be stored so; empty where it can."""
    v = graph.grouping.tensor_group[t]
    classes = graph.spaces[v].tensor_dims.get(t, ()) if v != UNGROUPED else ()
    for d, axes in enumerate(dims):
        if axes and (d >= len(classes) or not classes[d]):
            path = graph.program.tensors[t].path
            return f"it splits dimension {d} of the argument {path}, which an operator needs whole"
    return ""


def _shardings(
    graph: StepGraph, topology: Topology, shardings: Any, name: str, axes: AxesNames | None
) -> dict[int, tuple[Axes, ...]]:
    """Per input, the atomic axes that split each of its dimensions."""
    program = graph.program
    found = {}
    for t, path, sharding in zip(
        program.inputs, program.in_paths, _per_leaf(graph, shardings, name), strict=True
    ):
        if sharding is not None:
            found[t] = _dims(program.tensors[t].shape, sharding, topology, f"references[{name!r}] at {path}", axes)
    return found


def _per_leaf(graph: StepGraph, shardings: Any, name: str) -> list[Any]:
    program = graph.program
    if isinstance(shardings, Mapping):
        paths = program.readable_in_paths
        unused = [pattern for pattern in shardings if not any(matches(path, pattern) for path in paths)]
        if unused:
            raise ArgumentError(
                f"references[{name!r}] has the pattern {unused[0]!r}, which matches no argument; "
                f"there are {', '.join(paths[:5])} ..."
            )
        return [next((s for pattern, s in shardings.items() if matches(path, pattern)), None) for path in paths]
    arguments, keywords = jax.tree.unflatten(program.in_tree, [0] * len(program.inputs))
    if not isinstance(shardings, tuple | list):
        shardings = (shardings,)
    if len(shardings) != len(arguments):
        given, taken = (counted(len(of), "argument") for of in (shardings, arguments))
        error = f"it is for {given}, and the step takes {taken} of arrays"
        raise ArgumentError(_TREE_MSG.format(name=name, error=error))
    try:
        full = jax.tree.broadcast(tuple(shardings), tuple(arguments), is_leaf=_is_sharding)
    except ValueError as error:
        raise ArgumentError(_TREE_MSG.format(name=name, error=error)) from error
    leaves = jax.tree.leaves(full, is_leaf=_is_sharding)
    return [*leaves, *[None] * len(jax.tree.leaves(keywords))]


def _is_sharding(value: Any) -> bool:
    return value is None or isinstance(value, PartitionSpec | jax.sharding.Sharding)


def _dims(
    shape: tuple[int, ...], sharding: Any, topology: Topology, given: str, axes: AxesNames | None
) -> tuple[Axes, ...]:
    """The atomic axes of each dimension of an array."""
    if isinstance(sharding, NamedSharding):
        mesh = UserMesh.of(sharding.mesh)
        known, spec = mesh.atomic_axes([axis.size for axis in topology.axes]), sharding.spec
        if known is None:
            raise ArgumentError(
                f"{given} is over the mesh {mesh}, which does not group the {topology.num_devices} devices of "
                f"{topology.name}.\n  expected: a mesh of as many devices, each axis a product of neighbours in "
                f"{[axis.size for axis in topology.axes]}"
            )
    elif isinstance(sharding, PartitionSpec):
        known, spec = named_axes(axes, topology), sharding
    else:
        raise ArgumentError(f"{given} is {sharding!r}; expected a NamedSharding, a PartitionSpec or None")
    if len(spec) > len(shape):
        raise ArgumentError(f"{given} has {len(spec)} entries for an array of shape {shape}")
    found = tuple(axes_of(names or (), known, given) for names in spec_dims(tuple(spec), len(shape)))
    for d, of in enumerate(found):
        parts = math.prod(topology.axes[a].size for a in of)
        if shape[d] % parts:
            raise ArgumentError(f"{given} splits dimension {d} of shape {shape} into {parts} parts; it does not divide")
    return found
