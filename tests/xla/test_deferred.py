"""Ends of the live ranges of operands of weight gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.xla import Target, analyse_buffers
from tests.cost.one_device import peak, shape
from tests.versions import H100_DOT_SCRATCH


def _step(weights: Any, x: jax.Array) -> Any:
    def loss(weights: Any) -> jax.Array:
        return jnp.sum((x @ weights[0] @ weights[1] @ weights[2] @ weights[3]) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


@pytest.mark.parametrize(("machine", "is_late"), [("h100:1", True), ("cpu:1", False), ("v5e:1", True)])
def test_a_gradient_waits_for_two_input_gradients(machine: str, is_late: bool) -> None:
    """Of x A B C D: x A B C is read for the gradient of D, which is there after those of x A B C and of x A B."""
    arguments = [shape(32, 32)] * 4, shape(16, 32)
    graph = analyse_step(_step, arguments, {}, donate_argnums=None, static_argnums=())
    dots = [e for e in graph.program.equations if e.name == "dot_general"]
    _, _, third, fourth = [e for e in dots if e.phase == "forward"]
    of_fourth, of_input, of_input_before = [
        next(e for e in dots if e.phase == "backward" and t in e.operands)
        for t in (fourth.operands[0], fourth.operands[1], third.operands[1])
    ]
    assert fourth.operands[0] == third.results[0] and of_fourth.index < of_input.index < of_input_before.index
    chip = Target.of(Topology.parse(machine).chip)
    death = analyse_buffers(graph, chip).death[fourth.operands[0]]
    assert death == (of_input_before if is_late else of_fourth).index
    assert analyse_buffers(graph, chip, in_order=True).death[fourth.operands[0]] == of_fourth.index


def test_so_does_that_of_a_convolution() -> None:
    """The operand of the last of four convolutions is live until the input gradient of the third."""

    def step(kernels: Any, images: jax.Array) -> Any:
        def loss(kernels: Any) -> jax.Array:
            x = images
            for kernel in kernels:
                x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return jnp.sum(x**2)

        return jax.tree.map(lambda k, g: k - 0.1 * g, kernels, jax.grad(loss)(kernels))

    arguments = [shape(3, 3, 8, 8)] * 4, shape(2, 8, 8, 8)
    graph = analyse_step(step, arguments, {}, donate_argnums=None, static_argnums=())
    dots = [e for e in graph.program.equations if e.name == "conv_general_dilated"]
    last = [e for e in dots if e.phase == "forward"][-1]
    backward = [e for e in dots if e.phase == "backward"]
    inputs = [e for e in backward if graph.program.tensors[e.results[0]].shape == (2, 8, 8, 8)]
    assert len(inputs) == 3
    death = analyse_buffers(graph, Target.of(Topology.parse("h100:1").chip)).death[last.operands[0]]
    assert death == inputs[1].index


def test_the_order_of_least_memory_is_taken() -> None:
    """Of four layers: three activations, the gradient of the last one, and the gradient that comes of it.

    The activation of the last layer is gone by then, and the activation behind it once its weight gradient is made.
    """
    width, rows = 64, 4096

    def step(weights: Any, x: jax.Array) -> Any:
        def loss(weights: Any) -> jax.Array:
            for w in weights:
                x_ = jnp.tanh((x if w is weights[0] else x_) @ w)  # noqa: F821
            return jnp.sum(x_)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    matrix = 4 * rows * width
    found = peak(step, [shape(width, width)] * 4, shape(rows, width), topology="h100:1") - H100_DOT_SCRATCH
    assert found // matrix == 5
    assert found % matrix <= 4 * 4 * width * width  # the gradients of the weights
