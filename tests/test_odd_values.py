"""Values that no option can have: each public function answers with an error of jaxplan, or takes the value."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan import JaxplanError
from jaxplan.mesh import Topology

VALUES: list[Any] = [
    None, True, 0, -1, 1.5, math.nan, "", "x", b"x", [], {}, (1, 2), object(), 10**400, -(2**70), "1e400GiB",
    "9" * 5000 + "GiB", ["40GiB"], np.zeros(3), "\ud800", "\0",
]  # fmt: skip
OPTIONS = (
    "topology", "memory", "solver", "donate_argnums", "static_argnums", "static_argnames", "pins", "remat", "overlap",
)  # fmt: skip
SHAPES: list[Any] = [jax.ShapeDtypeStruct((16, 16), jnp.float32), jax.ShapeDtypeStruct((8, 16), jnp.float32)]


def step(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


@pytest.fixture(scope="module")
def frontier() -> jaxplan.Frontier:
    return jaxplan.plan(step, *SHAPES, topology="cpu:8")


def refused_or_taken(call: Callable[[], Any]) -> None:
    with contextlib.suppress(JaxplanError):
        call()


def label(value: Any) -> str:
    return f"{type(value).__name__}-{str(value)[:8].encode('unicode_escape').decode()}"


@pytest.mark.sample(11)
@pytest.mark.parametrize("value", VALUES, ids=label)
def test_options_of_plan(value: Any) -> None:
    for option in OPTIONS:
        options = {"topology": "cpu:8", "progress": False, option: value}
        refused_or_taken(lambda options=options: jaxplan.plan(step, *SHAPES, **options))
    refused_or_taken(lambda: jaxplan.plan(step, SHAPES[0], value, topology="cpu:8"))
    refused_or_taken(lambda: jaxplan.plan(value, *SHAPES, topology="cpu:8"))
    refused_or_taken(lambda: jaxplan.scaling(step, *SHAPES, topology="cpu:2", device_counts=value))


@pytest.mark.parametrize("value", VALUES, ids=label)
def test_arguments_of_plans_frontiers_and_topologies(value: Any, frontier: jaxplan.Frontier) -> None:
    plan = frontier.fastest()
    calls: list[Callable[[], Any]] = [
        lambda: frontier.within(value),
        lambda: frontier.choose(value),
        lambda: frontier.table(max_rows=value),
        lambda: frontier.table(width=value),
        lambda: frontier.plot(value),
        lambda: plan.jit(devices=value),
        lambda: plan.jit(backend=value),
        lambda: plan.jit(donate_argnums=value),
        lambda: jaxplan.load(value),
        lambda: Topology.parse(value),
        lambda: Topology.load(value),
        lambda: Topology.detect(value),
        lambda: Topology.parse("h100:8").with_profile(value),
        lambda: jaxplan.auto(step, max_plans=value),
    ]
    for call in calls:
        refused_or_taken(call)


@pytest.mark.parametrize("sizes", ["0", "1x0", "99999999", "1024x2048", "9" * 400, "8x8x8x8"])
def test_machines_that_are_too_large_or_empty(sizes: str) -> None:
    for chip in ("h100", "v5e"):
        with pytest.raises(JaxplanError):
            Topology.parse(f"{chip}:{sizes}")
