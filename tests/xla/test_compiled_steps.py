"""Rules that no plan on record depends on: compiled bytes of small steps, predicted with the rule alone."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxplan
from jaxplan.audit import compile_plan
from jaxplan.cost import ModelBuilder, Predictor
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.xla import Target
from tests.cost.one_device import shape
from tests.versions import IS_0_12

SIZE, TRIPS = 4096, 8


def _update(left: jax.Array, rows: jax.Array, places: jax.Array) -> jax.Array:
    return jnp.max((left @ left).at[places].add(rows))


def _trips(w: jax.Array, xs: jax.Array) -> jax.Array:
    def body(total: jax.Array, x: jax.Array) -> Any:
        return total + x.T @ jnp.sin(x @ w), None

    return lax.scan(body, jnp.zeros_like(w), xs.reshape(TRIPS, SIZE, SIZE))[0]


STEPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "scatters-write-over-their-operand": (
        _update,
        (shape(SIZE, SIZE), shape(SIZE, SIZE), shape(SIZE, dtype=jnp.int32)),
    ),
    "arguments-in-loops-are-no-copies": (_trips, (shape(SIZE, SIZE), shape(TRIPS * SIZE, SIZE))),
    "reshaped-arguments-are-no-copies": (_trips, (shape(SIZE, SIZE), shape(TRIPS * SIZE, SIZE))),
}

_MARKS = {
    _trips: pytest.mark.xfail(
        condition=IS_0_12,
        strict=True,
        reason="from JAX 0.12 on the compiled loop takes 64 MiB (8 %) less than is predicted; the cause is not known",
    )
}
"""A known miss: strict, so that the marker goes when the prediction is right."""


def _predicted(step: Callable[..., Any], args: tuple[Any, ...], without: Collection[str] = ()) -> int:
    graph, topology = analyse_step(step, args, {}, donate_argnums=(), static_argnums=()), Topology.parse("h100:1")
    builder = ModelBuilder(graph, topology, target=Target.of(topology.chip, 1, without))
    model = builder.build(builder.configurations())
    prediction, _ = Predictor(model).predict([0] * len(model.configurations), [0] * len(model.problem.edges))
    return prediction.memory_bytes


@pytest.mark.gpu_aot
@pytest.mark.parametrize("rule", [pytest.param(rule, marks=_MARKS.get(STEPS[rule][0], ())) for rule in STEPS])
def test_compiled_bytes_are_those_with_the_rule(rule: str) -> None:
    step, args = STEPS[rule]
    plan = jaxplan.plan(step, *args, topology="h100:1", donate_argnums=(), progress=False).fastest()
    compiled = compile_plan(plan).memory_bytes
    assert _predicted(step, args) == pytest.approx(compiled, rel=0.01)
    assert _predicted(step, args, [rule]) > 1.05 * compiled
