"""How long a gradient lives that is scattered: beside the next gradient, unless that is computed of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.quality._forms import Case, floats
from benchmarks.quality.references import draw
from jaxplan.audit import compile_plan

WIDTH, HIDDEN, BATCH = 2048, 8192, 4096


def _network(p: Any, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def in_turn() -> Case:
    """A network is updated by momentum, then another one against it."""

    def update(p: Any, slots: Any, gradient: Any) -> Any:
        slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, gradient)
        return jax.tree.map(lambda p, m: p - 0.1 * m, p, slots), slots

    def step(judge: Any, player: Any, slots: Any, x: jax.Array) -> Any:
        def judged(judge: Any, player: Any) -> jax.Array:
            return jnp.mean(_network(judge, x) ** 2) - jnp.mean(_network(judge, _network(player, x)) ** 2)

        judge, first = update(judge, slots[0], jax.grad(judged)(judge, player))
        player, second = update(player, slots[1], jax.grad(judged, argnums=1)(judge, player))
        return judge, player, (first, second)

    dense = {"up": floats(WIDTH, HIDDEN), "down": floats(HIDDEN, WIDTH)}
    return step, (dense, dense, (dense, dense), floats(BATCH, WIDTH))


@pytest.mark.gpu_aot
def test_gradients_do_not_wait_for_those_that_are_computed_of_them() -> None:
    """They were held until the backward pass of the other network, two of 64 MiB of a step of 400."""
    plan = draw(in_turn(), "h100:8", ("fsdp",))["fsdp"]
    assert plan.memory_bytes == pytest.approx(compile_plan(plan).memory_bytes, rel=0.08)
