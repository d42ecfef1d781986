"""The effect of loops and branches on values, groups and live equations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxplan
from jaxplan.ir import StepGraph, analyse, trace


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, np.float32)


def graph_of(step: Any, *args: Any) -> StepGraph:
    return analyse(trace(step, args))


def kinds(graph: StepGraph, name: str, role: str | None = None) -> list[str]:
    """Kinds of the groups of the equations of one primitive."""
    return [
        graph.grouping.groups[graph.grouping.equation_group[e.index]].kind
        for e in graph.program.equations
        if e.name == name and (role is None or e.params["role"] == role)
    ]


def recurrence(w: jax.Array, x: jax.Array) -> jax.Array:
    def cell(h: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(row + h @ w), None

    return jnp.sum(jax.lax.scan(cell, jnp.ones((8, 16)), x)[0])


def test_a_gradient_that_accumulates_over_the_trips_may_be_a_partial_sum() -> None:
    graph = graph_of(jax.grad(recurrence), shape(16, 16), shape(5, 8, 16))
    accumulating = [g for g in graph.grouping.groups if g.kind == "sum"]
    assert len(accumulating) == 1
    (index,) = (g.index for g in accumulating)
    names = [graph.program.equations[e].name for e in accumulating[0].equations]
    assert names == ["region_in", "add_any", "region_out"]
    assert graph.spaces[index].operand_partial


def decay(rate: jax.Array, x: jax.Array) -> jax.Array:
    """A recurrence in which every example forgets at the rates of the channels."""

    def cell(h: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(rate[None] * h + row), None

    return jnp.sum(jax.lax.scan(cell, jnp.ones((8, 16)), x)[0] ** 2)


def test_a_sum_over_examples_accumulates_over_the_trips_as_a_partial_sum_too() -> None:
    """JAX sums over the examples, then over the dimension of size 1 that ``rate[None]`` has."""
    graph = graph_of(jax.grad(decay), shape(16), shape(5, 8, 16))
    (accumulating,) = [g for g in graph.grouping.groups if g.kind == "sum"]
    names = [graph.program.equations[e].name for e in accumulating.equations]
    assert names == ["region_in", "reshape", "reduce_sum", "add_any", "region_out"]
    (summand,) = graph.program.equations[accumulating.equations[1]].operands
    assert graph.spaces[graph.grouping.tensor_group[summand]].tensor_partial[summand]


@pytest.mark.parametrize("backend", ["jit", "shard_map"])
def test_examples_are_summed_over_devices_once_and_not_in_every_trip(backend: str) -> None:
    args = (jnp.linspace(0.1, 1.0, 16), jax.random.normal(jax.random.key(0), (5, 8, 16)))
    pins = {"x": P(None, "data")}
    plan = jaxplan.plan(jax.grad(decay), *args, topology="cpu:8", pins=pins, axes={"data": 8}).fastest()
    sums = [c for c in plan.prediction.collectives if c.kind == "all-reduce"]
    assert sums and all(c.count == 1 for c in sums)
    found = plan.jit(backend=backend, donate_argnums=())(*plan.shard(args))
    np.testing.assert_allclose(found, jax.grad(decay)(*args), rtol=1e-5)


def test_a_carry_that_starts_elsewhere_than_at_zero_is_no_partial_sum() -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def add(total: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            return total + row.T @ row, None

        return jax.lax.scan(add, w, x)[0]

    graph = graph_of(step, shape(16, 16), shape(5, 8, 16))
    assert not any(g.kind == "sum" for g in graph.grouping.groups)


def test_slices_of_a_loops_stack_are_the_stacked_values() -> None:
    def step(x: jax.Array) -> jax.Array:
        _, stacked = jax.lax.scan(lambda c, row: (c, jnp.sin(row)), 0.0, x)
        return jax.lax.scan(lambda c, row: (c + row, None), jnp.zeros(8), stacked, reverse=True)[0]

    graph = graph_of(step, shape(5, 8))
    program, number = graph.program, graph.values.number
    (sine,) = [e.results[0] for e in program.equations if e.name == "sin"]
    slices = [e.results[0] for e in program.equations if e.name == "region_in" and e.params["role"] == "x"]
    assert [number[t] == number[sine] for t in slices] == [False, True]


def test_a_carry_is_a_new_value_in_every_loop() -> None:
    def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = jax.lax.fori_loop(0, 3, lambda i, h: jnp.sin(h), x)
        return first, jax.lax.fori_loop(0, 3, lambda i, h: jnp.cos(h), x)

    graph = graph_of(step, shape(8))
    carries = [
        e.results[0]
        for e in graph.program.equations
        if e.name == "region_in" and graph.program.tensors[e.results[0]].shape
    ]
    assert len(carries) == 2
    assert len({graph.values.number[t] for t in (*carries, graph.program.inputs[0])}) == 3


def test_state_that_a_branch_updates_stays_where_it_is_stored() -> None:
    def step(state: tuple[jax.Array, jax.Array], every: jax.Array) -> Any:
        weights, slots = state

        def update(pair: Any) -> Any:
            return pair[0] - 0.1 * pair[1], jnp.zeros_like(pair[1])

        return jax.lax.cond(every > 0, update, lambda pair: pair, (weights, slots))

    graph = analyse(
        trace(
            step,
            ((shape(16, 16), shape(16, 16)), jax.ShapeDtypeStruct((), np.int32)),
            donate_argnums=(0,),
        )
    )
    assert set(kinds(graph, "region_out", "branch")) == {"state"}
    assert set(kinds(graph, "region_in", "operand")) == {"state"}


def test_an_inner_loop_runs_as_often_as_both_say() -> None:
    def step(x: jax.Array) -> jax.Array:
        def outer(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.scan(lambda g, _: (jnp.sin(g), None), h, None, length=4)[0], None

        return jax.lax.scan(outer, x, None, length=3)[0]

    program = graph_of(step, shape(8)).program
    (sine,) = [e.results[0] for e in program.equations if e.name == "sin"]
    assert program.tensors[sine].trips == 12
    assert [region.parent for region in program.regions] == [-1, 0]


@pytest.mark.parametrize(
    ("start", "goes_on", "step", "kind", "trips"),
    [
        (0, lambda i: i < 10, 1, "scan", 10),
        (3, lambda i: i <= 10, 2, "scan", 4),
        (10, lambda i: i > 0, -3, "scan", 4),
        (10, lambda i: i >= 1, -3, "scan", 4),
        (5, lambda i: i < 5, 1, "while", 1),  # never: priced as one
        (0, lambda i: i > -1, 1, "while", 1),  # never ends
        (0, lambda i: (i < 10) & (i < 5), 1, "while", 1),  # not a plain counter
    ],
)
def test_a_while_that_counts_is_a_scan(start: int, goes_on: Any, step: int, kind: str, trips: int) -> None:
    def loop(w: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(
            lambda state: goes_on(state[0]),
            lambda state: (state[0] + step, jnp.tanh(state[1] @ w)),
            (start, x),
        )[1]

    (region,) = graph_of(loop, shape(16, 16), shape(8, 16)).program.regions
    assert (region.kind, region.trips) == (kind, trips)


def test_a_while_until_something_is_computed_counts_once() -> None:
    def loop(x: jax.Array, n: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, n, lambda _, x: jnp.sin(x), x)

    (region,) = graph_of(loop, shape(8), jax.ShapeDtypeStruct((), np.int32)).program.regions
    assert (region.kind, region.trips) == ("while", 1)


def test_a_weight_sliced_by_two_loops_is_one_value_that_each_has_for_itself() -> None:
    """Forward and backward loop read the same slices, laid out alike; a value gathered in one is not live in the other
    (found in a flow of FlowJAX, compiled with twice as many gathers as predicted)."""

    def stack(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(h @ w), None

        return jnp.sum(jax.lax.scan(layer, x, weights)[0])

    graph = graph_of(jax.grad(stack), shape(5, 16, 16), shape(8, 16))
    weights = graph.program.inputs[0]
    slices = [
        e.results[0]
        for e in graph.program.equations
        if e.name == "region_in" and e.params["role"] == "x" and e.operands[0] == weights
    ]
    assert len(slices) == 2
    assert len({graph.values.number[t] for t in slices}) == 1
    assert len({graph.values.merged[t] for t in slices}) == 2
