"""Masks in loops: computed in the body, not held as an array of the shape of the scores beside it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from tests.partition.scanned_steps import recomputed_layers
from tests.sampling import sampled

LAYERS, BATCH, HEADS, LENGTH, WIDTH = 4, 16, 2, 24, 8


def attention(x: Any, w: Any, allowed: Any) -> Any:
    q, k, v = (x @ w[i] for i in range(3))
    q, k, v = (y.reshape(*y.shape[:2], HEADS, -1) for y in (q, k, v))
    scores = jnp.where(allowed, jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
    return x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(x.shape)


def causal(x: Any, w: Any) -> Any:
    return attention(x, w, jnp.tril(jnp.ones((x.shape[1],) * 2, bool)))


def rotated(x: Any, w: Any) -> Any:
    """Angles are computed once, outside, and spread over the batch in the body."""
    angles = jnp.arange(x.shape[1])[:, None] / 10.0 ** jnp.arange(x.shape[2] // 2)
    left, right = jnp.split(x, 2, -1)
    turned = jnp.concatenate([left * jnp.cos(angles) - right * jnp.sin(angles), left], -1)
    return causal(turned.astype(x.dtype), w)


def counted(p: Any, x: Any, num: Any) -> tuple[Any, Any]:
    """A loop that ends by a condition, and a mask that depends on a scalar argument."""
    allowed = jnp.arange(x.shape[1]) < num

    def body(state: Any) -> Any:
        i, h = state
        return i + 1, attention(h, p[0], jnp.broadcast_to(allowed, (x.shape[0], HEADS, *[x.shape[1]] * 2)))

    _, h = jax.lax.while_loop(lambda state: (state[0] < 3) & jnp.any(allowed), body, (0, x))
    return p, jnp.mean(h**2)


def arguments(dtype: Any = jnp.float32) -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0))
    p = jax.random.normal(keys[0], (LAYERS, 3, WIDTH, WIDTH), dtype) / 3
    return p, jax.random.normal(keys[1], (BATCH, LENGTH, WIDTH), dtype)


@pytest.mark.parametrize("backend", ["jit", "shard_map"])
@pytest.mark.parametrize("block", sampled([causal, rotated]))
def test_layers_with_masks_equal_one_device(block: Any, backend: Any) -> None:
    with jax.enable_x64(True):
        step, args = recomputed_layers(block), arguments(jnp.float64)
        frontier = jaxplan.plan(step, *args, topology="cpu:8", donate_argnums=(), progress=False)
        for plan in (frontier.fastest(), frontier.references["fsdp"]):
            found, expected = plan.jit(backend=backend)(*args), jax.jit(step)(*args)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-12)


def test_a_mask_of_a_scalar_argument_enters_a_loop_and_its_condition() -> None:
    args = (*arguments(), jnp.int32(7))
    plan = jaxplan.plan(counted, *args, topology="cpu:8", donate_argnums=(), progress=False).fastest()
    for one, other in zip(plan.jit()(*args), jax.jit(counted)(*args), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)


def test_no_loop_is_handed_a_mask_of_the_shape_of_the_scores() -> None:
    plan = jaxplan.plan(recomputed_layers(causal), *arguments(), topology="cpu:8", progress=False).references["data"]
    scores = f"tensor<{BATCH}x{HEADS}x{LENGTH}x{LENGTH}xi1>"

    def loops_of(step: Any) -> list[str]:
        return [line for line in step.lower(*arguments()).as_text().splitlines() if "stablehlo.while" in line]

    alone, planned = loops_of(jax.jit(recomputed_layers(causal))), loops_of(plan.jit())
    assert len(planned) == 2 and any(scores in line for line in alone)
    assert not any(scores in line for line in planned)
