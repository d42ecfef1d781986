"""Values that never become buffers: look-ups and updates of message passing, dots that sum nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.ir import analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Target, analyse_buffers
from jaxplan.xla._plan_effects import ClearTogether
from tests.cost.one_device import peak, shape

NODES, EDGES, WIDTH = 64, 4096, 32
FLOAT = 4
TABLE = FLOAT * NODES * WIDTH


def messages(nodes: jax.Array, weights: jax.Array, ends: jax.Array) -> jax.Array:
    sent = nodes[ends[0]] * weights[:, None]
    return jnp.zeros_like(nodes).at[ends[1]].add(sent)


GRAPH = (shape(NODES, WIDTH), shape(EDGES), shape(2, EDGES, dtype=jnp.int32))


def test_messages_are_no_buffers_on_a_gpu() -> None:
    """A row looked up at one end of an edge goes to the other inside one kernel."""
    assert peak(messages, *GRAPH, topology="h100:1") == TABLE


def test_look_ups_have_a_kernel_elsewhere() -> None:
    """Rows that are looked up and their sum are live at once on other chips."""
    assert peak(messages, *GRAPH, topology="cpu:1") >= 2 * FLOAT * EDGES * WIDTH


def test_the_backward_pass_looks_up_again() -> None:
    """Both gradients: messages are not kept, and their cotangents are not written."""

    def loss(nodes: jax.Array, weights: jax.Array, ends: jax.Array) -> jax.Array:
        return jnp.sum(messages(nodes, weights, ends) ** 2)

    bytes_above = peak(jax.grad(loss, argnums=(0, 1)), *GRAPH, topology="h100:1")
    assert bytes_above < FLOAT * EDGES * WIDTH


def test_a_dot_that_sums_nothing_is_fused() -> None:
    """The outer products of all samples, of which only the largest number is wanted."""
    count, width = 256, 64

    def largest(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.max(jnp.einsum("bi,bj->bij", x, y), axis=(1, 2))

    assert peak(largest, shape(count, width), shape(count, width), topology="cpu:1") == FLOAT * count


def test_what_scatters_start_from_is_cleared_where_the_first_begins() -> None:
    """Two sums of edges into nodes: the second's zeros are there while the first is made, if they are of one shape."""

    def two_sums(first: jax.Array, second: jax.Array, ends: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = jnp.max(jnp.zeros((NODES, WIDTH)).at[ends[0]].add(first))
        return total, jnp.max(jnp.zeros((NODES, second.shape[1])).at[ends[1]].add(second * total))

    ends = shape(2, EDGES, dtype=jnp.int32)
    scalars = 2 * FLOAT
    alike = peak(two_sums, shape(EDGES, WIDTH), shape(EDGES, WIDTH), ends, topology="h100:1")
    other = peak(two_sums, shape(EDGES, WIDTH), shape(EDGES, WIDTH + 8), ends, topology="h100:1")
    assert 2 * TABLE <= alike <= 2 * TABLE + scalars
    assert other <= TABLE * (WIDTH + 8) // WIDTH + scalars


def test_what_carries_start_from_is_made_before_the_first_loop() -> None:
    """Two loops that add up tables, the second behind the first: both tables are live at once, if of one shape."""

    def added_up(table: jax.Array, rows: jax.Array) -> jax.Array:
        return jnp.max(jax.lax.scan(lambda total, row: (total + row, None), table, rows)[0])

    def two_loops(rows: jax.Array, others: jax.Array) -> jax.Array:
        total = added_up(jnp.zeros((NODES, WIDTH)), rows)
        return total + added_up(jnp.zeros((NODES, others.shape[1])), others * total)

    alike = peak(two_loops, shape(4, WIDTH), shape(4, WIDTH), topology="h100:1")
    other = peak(two_loops, shape(4, WIDTH), shape(4, WIDTH + 8), topology="h100:1")
    rows = 4 * FLOAT * 4 * (WIDTH + 8)
    assert 2 * TABLE <= alike <= 2 * TABLE + rows
    assert other <= TABLE * (WIDTH + 8) // WIDTH + rows


@pytest.mark.parametrize(("between", "together"), [(False, [2]), (True, [])])
def test_carries_behind_a_weight_gradient_wait_for_it(between: bool, together: list[int]) -> None:
    """Two loops, each of which sums the gradient of its weight; a dense layer between them has a gradient as well."""

    def recurrent(h: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h, None, length=3)[0]

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            first, dense, last = params
            h = recurrent(x, first)
            return jnp.sum(recurrent(jnp.sin(h @ dense) if between else h, last) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    graph = analyse(trace(step, ((shape(WIDTH, WIDTH),) * 3, shape(NODES, WIDTH)), {}))
    buffers = analyse_buffers(graph, Target.of(Topology.parse("h100:1").chip))
    assert [len(effect.tensors) for effect in buffers.found.of(ClearTogether)] == together


@pytest.mark.gpu_aot
def test_compiled_message_passing_needs_what_is_predicted() -> None:
    """Two rounds with 16 edges a node: one buffer of all edges would be four times the memory of the program."""
    nodes, edges, width = 8192, 131072, 256

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            hidden = batch["nodes"]
            for layer in params:
                hidden = jax.nn.relu(messages(hidden @ layer, batch["weights"], batch["ends"]))
            return jnp.mean(hidden**2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    batch = {
        "nodes": shape(nodes, width),
        "weights": shape(edges),
        "ends": shape(2, edges, dtype=jnp.int32),
        "nobody_reads_it": shape(edges, 64),
    }
    plan = jaxplan.plan(step, [shape(width, width)] * 2, batch, topology="h100:8", progress=False).fastest()
    audit = plan.audit()
    assert audit.memory_ok, audit.table()
    assert plan.memory_bytes < 1.25 * audit.compiled_memory_bytes, audit.table()
