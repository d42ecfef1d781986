"""The latency-hiding scheduler, simulated: collectives one at a time, each beside compute that takes as long."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from benchmarks.accuracy._latency_hiding import Node, latency_hiding_order, order_before
from benchmarks.accuracy.schedules import simulated
from jaxplan.audit._hlo_text import parse_module
from tests.versions import missed_from_0_12

_STEP = """HloModule step, is_scheduled=true

ENTRY %step (x: f32[1024], w: f32[1024]) -> (f32[8192], f32[1024]) {
  %x = f32[1024]{0} parameter(0)
  %w = f32[1024]{0} parameter(1)
  %start = (f32[1024]{0}, f32[8192]{0}) all-gather-start(%x), dimensions={0}
  %done = f32[8192]{0} all-gather-done(%start)
  %other = f32[1024]{0} fusion(%w), kind=kLoop, calls=%f
  ROOT %both = (f32[8192]{0}, f32[1024]{0}) tuple(%done, %other)
}
"""




def test_collectives_run_one_at_a_time() -> None:
    """Two gathers are ready at once, and two dots are there to hide them."""
    nodes = [
        Node(kind="view"),
        Node(operands=(0,), kind="start", latency=10),
        Node(operands=(1,), kind="done"),
        Node(operands=(0,), kind="start", latency=10),
        Node(operands=(3,), kind="done"),
        Node(cost=10),
        Node(cost=10),
        Node(operands=(2, 4, 5, 6)),
    ]
    order = latency_hiding_order(nodes)
    in_flight = 0
    for x in order:
        in_flight += (nodes[x].kind == "start") - (nodes[x].kind == "done")
        assert in_flight <= 1


def test_a_gradient_that_is_reduced_waits_for_compute_to_hide_it() -> None:
    """Chain: cotangent -> input gradient -> result. The weight gradient of the cotangent is reduced beside it."""
    cotangent, weight, start, done, chain, result = range(6)
    nodes = [
        Node(cost=5),
        Node(operands=(cotangent,), cost=5),
        Node(operands=(weight,), kind="start", latency=50),
        Node(operands=(start,), kind="done"),
        Node(operands=(cotangent,), cost=50),
        Node(operands=(done, chain)),
    ]
    assert latency_hiding_order(nodes) == [cotangent, weight, start, chain, done, result]


def test_every_instruction_runs_once_and_behind_its_operands() -> None:
    nodes = [Node(kind="view"), *(Node(operands=(max(0, i - 2), i), cost=1 + i % 3) for i in range(20))]
    for order in (order_before(nodes), latency_hiding_order(nodes)):
        place = {x: i for i, x in enumerate(order)}
        assert sorted(order) == list(range(len(nodes)))
        assert all(place[y] < place[x] for x, node in enumerate(nodes) for y in node.operands)


def test_a_kernel_goes_between_the_ends_of_a_collective() -> None:
    """As written, nothing runs beside the gather: one of the three pairs is in the other order."""
    assert simulated(parse_module(_STEP))[0] == pytest.approx(1 / 3)


@pytest.mark.gpu_aot
@missed_from_0_12("0.12 of the pairs are in the other order, at most 0.1 are allowed")
def test_compiled_programs_for_hopper_have_the_simulated_order() -> None:
    def step(params: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        def loss(params: list[jax.Array]) -> jax.Array:
            h = x
            for w in params:
                h = jnp.tanh(h @ w)
            return jnp.sum(h * h)

        return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))

    shapes = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 4
    frontier = jaxplan.plan(
        step, shapes, jax.ShapeDtypeStruct((16384, 1024), jnp.float32), topology="h100:8", progress=False
    )
    compiled = frontier.references["fsdp"].compile_report()
    pairs, peak = simulated(parse_module(compiled.hlo_text))
    assert pairs < 0.1
    assert peak == pytest.approx(1, abs=0.05)
