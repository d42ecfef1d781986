"""Zeros that GPU programs write around images: bytes of one convolution in closed form."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxplan.cost import ModelBuilder
from jaxplan.cost._padded_images import PaddedImages
from jaxplan.cost._reads import sharding_of
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
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


@pytest.mark.parametrize(("made", "read"), [(8, 1), (1, 8), (8, 8)])
def test_an_image_is_padded_as_it_arrives_at_its_convolution(made: int, read: int) -> None:
    """Of 16 images in ``made`` parts, one of ``read`` parts is padded: 3 more pixels for a kernel of 5 at every other.

    Compiled programs hold the gathered images and their padded copy side by side.
    """

    def step(first: jax.Array, second: jax.Array, images: jax.Array) -> jax.Array:
        dimensions = ("NHWC", "HWIO", "NHWC")
        hidden = jax.lax.conv_general_dilated(images, first, (1, 1), "SAME", dimension_numbers=dimensions)
        return jax.lax.conv_general_dilated(jnp.tanh(hidden), second, (2, 2), "SAME", dimension_numbers=dimensions)

    args = shape(1, 1, 8, 64), shape(5, 5, 64, 32), shape(16, 32, 32, 8)
    graph = analyse_step(step, args, {}, donate_argnums=(), static_argnums=())
    builder = ModelBuilder(graph, Topology.parse("h100:8"))
    model = builder.build(builder.configurations())
    ((image, *_),) = model.buffers.bordered
    assignment = [0] * len(model.configurations)
    groups = graph.grouping.tensor_group[image.tensor], graph.grouping.equation_group[image.equation]
    for group, parts, produced in zip(groups, (made, read), (True, False), strict=True):
        chosen, found = list(model.chosen(assignment)), []
        for configuration in model.configurations[group]:
            chosen[group] = configuration
            found.append(sharding_of(graph, chosen, group, image.tensor, produced=produced).dims)
        assignment[group] = next(k for k, dims in enumerate(found) if 2 ** len(dims[0]) == parts and not any(dims[1:]))
    ((_, _, size),) = PaddedImages(model).copies(assignment, model.chosen(assignment))
    assert size == 4 * (16 // read) * 35 * 35 * 64
