"""FLOPs of convolutions: those of the compiled program, the zeros that it writes around an image included."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from benchmarks.models import build
from jaxplan.xla import _buffers
from tests.cost.one_device import shape
from tests.sampling import sampled

CASES: dict[str, tuple[int, tuple[int, int], tuple[tuple[int, int], tuple[int, int]]]] = {
    "even": (3, (1, 1), ((1, 1), (1, 1))),
    "halved": (3, (2, 2), ((0, 1), (0, 1))),
    "one side": (3, (2, 1), ((0, 1), (1, 1))),
    "lopsided": (4, (2, 2), ((1, 2), (2, 1))),
    "even kernel": (2, (1, 1), ((0, 1), (0, 1))),
}
"""Size of the kernel, strides, padding."""


_HOLES: dict[str, dict[str, tuple[int, int]]] = {
    "none": {},
    "in kernel": {"rhs_dilation": (2, 2)},
    "in image": {"lhs_dilation": (2, 1)},
}
_COUNTED = [
    *((name, 1, "none") for name in CASES),
    *((name, 64, "none") for name in ("even", "halved", "lopsided")),
    ("even", 1, "in kernel"),
    ("even", 64, "in kernel"),
    ("even", 1, "in image"),
]


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize(("name", "groups", "holes"), sampled(_COUNTED[::-1], 5))
def test_zeros_that_are_written_around_images_are_multiplied(name: str, groups: int, holes: str) -> None:
    """Forward pass, gradient of the image and gradient of the kernel, of the convolution in the middle of three."""
    size, strides, padding = CASES[name]

    def loss(kernels: Any, image: jax.Array) -> jax.Array:
        first, middle, last = kernels
        numbers = ("NHWC", "HWIO", "NHWC")
        image = jnp.tanh(jax.lax.conv_general_dilated(image, first, (1, 1), "VALID", dimension_numbers=numbers))
        how: dict[str, Any] = {"dimension_numbers": numbers, "feature_group_count": groups, **_HOLES[holes]}
        image = jnp.tanh(jax.lax.conv_general_dilated(image, middle, strides, padding, **how))
        return jnp.mean(jax.lax.conv_general_dilated(image, last, (1, 1), "VALID", dimension_numbers=numbers))

    def step(kernels: Any, image: jax.Array) -> Any:
        return jax.tree.map(lambda k, g: k - 0.1 * g, kernels, jax.grad(loss)(kernels, image))

    half = jnp.bfloat16
    kernels = [shape(1, 1, 8, 64, dtype=half), shape(size, size, 64 // groups, 64, dtype=half)]
    kernels += [shape(1, 1, 64, 8, dtype=half)]
    images = shape(64, 14, 14, 8, dtype=half)
    plan = jaxplan.plan(step, kernels, images, topology="h100:8", progress=False).references["data"]
    audit = plan.audit()
    assert audit.predicted_flops == pytest.approx(audit.compiled_flops, rel=1e-6)


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_holes_of_split_images_are_multiplied(strides: tuple[int, int]) -> None:
    """A convolution of each channel, with rows split over devices, and its gradients."""

    def loss(kernels: Any, image: jax.Array) -> jax.Array:
        first, middle, last = kernels
        how: dict[str, Any] = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": 64}
        image = jax.lax.conv_general_dilated(jnp.tanh(image @ first), middle, strides, "SAME", **how)
        return jnp.mean(jnp.tanh(image) @ last)

    def step(kernels: Any, image: jax.Array) -> Any:
        return jax.tree.map(lambda k, g: k - 0.1 * g, kernels, jax.grad(loss)(kernels, image))

    half = jnp.bfloat16
    kernels = [shape(8, 64, dtype=half), shape(3, 3, 1, 64, dtype=half), shape(64, 8, dtype=half)]
    images = shape(64, 32, 32, 8, dtype=half)
    plan = jaxplan.plan(step, kernels, images, topology="h100:8", progress=False).references["spatial"]
    audit = plan.audit()
    assert audit.predicted_flops == pytest.approx(audit.compiled_flops, rel=1e-6), audit.table()


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
    ("dtype", "tokens"), sampled([("bfloat16", 9), ("float32", 9), ("bfloat16", 16), ("float16", 9)], 2)
)
def test_matrices_of_sixteen_bits_are_padded(dtype: str, tokens: int) -> None:
    """Attention over few tokens, of which nine become sixteen."""

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        query, key, value = jnp.moveaxis(jnp.einsum("bnd,dshe->bnshe", x, weights), 2, 0)
        scores = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", query, key))
        return jnp.mean(jnp.tanh(jnp.einsum("bhqk,bkhe->bqhe", scores, value)).astype(jnp.float32) ** 2)

    def step(weights: jax.Array, x: jax.Array) -> Any:
        return weights - jax.grad(loss)(weights, x).astype(weights.dtype)

    args = shape(64, 3, 8, 64, dtype=jnp.dtype(dtype)), shape(1024, tokens, 64, dtype=jnp.dtype(dtype))
    plan = jaxplan.plan(step, *args, topology="h100:8", progress=False).references["data"]
    audit = plan.audit()
    assert audit.predicted_flops == pytest.approx(audit.compiled_flops, rel=1e-6)
    rows = 128 * tokens
    whole = 2 * 2 * 3 * rows * 64 * 512 + 6 * 2 * 128 * 8 * tokens**2 * 64
    is_padded = dtype != "float32" and tokens == 9
    assert (audit.compiled_flops > 1.05 * whole) == is_padded


@pytest.mark.gpu_aot
@pytest.mark.slow
def test_what_is_padded_is_kept_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Swin transformer of one block: probabilities between the 49 patches of a window are held between 56, queries,
    keys and values for 56."""
    step, arguments = build("swin-t", depths=(1,), num_heads=(3,))
    plan = jaxplan.plan(step, *arguments, topology="h100:8", progress=False).references["data"]
    assert plan.audit().memory_ok
    arrays = {holding.array: holding.num_bytes for holding in plan.audit().held}
    assert arrays["bf16[6144,56,56]"] == 2 * 6144 * 56 * 56
    monkeypatch.setattr(_buffers, "storage_of", lambda *_: {})
    bare = jaxplan.plan(step, *arguments, topology="h100:8", progress=False).references["data"]
    more = 2 * 6144 * ((56**2 - 49**2) + 3 * (56 - 49) * 32)
    assert plan.memory_bytes - bare.memory_bytes == more
