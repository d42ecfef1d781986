"""Convolutions of groups of channels, on chips with memory in tiles; sizes are those of compiled v5e programs."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest

from jaxplan.cost import padded_bytes
from jaxplan.ir import StepGraph, analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Buffers, Target, analyse_buffers
from jaxplan.xla._storage import ChannelGroups

B, P = 32, 14
DIMS = ("NHWC", "HWIO", "NHWC")


def _graph(features: int, width: int) -> StepGraph:
    def step(x: jax.Array, reduce: jax.Array, grouped: jax.Array) -> tuple[jax.Array, ...]:
        def loss(reduce: jax.Array, grouped: jax.Array) -> jax.Array:
            h = jax.lax.conv_general_dilated(x, reduce, (1, 1), "SAME", dimension_numbers=DIMS)
            h = jax.nn.relu(h)
            h = jax.lax.conv_general_dilated(
                h, grouped, (1, 1), "SAME", dimension_numbers=DIMS, feature_group_count=features // width
            )
            h = h.astype(jnp.float32)
            return jnp.square(h - h.mean((0, 1, 2))).sum()

        return jax.grad(loss, argnums=(0, 1))(reduce, grouped)

    shapes = [(B, P, P, features), (1, 1, features, features), (3, 3, width, features)]
    return analyse(trace(step, [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes], {}))


@pytest.mark.parametrize(
    ("features", "width", "mebibytes"),
    [
        (512, 64, 12.25),  # 64 of the 128 columns of a tile: twice the elements
        (192, 64, 4.59375),
        (512, 128, 6.125),
        (512, 16, 24.5),  # the batch in the columns, 32 of 128: four times
    ],
)
def test_an_image_lies_as_the_groups_of_its_channels_do(features: int, width: int, mebibytes: float) -> None:
    graph = _graph(features, width)
    buffers = analyse_buffers(graph, Target.of(Topology.parse("v5e:2x4").chip))
    ((t, groups),) = _grouped(buffers).items()
    shape = graph.program.tensors[t].shape
    assert buffers.materialised[t]
    assert padded_bytes(groups.shape(shape), 2, groups.inner) == mebibytes * 2**20


@pytest.mark.parametrize(("width", "itemsizes"), [(64, [4]), (32, [4]), (128, [])])
def test_what_such_a_convolution_makes_is_held_wide(width: int, itemsizes: list[int]) -> None:
    buffers = analyse_buffers(_graph(512, width), Target.of(Topology.parse("v5e:2x4").chip))
    assert _widths(buffers) == itemsizes


def test_gpus_and_convolutions_of_single_channels_have_no_groups() -> None:
    assert not _grouped(analyse_buffers(_graph(512, 64), Target.of(Topology.parse("h100:8").chip)))
    single = analyse_buffers(_graph(512, 1), Target.of(Topology.parse("v5e:2x4").chip))
    assert not _grouped(single) and not _widths(single)


def _grouped(buffers: Buffers) -> dict[int, ChannelGroups]:
    return {t: storage.groups for t, storage in buffers.storage.items() if storage.groups}


def _widths(buffers: Buffers) -> list[int]:
    """Bytes of the elements that results, and their copies, are held in where these are not those of their dtype."""
    return [storage.itemsize for storage in buffers.storage.values() if storage.itemsize and storage.copies]


def test_a_device_with_less_features_than_a_group_has_one() -> None:
    groups = ChannelGroups(batch=0, features=3, width=64)
    assert groups.shape((8, 7, 7, 48)) == (8, 7, 7, 1, 48)
    assert math.prod(groups.shape((8, 7, 7, 512))) == 8 * 7 * 7 * 512
    assert [groups.shape((8, 7, 7, 512))[d] for d in groups.inner] == [8, 64]
