"""Ragged dots of GPU programs: a copy of the rows for each group, in closed form and compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxplan
from tests.cost.one_device import peak, shape
from tests.versions import H100_DOT_SCRATCH

ROWS, WIDTH, GROUPS, HIDDEN = 4096, 512, 8, 1024
ARGS = shape(ROWS, WIDTH), shape(GROUPS, WIDTH, HIDDEN), shape(GROUPS, dtype=jnp.int32)


def test_rows_are_copied_for_each_group() -> None:
    """Beside the result, and the scratch of the dot."""
    expected = 4 * ROWS * HIDDEN + 4 * GROUPS * ROWS * WIDTH + H100_DOT_SCRATCH
    assert peak(lax.ragged_dot, *ARGS, topology="h100:1") == expected


def test_rows_that_dots_alone_read_are_no_buffer() -> None:
    """A rectifier before the dot is computed where the copies are written."""

    def step(x: jax.Array, w: jax.Array, counts: jax.Array) -> jax.Array:
        return lax.ragged_dot(jax.nn.relu(x), w, counts)

    assert peak(step, *ARGS, topology="h100:1") == peak(lax.ragged_dot, *ARGS, topology="h100:1")


def test_a_weight_gradient_copies_both_operands() -> None:
    def step(x: jax.Array, counts: jax.Array, g: jax.Array) -> Any:
        return jax.vjp(lambda w: lax.ragged_dot(x, w, counts), jnp.zeros((GROUPS, WIDTH, HIDDEN)))[1](g)

    args = ARGS[0], ARGS[2], shape(ROWS, HIDDEN)
    expected = 4 * GROUPS * (WIDTH * HIDDEN + ROWS * WIDTH + ROWS * HIDDEN) + H100_DOT_SCRATCH
    assert peak(step, *args, topology="h100:1") == expected


def test_other_machines_multiply_groups_alone() -> None:
    assert peak(lax.ragged_dot, *ARGS, topology="v5e:1x1") < 4 * GROUPS * ROWS * WIDTH


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize("rectified", [False, True])
def test_compiled_copies(rectified: bool) -> None:
    def step(x: jax.Array, w: jax.Array, counts: jax.Array) -> jax.Array:
        return lax.ragged_dot(jax.nn.relu(x) if rectified else x, w, counts)

    audit = jaxplan.plan(step, *ARGS, topology="h100:1", progress=False).fastest().audit()
    assert audit.predicted_memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=0.01)
