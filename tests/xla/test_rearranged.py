"""Windows cut out of images, on TPUs; free reshapes are found by trying all orders of dimensions."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxplan.ir import StepGraph, analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Target, analyse_buffers
from jaxplan.xla.rules.tpu.rearranged import REARRANGED, is_rearranged

H, W, D = 6, 4, 5
IMAGE = (3, H, W, D)

VIEWS: dict[str, Callable] = {
    "windows": lambda x: x.reshape(3, 3, 2, 2, 2, D).swapaxes(2, 3).reshape(3, 6, 4, D),
    "image of windows": lambda x: x.reshape(3, 3, 2, 2, 2, D).swapaxes(2, 3).reshape(IMAGE),
    "patches merged": lambda x: x.reshape(3, 3, 2, 2, 2, D).swapaxes(2, 3).reshape(3, 3, 2, 4 * D),
    "strips": lambda x: x.reshape(3, 3, 2, W, D).swapaxes(1, 2).reshape(3, 2, 3 * W, D),
    "rows of windows": lambda x: x.reshape(3, 3, 2, W, D).swapaxes(2, 3).reshape(3, 3, W * 2, D),
    "pixels": lambda x: x.reshape(3, H * W, D),
    "turned": lambda x: x.transpose(0, 3, 2, 1).reshape(3, D, W * H),
    "turned pixels": lambda x: x.transpose(0, 2, 1, 3).reshape(3, W * H, D),
    "heads": lambda x: x.reshape(3, H, 2, 2, D).transpose(0, 2, 1, 3, 4).reshape(3, 2, H, 2 * D),
    "groups": lambda x: x.reshape(3, H, 2, 2, D).transpose(0, 3, 1, 2, 4).reshape(6, H, 2, D),
}


def _graph(function: Callable, shape: tuple[int, ...], dtype: type = jnp.float32) -> StepGraph:
    return analyse(trace(function, [jax.ShapeDtypeStruct(shape, dtype)], {}))


def _is_free(view: Callable) -> bool:
    """Whether in some order of the image's dimensions every dimension of its view has one distance in memory."""
    for order in itertools.permutations(range(len(IMAGE))):
        places = np.arange(np.prod(IMAGE)).reshape([IMAGE[d] for d in order]).transpose(np.argsort(order))
        seen = np.asarray(view(places))
        steps = [np.diff(seen, axis=axis) for axis in range(seen.ndim)]
        if all(step.size == 0 or (step == step.flat[0]).all() for step in steps):
            return True
    return False


@pytest.mark.parametrize("name", VIEWS)
def test_what_no_order_of_dimensions_makes_free(name: str) -> None:
    graph = _graph(lambda x: jnp.sin(VIEWS[name](x)), IMAGE)
    found = [e.index for e in graph.program.equations if is_rearranged(graph, e.index)]
    assert len(found) == (0 if _is_free(VIEWS[name]) else 1)


def test_the_orders_that_are_tried_tell_them_apart() -> None:
    assert [name for name in VIEWS if not _is_free(VIEWS[name])] == [
        "windows",
        "image of windows",
        "patches merged",
        "strips",
        "rows of windows",
        "groups",
    ]


def test_an_array_without_elements_is_no_error() -> None:
    graph = _graph(lambda x: jnp.sin(x.reshape(3, 0).T.reshape(0, 3)), (0,))
    assert not any(is_rearranged(graph, e.index) for e in graph.program.equations)


def _attention(x: jax.Array) -> jax.Array:
    """Mean of the attention in windows of an image, of a dot of the normalised image."""

    def loss(x: jax.Array) -> jax.Array:
        windows = VIEWS["windows"](jnp.sin(x))
        scores = jnp.einsum("bnqd,bnkd->bnqk", windows, windows)
        return jnp.einsum("bnqk,bnkd->bnqd", jnp.exp(scores), windows).mean()

    return jax.grad(loss)(x)


