"""Create arguments of a step in stages, each on the devices of its stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxplan.errors import ArgumentError
from jaxplan.frontend._created import Initialiser, match_arguments
from jaxplan.partition._init import positions_of
from jaxplan.partition.stages._devices import argument_shardings, stage_meshes
from jaxplan.partition.stages._staged_like import StagedLike


def create_in_stages(
    plan: StagedLike, devices: Sequence[Any], init: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The results of ``init(*args, **kwargs)``, each computed on the devices of the stage that it lives in.

    The initialiser is compiled once for each stage, with its own arrays as results.

    Raises:
      ArgumentError: it returns neither an argument of the step nor a tuple of several.
    """
    initialiser = Initialiser.of(init, args, kwargs)
    shapes = initialiser.shapes()
    if not jax.tree.leaves(shapes):
        raise ArgumentError(f"{initialiser.name} returns no arrays; expected arguments of the step")
    meshes = stage_meshes(plan, devices)
    positions = positions_of(plan.require_program().program)
    arguments = {label: tuple(leaf for _, leaf in of) for label, of in positions.items()}
    places = [positions[label][i][0] for label, i in match_arguments(initialiser.name, shapes, arguments)]
    placed = argument_shardings(plan, meshes)
    found: dict[int, Any] = {}
    for stage, mesh in enumerate(meshes):
        mine = [k for k, i in enumerate(places) if plan.in_stages[i] == stage]
        run = jax.jit(_some_of(initialiser.function, mine), out_shardings=[placed[places[k]] for k in mine])
        whole = NamedSharding(mesh, PartitionSpec())
        found.update(zip(mine, run(*[jax.device_put(x, whole) for x in initialiser.arrays]), strict=True))
    leaves = [found[k] for k in range(len(places))]
    return initialiser.closed(jax.tree.unflatten(jax.tree.structure(shapes), leaves))


def _some_of(function: Callable[..., Any], positions: Sequence[int]) -> Callable[..., Any]:
    """The function, with some of the leaves of its result."""

    def some(*arrays: Any) -> list[Any]:
        leaves = jax.tree.leaves(function(*arrays))
        return [leaves[k] for k in positions]

    return some
