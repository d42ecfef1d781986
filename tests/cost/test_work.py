"""FLOPs of convolutions: those of the compiled program, the zeros that it writes around an image included."""

from __future__ import annotations

import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from tests.cost.one_device import shape

CASES: dict[str, tuple[int, tuple[int, int], tuple[tuple[int, int], tuple[int, int]]]] = {
    "even": (3, (1, 1), ((1, 1), (1, 1))),
    "halved": (3, (2, 2), ((0, 1), (0, 1))),
    "one side": (3, (2, 1), ((0, 1), (1, 1))),
    "lopsided": (4, (2, 2), ((1, 2), (2, 1))),
    "even kernel": (2, (1, 1), ((0, 1), (0, 1))),
}
"""Size of the kernel, strides, padding."""


@pytest.mark.gpu_aot
@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs the extra gpu-aot to compile for GPUs"
)
@pytest.mark.parametrize("name", list(CASES))
def test_zeros_that_are_written_around_images_are_multiplied(name: str) -> None:
    """Forward pass, gradient of the image and gradient of the kernel, of the convolution in the middle of three."""
    size, strides, padding = CASES[name]

    def loss(kernels: Any, image: jax.Array) -> jax.Array:
        first, middle, last = kernels
        numbers = ("NHWC", "HWIO", "NHWC")
        image = jnp.tanh(jax.lax.conv_general_dilated(image, first, (1, 1), "VALID", dimension_numbers=numbers))
        image = jnp.tanh(jax.lax.conv_general_dilated(image, middle, strides, padding, dimension_numbers=numbers))
        return jnp.mean(jax.lax.conv_general_dilated(image, last, (1, 1), "VALID", dimension_numbers=numbers))

    def step(kernels: Any, image: jax.Array) -> Any:
        return jax.tree.map(lambda k, g: k - 0.1 * g, kernels, jax.grad(loss)(kernels, image))

    half = jnp.bfloat16
    kernels = [shape(1, 1, 8, 64, dtype=half), shape(size, size, 64, 64, dtype=half), shape(1, 1, 64, 8, dtype=half)]
    images = shape(64, 14, 14, 8, dtype=half)
    plan = jaxplan.plan(step, kernels, images, topology="h100:8", progress=False).references["data"]
    audit = plan.audit()
    assert audit.predicted_flops == pytest.approx(audit.compiled_flops, rel=1e-6)
