"""Buffers of gradients of max pooling: by hand, and against a compiled GPU program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

import jaxplan
from jaxplan.audit import compile_plan
from jaxplan.ir import StepGraph, analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Buffers, Target, analyse_buffers
from jaxplan.xla.rules.gpu.pooling import PoolBuffer

IMAGES = (8, 32, 32, 64)
KERNEL = (3, 3, 64, 64)


def _step(
    activation: Callable[[jax.Array], jax.Array], window: int, stride: int, padding: str = "VALID"
) -> Callable[..., Any]:
    """Gradients of convolution, activation, pooling, convolution."""

    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        pooled = nn.max_pool(activation(convolve(x, first)), (window, window), (stride, stride), padding)
        return jnp.sum(convolve(pooled, second).astype(jnp.float32) ** 2)

    return jax.grad(loss, argnums=(1, 2))


def _analysed(step: Callable[..., Any]) -> tuple[StepGraph, Buffers]:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in (IMAGES, KERNEL, KERNEL)]
    graph = analyse(trace(step, shapes, {}))
    return graph, analyse_buffers(graph, Target.of(Topology.parse("h100:1").chip))


def _equation(graph: StepGraph, name: str) -> int:
    return next(e.index for e in graph.program.equations if e.name == name)


@pytest.mark.parametrize(
    ("window", "stride", "padding", "pooled", "unread"),
    [(3, 2, "VALID", 15, 0), (2, 2, "VALID", 16, 0), (3, 1, "SAME", 32, 2)],
)
def test_places_and_values_of_the_maxima(window: int, stride: int, padding: str, pooled: int, unread: int) -> None:
    """Four 32-bit places for each; of the value, in float32, the bytes beyond the 16-bit result, made later."""
    graph, buffers = _analysed(_step(jnp.tanh, window, stride, padding))
    (places,) = buffers.found.of(PoolBuffer)
    elements = IMAGES[0] * pooled * pooled * IMAGES[3]
    assert places.num_bytes == (4 * 4 + unread) * elements
    assert places.first == places.last == _equation(graph, "select_and_scatter_add")


@pytest.mark.parametrize("is_normalised", [True, False])
def test_results_are_there_in_float32_for_whom_casts_them(is_normalised: bool) -> None:
    """A norm computes in float32, of values pooled in float32; a convolution reads 16 bits."""

    def step(x: jax.Array, kernel: jax.Array) -> Any:
        def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
            pooled = nn.max_pool(jnp.tanh(x), (2, 2), (2, 2))
            if is_normalised:
                wide = pooled.astype(jnp.float32)
                pooled = ((wide - wide.mean()) * jax.lax.rsqrt(wide.var() + 1e-3)).astype(pooled.dtype)
            out = jax.lax.conv_general_dilated(
                pooled, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            return jnp.sum(out.astype(jnp.float32) ** 2)

        return jax.grad(loss, argnums=1)(x, kernel)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in (IMAGES, KERNEL)]
    graph = analyse(trace(step, shapes, {}))
    buffers = analyse_buffers(graph, Target.of(Topology.parse("h100:1").chip))
    elements = IMAGES[0] * 16 * 16 * IMAGES[3]
    assert [b.num_bytes for b in buffers.found.of(PoolBuffer)] == [4 * elements] * is_normalised
    assert all(b.first == _equation(graph, "reduce_window_max") < b.last for b in buffers.found.of(PoolBuffer))


def test_windows_side_by_side_compute_what_they_read() -> None:
    for window, is_written in ((2, False), (3, True)):
        graph, buffers = _analysed(_step(jax.nn.relu, window, 2))
        (rectified,) = graph.program.equations[_equation(graph, "max")].results
        assert buffers.materialised[rectified] == is_written


def test_other_chips_hold_none_of_it() -> None:
    graph, _ = _analysed(_step(jax.nn.relu, 3, 2))
    assert analyse_buffers(graph, Target.of(Topology.parse("cpu:1").chip)).found.of(PoolBuffer) == ()


@pytest.mark.gpu_aot
def test_a_compiled_pooling_needs_what_is_predicted() -> None:
    """Without places 40 % less is predicted."""
    step = _step(lambda x: jax.nn.relu(x * x), 3, 2)
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((128, 64, 64, 64), KERNEL, KERNEL)]
    plan = jaxplan.plan(step, *shapes, topology="h100:1", progress=False).fastest()
    compiled = compile_plan(plan).memory_bytes
    assert 0.92 * compiled <= plan.memory_bytes <= 1.12 * compiled
