"""Sums of dots have one buffer where a library adds up while it multiplies, and one a dot elsewhere."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxplan.ir import analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Target
from jaxplan.xla._facts import Facts
from jaxplan.xla.rules.gpu.library_sums import library_sums
from tests.cost.one_device import peak, shape

SIZE = 8192
MATRIX = 4 * SIZE * SIZE


def matrices(step: Any, machine: str, num_arguments: int) -> int:
    """How many matrices are alive at the peak; the scratch of a dot is an eighth of one."""
    return round(peak(step, *[shape(SIZE, SIZE)] * num_arguments, topology=machine) / MATRIX)


@pytest.mark.parametrize(("machine", "count"), [("h100:1", 1), ("cpu:1", 4)])
def test_dots_are_added_up_in_one_buffer(machine: str, count: int) -> None:
    def step(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> jax.Array:
        return a @ b + c @ d + a @ d

    assert matrices(step, machine, 4) == count


@pytest.mark.parametrize(("reads_later", "count"), [(False, 2), (True, 3)])
def test_what_is_read_later_is_not_written_over(reads_later: bool, count: int) -> None:
    """A residual stream: the sum of a value and a dot, where the value is wanted again, or not."""

    def step(a: jax.Array, b: jax.Array) -> Any:
        stream = a @ b
        total = stream + a @ (b * 2)
        return (total, jnp.max(stream @ b)) if reads_later else total

    # The stream and b * 2, then the sum over the stream; or the stream, the sum, and the dot for the maximum.
    assert matrices(step, "h100:1", 2) == count


def test_a_dot_with_other_readers_keeps_its_own() -> None:
    def step(a: jax.Array, b: jax.Array) -> Any:
        dot = a @ b
        return dot + b @ a, jnp.max(dot)

    assert matrices(step, "h100:1", 2) == 2  # that which nothing else reads has none


@pytest.mark.parametrize(("pixels", "stride", "is_added_up"), [(1, 1, True), (3, 1, False), (1, 2, False)])
def test_input_gradients_of_one_pixel_are_added_up(pixels: int, stride: int, is_added_up: bool) -> None:
    """Two branches that read one image: to the library, the gradient of a kernel of one pixel is a convolution that
    it adds to something; of others it is a call of another kind, which adds nothing."""

    def loss(image: jax.Array, *kernels: jax.Array) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        read = [
            jax.lax.conv_general_dilated(image, k, (stride, stride), "SAME", dimension_numbers=layout) for k in kernels
        ]
        return sum(jnp.sum(branch**3) for branch in read)

    kernel = shape(pixels, pixels, 8, 16)
    graph = analyse(trace(jax.grad(loss), [shape(4, 32, 32, 8), kernel, kernel], {}))
    target = Target.of(Topology.parse("h100:1").chip)
    found = list(library_sums(Facts(graph=graph, target=target, turning=0)))
    assert len(found) == is_added_up
    assert all(graph.program.equations[a.equation].phase == "backward" and not a.in_place for a in found)


@pytest.mark.parametrize("with_momentum", [False, True])
def test_the_update_of_sgd_is_made_by_the_dot_of_the_gradient(with_momentum: bool) -> None:
    """w + (-lr) x^T dy, and m' = 0.9 m + x^T dy, are one library call each: no gradient exists."""

    def step(w: jax.Array, m: jax.Array, x: jax.Array) -> Any:
        gradient = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
        if with_momentum:
            m = gradient + 0.9 * m
            return w + -0.1 * m, m
        return w + -0.1 * gradient, m

    # Two donated matrices are written over; the activation of 1/64 of a matrix and the scratch of 1/8 remain.
    arguments = shape(SIZE, SIZE), shape(SIZE, SIZE), shape(SIZE // 64, SIZE)
    assert peak(step, *arguments, topology="h100:1", donate_argnums=(0, 1)) < MATRIX / 4


def test_a_gradient_that_is_read_twice_is_a_buffer() -> None:
    """Adam reads it for both of its averages."""

    def step(w: jax.Array, v: jax.Array, x: jax.Array) -> Any:
        gradient = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
        return w + -0.1 * gradient, v + gradient**2

    arguments = shape(SIZE, SIZE), shape(SIZE, SIZE), shape(SIZE // 64, SIZE)
    assert MATRIX < peak(step, *arguments, topology="h100:1", donate_argnums=(0, 1)) < 1.25 * MATRIX


@pytest.mark.parametrize("is_written_out", [False, True])
def test_a_bias_is_no_summand_however_it_is_broadcast(is_written_out: bool) -> None:
    """XLA sees one program in both cases: the sum of a dot and a broadcast vector."""

    def step(a: jax.Array, b: jax.Array, bias: jax.Array) -> jax.Array:
        return a @ b + (jnp.broadcast_to(bias, a.shape) if is_written_out else bias)

    graph = analyse(trace(step, (shape(64, 64), shape(64, 64), shape(64)), {}))
    target = Target.of(Topology.parse("h100:1").chip, 1)
    assert not list(library_sums(Facts(graph=graph, target=target, turning=0)))
