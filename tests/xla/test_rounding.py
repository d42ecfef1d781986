"""The width in which values travel where dots of float32 are made in bfloat16, as compiled TPU programs showed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxplan.ir import REGION_OUT, StepGraph, analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Target, analyse_buffers


def _carried(cell: str, topology: str = "v5e:2x4") -> set[int]:
    """Bytes of an element of the new carry on the way to the next trip."""

    def step(kernel: jax.Array, xs: jax.Array, h: jax.Array) -> jax.Array:
        def body(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            new = jnp.tanh(h @ kernel + x)
            new = {"mixed": new + 0.5 * h, "rolled": jnp.roll(new, 1, 0)}.get(cell, new)
            return new, jnp.sin(h) if cell == "stacked" else new.sum()

        last, ys = jax.lax.scan(body, h, xs)
        return last if cell == "shown" else ys.sum()

    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (16, 8, 64), (8, 64))]
    graph = analyse(trace(step, arguments, {}))
    exits = [e for e in graph.program.equations if e.name == REGION_OUT and e.params["role"] == "carry"]
    carries = [e for e in exits if graph.program.tensors[e.operands[1]].shape]
    return {_travels(graph, topology, e.operands[1], e.index) for e in carries}


def _travels(graph: StepGraph, topology: str, t: int, reader: int) -> int:
    """Bytes of an element of a tensor that is resharded for one reader."""
    program, buffers = graph.program, analyse_buffers(graph, Target.of(Topology.parse(topology).chip))
    return buffers.dtypes.tensor(program.tensors, t, [reader], len(program.equations)).itemsize


@pytest.mark.parametrize(
    ("cell", "itemsize"), [("plain", 2), ("rolled", 2), ("mixed", 4), ("stacked", 4), ("shown", 4)]
)
def test_a_carry_that_dots_alone_read_in_the_next_trip_is_rounded(cell: str, itemsize: int) -> None:
    assert _carried(cell) == {itemsize}
    assert _carried(cell, "h100:8") == {4}


def test_sums_are_taken_in_float32() -> None:
    """The result of a dot over a dimension that may be split, read by another dot."""

    def step(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return (x @ first) @ second

    arguments = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 3
    graph = analyse(trace(step, arguments, {}))
    (made,) = (e.results[0] for e in graph.program.equations[:1])
    assert _travels(graph, "v5e:2x4", made, 1) == 4
    assert _travels(graph, "v5e:2x4", graph.program.inputs[1], 0) == 2
