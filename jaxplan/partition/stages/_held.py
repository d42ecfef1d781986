"""Bytes that a device of a stage keeps of each micro-batch, and receives of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from jaxplan.ir.stages import BACKWARD, FORWARD, Part, Port, segments_of
from jaxplan.mesh import Sharding
from jaxplan.partition._lowered_program import LoweredProgram
from jaxplan.partition.stages._segment import Item, Tables
from jaxplan.xla import Target


class Held(NamedTuple):
    """Bytes of one micro-batch on a device.

    Attributes:
      kept: from the forward to the backward pass.
      received: of values that other stages send, and of slices of the batch.
    """

    kept: int
    received: int


def held_bytes(plan: Any, part: Part) -> Held:
    """Of the plan of a stage's part."""
    target = Target.of(plan.topology.chip, plan.topology.num_devices)
    lowered = LoweredProgram(plan.require_program(), plan.lowering, target, plan.output_shardings)
    tables = Tables(lowered, segments_of(lowered.program))
    inputs = dict(zip(lowered.program.inputs, part.inputs, strict=True))

    def num_bytes(item: Item) -> int:
        sharding = lowered.home(item.tensor) if item.copy is None else item.copy[1]
        return local_bytes(lowered.program.tensors[item.tensor], sharding, plan.topology.axes)

    kept = sum(map(num_bytes, tables.makes(FORWARD)))
    received = 0
    for t, port in inputs.items():
        if port.kind in ("slice", "value"):
            received += num_bytes(Item(t))
            read_in = [s for s in (FORWARD, BACKWARD) if any(item.tensor == t for item in tables.reads[s])]
            kept += num_bytes(Item(t)) if len(read_in) == 2 else 0
    return Held(kept=kept, received=received)


def port_bytes(plan: Any, part: Part, port: Port) -> int:
    """Bytes on one device of an input of a stage's program."""
    k = part.inputs.index(port)
    tensor = part.program.tensors[part.program.inputs[k]]
    return local_bytes(tensor, plan.input_shardings[k], plan.topology.axes)


def local_bytes(tensor: Any, sharding: Sharding, axes: Any) -> int:
    """Bytes of a tensor's piece on one device; of a partial one, of a whole summand."""
    shape = Sharding(sharding.dims).local_shape(tensor.shape, axes) if tensor.shape else ()
    return math.prod(shape) * tensor.itemsize