def test_windows_are_written_on_tpus_and_kept_for_the_backward_pass() -> None:
    """Without the rule they are recomputed of the image, inside of the dots that read them."""
    graph = _graph(_attention, IMAGE)
    forward = (e for e in graph.program.equations if e.phase == "forward")
    (windows,) = [e.results[0] for e in forward if is_rearranged(graph, e.index)]
    chip = Target.of(Topology.parse("v5e:1x1").chip)
    assert windows in analyse_buffers(graph, chip).saved
    without = Target.of(Topology.parse("v5e:1x1").chip, without=[REARRANGED.name])
    assert windows not in analyse_buffers(graph, without).saved


def _convolution(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_images_of_the_batch_are_written_for_convolutions_alone(scale: float) -> None:
    """Compiled programs hold the cast of the images that come in; of a batch of rows, dots compute it."""

    def step(images: jax.Array, kernel: jax.Array, rows: jax.Array, weights: jax.Array) -> jax.Array:
        made = _convolution(jnp.sin(images / scale), kernel)
        return jnp.sin(made).sum() + jnp.sin(jnp.sin(rows / scale) @ weights).sum()

    shapes = [IMAGE, (3, 3, D, D), (64, 32), (32, 16)]
    graph = analyse(trace(step, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes], {}))
    written = analyse_buffers(graph, Target.of(Topology.parse("v5e:1x1").chip)).materialised
    read = {e.name: e.operands[0] for e in graph.program.equations if e.name in ("conv_general_dilated", "dot_general")}
    assert written[read["conv_general_dilated"]] and not written[read["dot_general"]]


@pytest.mark.parametrize(("rows", "is_written"), [((3, H, W * D), True), ((3, H * W, D), False)])
def test_images_are_written_where_their_features_are_flattened(rows: tuple[int, ...], is_written: bool) -> None:
    """Features lie innermost and batch beside them: pixels are apart from features, and not from each other."""

    def step(images: jax.Array, kernel: jax.Array, weights: jax.Array) -> jax.Array:
        flat = jax.nn.relu(_convolution(images, kernel)).reshape(rows)
        return jnp.sin(flat @ weights).sum()

    shapes = [IMAGE, (3, 3, D, D), (rows[-1], 16)]
    graph = analyse(trace(step, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes], {}))
    (dot,) = [e for e in graph.program.equations if e.name == "dot_general"]
    written = analyse_buffers(graph, Target.of(Topology.parse("v5e:1x1").chip)).materialised
    assert written[dot.operands[0]] == is_written


@pytest.mark.parametrize(("wide", "itemsize"), [(True, 4), (False, 2)])
def test_what_is_only_read_widened_is_written_so(wide: bool, itemsize: int) -> None:
    """A norm behind merged patches reads float32; compiled Swins keep that."""

    def norm(x: jax.Array) -> jax.Array:
        merged = VIEWS["patches merged"](x)
        read = merged.astype(jnp.float32) if wide else merged
        return (jnp.sin(read) - read.mean()).sum() + (jnp.square(merged.astype(jnp.float32)) if wide else merged).sum()

    graph = _graph(norm, IMAGE, jnp.bfloat16)
    buffers = analyse_buffers(graph, Target.of(Topology.parse("v5e:1x1").chip))
    (merged,) = [e.results[0] for e in graph.program.equations if is_rearranged(graph, e.index)]
    assert (buffers.storage_of(merged).itemsize or 2) == itemsize


def test_what_batched_dots_read_has_its_matrices_innermost() -> None:
    """49 tokens and 32 features of 2048 windows and 3 heads: a slice of queries was compiled to 48 MiB; with windows
    innermost it would take 36.75."""

    def step(qkv: jax.Array) -> jax.Array:
        query, key, value = jnp.moveaxis(jnp.sin(qkv), 3, 0)
        return jnp.einsum("bnqhd,bnkhd->bnhqk", query, key).sum() + value.sum()

    graph = _graph(step, (32, 64, 49, 3, 3, 32), jnp.bfloat16)
    storage = analyse_buffers(graph, Target.of(Topology.parse("v5e:1x1").chip)).storage
    inner = {t: of.inner for t, of in storage.items() if of.inner}
    slices = [t for e in graph.program.equations if e.name in ("slice", "unstack") for t in e.results if t in inner]
    assert len(slices) == 2  # the values are in no dot
    for t in slices:
        shape = graph.program.tensors[t].shape
        assert sorted(shape[d] for d in inner[t]) == [32, 49]
