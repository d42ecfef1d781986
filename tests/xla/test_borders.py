"""Zeros that GPU programs write around images: bytes of one convolution in closed form."""

from __future__ import annotations

from typing import Any

import jax

from tests.cost.one_device import peak, shape

IMAGES, KERNEL = shape(2, 32, 32, 8), shape(3, 3, 8, 8)


def convolve(stride: int) -> Any:
    def step(images: jax.Array, kernel: jax.Array) -> jax.Array:
        dimensions = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(images, kernel, (stride, stride), "SAME", dimension_numbers=dimensions)

    return step


def test_a_convolution_with_a_stride_reads_a_padded_copy() -> None:
    """Of 32 pixels one more is needed, on one side, so the library reads 33 x 33 of them."""
    assert peak(convolve(2), IMAGES, KERNEL, topology="h100:1") == 4 * 2 * 8 * (33 * 33 + 16 * 16)


def test_one_that_pads_both_sides_alike_reads_the_image() -> None:
    assert peak(convolve(1), IMAGES, KERNEL, topology="h100:1") == 4 * 2 * 8 * 32 * 32


def test_a_cpu_pads_inside_of_the_convolution() -> None:
    assert peak(convolve(2), IMAGES, KERNEL, topology="cpu:1") == 4 * 2 * 8 * 16 * 16
