"""Where the arguments and results of a plan in stages live: each on the devices of one stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from jaxplan.ir.stages import Port
from jaxplan.mesh import Sharding
from jaxplan.partition._meshes import device_mesh
from jaxplan.partition.stages._staged_like import StagedLike


def stage_meshes(plan: StagedLike, devices: Sequence[Any]) -> list[Any]:
    """The mesh of each stage, of the devices of the whole plan in order."""
    return [
        device_mesh(stage.plan.topology, list(devices)[stage.first_device :][: stage.plan.topology.num_devices])
        for stage in plan.stages
    ]


def port_sharding(plan: StagedLike, meshes: Sequence[Any], stage: int, port: Port) -> NamedSharding | None:
    """Where a stage wants an input of its program; None where it has no such input."""
    part, of = plan.parts[stage], plan.stages[stage].plan
    if port not in part.inputs:
        return None
    return placed(meshes[stage], of.input_shardings[part.inputs.index(port)], of)


def placed(mesh: Any, sharding: Sharding, of: Any) -> NamedSharding:
    """A sharding on the devices of a stage."""
    axes = of.topology.axes
    return NamedSharding(mesh, sharding.partition_spec(axes) if axes else PartitionSpec())


def argument_shardings(plan: StagedLike, meshes: Sequence[Any]) -> list[NamedSharding]:
    """Of each argument of the step; one that a stage reads in slices alone is split as its slices are."""
    found = []
    for i, stage in enumerate(plan.in_stages):
        whole = port_sharding(plan, meshes, stage, Port("input", i))
        whole = whole or port_sharding(plan, meshes, stage, Port("slice", i))
        found.append(whole or NamedSharding(meshes[stage], PartitionSpec()))
    return found


def result_shardings(plan: StagedLike, meshes: Sequence[Any], arguments: Sequence[Any]) -> list[NamedSharding]:
    """Of each result of the step: where the argument that it succeeds is, else where it is made."""
    program = plan.require_program().program
    found: list[NamedSharding] = []
    for o, t in enumerate(program.outputs):
        successor = program.aliases.get(o)
        if successor is None and t in program.given:
            successor = program.inputs.index(t)
        found.append(arguments[successor] if successor is not None else _where_made(plan, meshes, o))
    return found


def _where_made(plan: StagedLike, meshes: Sequence[Any], o: int) -> NamedSharding:
    port = Port("result", o)
    for stage, part in enumerate(plan.parts):
        if port in part.outputs:
            of = plan.stages[stage].plan
            return placed(meshes[stage], of.output_shardings[part.outputs.index(port)], of)
    last = len(meshes) - 1
    return NamedSharding(meshes[last], PartitionSpec())
