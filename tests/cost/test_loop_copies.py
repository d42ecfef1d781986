"""Copies of parameters inside of loops: when they begin to live, of a scanned stack in closed form."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import jaxplan
from jaxplan.cost import KEEP, REPEAT, Predictor, build_cost_model

DEPTH, WIDTH, ROWS = 4, 256, 64


def _step(params: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        def layer(h: jax.Array, w: Any) -> tuple[jax.Array, None]:
            return jnp.tanh(jnp.tanh(h @ w[0]) @ w[1]), None

        return jnp.sum(jax.lax.scan(layer, x, params)[0])

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def test_parameters_of_a_trip_are_gathered_when_it_begins() -> None:
    """Both matrices of a layer are whole from the first equation of a trip on, though the second is read later."""
    stack = jax.ShapeDtypeStruct((DEPTH, WIDTH, WIDTH), jnp.float32)
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    frontier = jaxplan.plan(_step, (stack, stack), x, topology="h100:8", progress=False)
    plan = frontier.references["fsdp"]
    graph = plan.require_program()
    model = build_cost_model(graph, plan.topology, configurations=[(c,) for c in plan.configurations])
    wanted, zeros = frozenset(plan.repeated), [0] * len(plan.configurations)
    choices = [REPEAT if wanted.intersection(reads) else KEEP for reads in model.edge_reads]
    predictor = Predictor(model)
    transfers = predictor.transfers(zeros, choices)
    live = predictor.lifetimes(zeros, model.chosen(zeros), transfers)
    equations = graph.program.equations
    gathers = [
        (transfer, int(live.first[live.copies[number, 0]]) // 2)
        for number, transfer in enumerate(transfers)
        if transfer.path.steps[0].kind == "all-gather" and equations[transfer.spans[0].first].region >= 0
    ]
    assert gathers
    for transfer, first in gathers:
        region = equations[transfer.spans[0].first].region
        entries = [e.index for e in equations if e.name == "region_in" and e.params["region"] == region]
        assert first <= max(entries)
        assert live.sizes[live.copies[transfers.index(transfer), 0]] == 4 * WIDTH * WIDTH
