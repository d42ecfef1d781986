"""A GPU dot reads the transpose of a matrix from the matrix itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.cost.one_device import peak, shape

SIZE = 8192
MATRIX = 4 * SIZE * SIZE


def matrices(step: Any, num_arguments: int, topology: str = "h100:1") -> int:
    """How many matrices are live at the peak; the scratch of a dot is an eighth of one."""
    return round(peak(step, *[shape(SIZE, SIZE)] * num_arguments, topology=topology) / MATRIX)


@pytest.mark.parametrize(("topology", "count"), [("h100:1", 1), ("cpu:1", 2)])
def test_a_transposed_parameter_is_no_buffer(topology: str, count: int) -> None:
    """``w.T @ x`` holds its result; the CPU backend was not judged, and keeps the copy."""
    assert matrices(lambda w, x: w.T @ x, 2, topology) == count


def test_a_transpose_that_another_kernel_reads_is_a_buffer() -> None:
    assert matrices(lambda w, x: (w.T @ x, jnp.sort(w.T, axis=0)), 2) == 3


def test_a_transposed_batch_is_a_buffer() -> None:
    """A library multiplies batches that are outermost: one from an inner dimension is moved first."""
    side, batch = 2048, 16  # as many elements as the matrices of the other tests

    def moved(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.transpose(w, (1, 0, 2)) @ x

    def turned(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.transpose(w, (0, 2, 1)) @ x

    of_batch = shape(batch, side, side)
    assert round(peak(moved, shape(side, batch, side), of_batch, topology="h100:1") / MATRIX) == 2
    assert round(peak(turned, of_batch, of_batch, topology="h100:1") / MATRIX) == 1
