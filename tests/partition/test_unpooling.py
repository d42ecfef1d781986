"""Gradients of max pooling on GPUs: their places wait for the gradient, and their zeros are their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxplan
from jaxplan.partition import _operators
from tests.partition.edited_plans import with_lowering
from tests.sampling import sampled

MIB = 2**20
NUM_STAGES, CHANNELS = 3, 64


def _convolve(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _step(window: int, *, normalised: bool = False, padding: str = "VALID") -> Any:
    """Stages of two convolutions with rectifiers and a pooling, the first after a norm over the batch."""

    def stage(x: Any, kernels: Any) -> Any:
        for kernel in kernels:
            x = _convolve(x, kernel)
            if normalised:
                x = (x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-3)
            x = jax.nn.relu(x)
        return nn.max_pool(x, (window, window), (2, 2), padding)

    def step(params: Any, x: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            h = x
            for kernels in params:
                h = stage(h, kernels)
            return jnp.mean(h.astype(jnp.promote_types(h.dtype, jnp.float32)) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params))

    return step


def _arguments(images: int, size: int, channels: int, dtype: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    kernels = rng.normal(size=(NUM_STAGES, 2, 3, 3, channels, channels), scale=0.1).astype(dtype)
    params = [list(stage) for stage in kernels]
    return params, rng.normal(size=(images, size, size, channels)).astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "normalised", "padding"),
    sampled([(3, True, "VALID"), (2, False, "VALID"), (2, True, "VALID"), (3, False, "SAME")]),
)
def test_results_are_those_of_one_device(window: int, normalised: bool, padding: str) -> None:
    """The program for GPUs, run on CPU devices: batch, rows of images and kernels split."""
    with jax.enable_x64(True):
        step, arguments = _step(window, normalised=normalised, padding=padding), _arguments(8, 48, 8, np.float64)
        plan = jaxplan.plan(step, *arguments, topology="h100:8", donate_argnums=(), progress=False)
        expected = jax.tree.leaves(jax.jit(step)(*arguments))
        for name in {"data", "zero1", "spatial"} & set(plan.references):
            found = plan.references[name]
            assert len(found.lowering.unpoolings) == NUM_STAGES
            for one, other in zip(jax.tree.leaves(found.jit()(*arguments)), expected, strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("window", "num_made_again"), [(2, 1), (3, 0)])
def test_what_was_pooled_is_made_again_where_it_is_not_in_memory(window: int, num_made_again: int) -> None:
    """Windows side by side read a rectified convolution without writing it; overlapping ones read it from memory."""
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.bfloat16), _arguments(64, 32, 64, np.float32))
    plan = jaxplan.plan(_step(window), *shapes, topology="h100:8", progress=False).references["data"]
    graph = plan.require_program()
    names = {"max": "rectifier", "conv_general_dilated": "convolution"}
    for how in plan.lowering.unpoolings:
        again = [graph.program.equations[e].name for e in how.recomputed]
        assert again == ["max"] * num_made_again, again
        ((_, t),) = how.arrays
        made_by = graph.program.equations[graph.values.producer[t]].name
        assert names[made_by] == ("convolution" if num_made_again else "rectifier")


def test_other_compilers_are_left_alone() -> None:
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.bfloat16), _arguments(64, 32, 64, np.float32))
    for topology in ("cpu:8", "v5e:2x4"):
        plan = jaxplan.plan(_step(2), *shapes, topology=topology, progress=False).references["data"]
        assert not plan.lowering.unpoolings


@pytest.mark.slow
@pytest.mark.gpu_aot
def test_where_rows_no_longer_divide_nothing_more_is_gathered() -> None:
    """7 rows behind a pooling are whole on every device. Left to the compiler they were cut in parts of 4 and 3,
    because the gradient of the pooling is read in parts, and the values joined to them were gathered by themselves."""

    def normalised(x: Any) -> Any:
        return jax.nn.relu((x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-3))

    def step(kernels: Any, x: Any) -> Any:
        def loss_fn(kernels: Any) -> Any:
            h = x
            for kernel in kernels:
                h = _convolve(normalised(h), kernel)
                h = jnp.concatenate([h, _convolve(normalised(h), kernel)], -1)
                h = _convolve(normalised(h), jnp.concatenate([kernel, kernel], 2)[:1, :1])
                h = nn.avg_pool(h, (2, 2), (2, 2))
            for kernel in kernels[:2]:
                h = jnp.concatenate([h, _convolve(normalised(h[..., :CHANNELS]), kernel)], -1)
            return jnp.mean(normalised(h).astype(jnp.float32) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, kernels, jax.grad(loss_fn)(kernels))

    kernels = [jax.ShapeDtypeStruct((3, 3, CHANNELS, CHANNELS), jnp.bfloat16)] * NUM_STAGES
    x = jax.ShapeDtypeStruct((64, 56, 56, CHANNELS), jnp.bfloat16)
    plan = jaxplan.plan(step, kernels, x, topology="h100:8", progress=False).references["spatial"]
    audit, graph = plan.audit(), plan.require_program()
    assert audit.collectives_ok, audit.table()
    windows = {t for e in graph.program.equations for t in e.results if graph.rules[e.index].family == "window"}
    left = with_lowering(plan, pinned=plan.lowering.pinned - windows).audit()
    assert not left.collectives_ok, left.table()


@pytest.mark.slow
@pytest.mark.gpu_aot
def test_left_alone_the_compiler_writes_zeros_and_places_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 images of 128 x 128 a device: zeros of the first stage are 64 MiB.

    The operand of the second stage's gradients of kernels is counted until after the places, and is gone by then.
    """
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.bfloat16), _arguments(256, 128, 64, np.float32))
    plan = jaxplan.plan(_step(2), *shapes, topology="h100:8", progress=False).references["data"]
    audit = plan.audit()
    assert 0.92 * audit.compiled_memory_bytes < plan.memory_bytes < 1.16 * audit.compiled_memory_bytes, audit.table()
    monkeypatch.setattr(_operators, "UNPOOLING", "")
    left = with_lowering(plan, unpoolings=()).audit()
    assert left.compiled_memory_bytes > audit.compiled_memory_bytes + 60 * MIB, left.table()
