"""Parameters that are gathered for a layer of a loop: their stacks stay in memory as they are given."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxplan

MIB = 2**20


OPTIMIZER = optax.adam(1e-3)


def _step(params: Any, slots: Any, x: Any) -> Any:
    def layer(h: Any, w: Any) -> Any:
        return h + jnp.tanh(h @ w["up"]) @ w["down"], None

    gradients = jax.grad(lambda params: jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, params)[0] ** 2))(params)
    updates, slots = OPTIMIZER.update(gradients, slots, params)
    return optax.apply_updates(params, updates), slots


@pytest.mark.gpu_aot
def test_no_stack_is_copied_for_gathers_along_its_columns() -> None:
    """A device's part of one stack is 12 MiB; the compiler made a copy of it with the columns in front."""
    shape = jax.ShapeDtypeStruct
    params = {"up": shape((24, 512, 2048), jnp.float32), "down": shape((24, 2048, 512), jnp.float32)}
    slots = jax.eval_shape(OPTIMIZER.init, params)
    frontier = jaxplan.plan(_step, params, slots, shape((32, 256, 512), jnp.float32), topology="h100:8", progress=False)
    plan = frontier.references["fsdp"]
    assert plan.in_specs[0]["up"][2] is not None
    audit = plan.audit()
    assert audit.compiled_memory_bytes < plan.memory_bytes + 10 * MIB, audit.table()
