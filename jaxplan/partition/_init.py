"""Create arguments of a step where a plan wants them, each device its own part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxplan.core._processes import spans_processes
from jaxplan.errors import ArgumentError
from jaxplan.frontend._created import Initialiser, match_arguments
from jaxplan.partition._host_memory import in_shardings
from jaxplan.partition._host_values import check_equal, is_on_host, put
from jaxplan.partition._same_everywhere import check_same_program

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxplan.ir import Program
    from jaxplan.partition._plan_like import PlanLike


def create(
    plan: PlanLike, mesh: Mesh, init: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The results of ``init(*args, **kwargs)``, computed in the shardings that the plan has for it.

    The initialiser is compiled as one program whose results are sharded, so no device ever holds an array that the plan
    splits. Random numbers are those of one device (`jax_threefry_partitionable`).

    Raises:
      ArgumentError: it returns neither an argument of the step nor a tuple of several.
    """
    initialiser = Initialiser.of(init, args, kwargs)
    shapes = initialiser.shapes()
    if not jax.tree.leaves(shapes):
        raise ArgumentError(f"{initialiser.name} returns no arrays; expected arguments of the step")
    program = plan.require_program().program
    positions = positions_of(program)
    arguments = {label: tuple(leaf for _, leaf in of) for label, of in positions.items()}
    placed = in_shardings(plan, mesh)
    shardings = [
        placed[positions[label][i][0]]
        for label, i in match_arguments(initialiser.name, shapes, arguments)
    ]
    run = jax.jit(
        initialiser.function, out_shardings=jax.tree.unflatten(jax.tree.structure(shapes), shardings)
    )
    if spans_processes(mesh.devices.flat):
        return initialiser.closed(_run_everywhere(initialiser, run, mesh))
    return initialiser.closed(run(*[_on(mesh, array) for array in initialiser.arrays]))


def _run_everywhere(initialiser: Initialiser, run: Any, mesh: Mesh) -> Any:
    """The initialiser on the devices of several processes, which give it the same arrays and run the same program."""
    arrays, name = initialiser.arrays, f"the initialiser {initialiser.name}"
    check_equal(name, {f"array {i} among its arguments": a for i, a in enumerate(arrays) if is_on_host(a)})
    placed = [_on(mesh, array) for array in arrays]
    check_same_program(name, run.lower(*placed))
    return run(*placed)


def _on(mesh: Mesh, array: Any) -> Any:
    """An argument of an initialiser on the devices of the plan: as it lies there, or whole on each."""
    sharding = getattr(array, "sharding", None)
    if sharding is not None and sharding.device_set == set(mesh.devices.flat):
        return array
    return put(array, NamedSharding(mesh, PartitionSpec()))


def positions_of(program: Program) -> dict[str, list[tuple[int, tuple[str, tuple[int, ...], Any]]]]:
    """Per argument of the step: position of each of its arrays among all, and its path, shape and dtype."""
    found: dict[str, list[Any]] = {}
    for i, (path, t) in enumerate(zip(program.in_paths, program.inputs, strict=True)):
        end = path.index("]") + 1
        tensor = program.tensors[t]
        found.setdefault(path[:end], []).append((i, (path[end:], tensor.shape, tensor.dtype)))
    return found


