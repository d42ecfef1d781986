"""Values of functions that compiled programs keep for the backward pass; images that weigh themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxplan
from jaxplan.xla._lifetimes import GAPS as GAPS_IN_HEAP
from tests.cost.one_device import shape
from tests.sampling import sampled
from tests.versions import IS_0_12, missed_from_0_12

LAYERS, ROWS, WIDTH, INNER = 4, 512, 512, 2048
BATCH = 32
FUNCTIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "asin": lambda x: lax.asin(x * 0.1),
    "sinh": lax.sinh,
    "atan2": lambda x: lax.atan2(x, jnp.full_like(x, 2)),
    "tan": lax.tan,
    "atan": lax.atan,
    "cbrt": lax.cbrt,
    "expm1": lax.expm1,
    "digamma": lax.digamma,
    "erf_inv": lambda x: lax.erf_inv(x * 0.1),
    "logistic": lax.logistic,
}


def _perceptrons(function: Callable[[jax.Array], jax.Array]) -> Callable[..., Any]:
    """Residual perceptrons behind norms, of one activation."""

    def loss(layers: Any, x: jax.Array) -> jax.Array:
        for up, bias, down in layers:
            wide = x.astype(jnp.float32)
            mean = wide.mean(-1, keepdims=True)
            h = ((wide - mean) * lax.rsqrt((wide * wide).mean(-1, keepdims=True) - mean**2 + 1e-6)).astype(x.dtype)
            x = x + function(h @ up + bias) @ down
        return jnp.mean(x.astype(jnp.float32) ** 2)

    return lambda layers, x: jax.tree.map(lambda p, g: p - 0.1 * g, layers, jax.grad(loss)(layers, x))


_GAPS = (
    "the compiler takes another order, with gaps in its heap of up to an array of 8 MiB here that are not predicted: "
    "allocated memory is 1 to 8 % above the live bytes"
)
GAPS = pytest.mark.xfail(strict=True, reason=_GAPS)
GAPS_UNTIL_0_12 = pytest.mark.xfail(condition=not IS_0_12, strict=True, reason=_GAPS)
"""A known miss: strict, so that the marker goes when the prediction is right; functions have none from JAX 0.12 on."""
GAPPED = frozenset({"tanh", "erfc", "atan2", "atan", "expm1", "digamma", "erf_inv"})
"""Functions with gaps in their programs that are not predicted."""


@functools.cache
def _function_audited(name: str) -> Any:
    function = FUNCTIONS[name]
    return _audited(lambda x: 0.5 * x * (1 + function(x)), "h100:8")


def _audited(function: Callable[[jax.Array], jax.Array], topology: str, dtype: Any = jnp.bfloat16) -> Any:
    layer = shape(WIDTH, INNER, dtype=dtype), shape(INNER, dtype=dtype), shape(INNER, WIDTH, dtype=dtype)
    x = shape(BATCH, ROWS, WIDTH, dtype=dtype)
    frontier = jaxplan.plan(_perceptrons(function), [layer] * LAYERS, x, topology=topology, progress=False)
    return frontier.references["data"].audit()


def _live(audit: Any) -> Any:
    """Arguments and live bytes at the peak of the compiled program: its memory but for the gaps of its heap."""
    return pytest.approx(dict(audit.compiled_parts)["arguments"] + sum(h.num_bytes for h in audit.held), rel=0.03)


def _predicted_live(audit: Any) -> int:
    """Predicted memory but for the gaps of the heap."""
    return audit.predicted_memory_bytes - dict(audit.predicted_parts).get(GAPS_IN_HEAP, 0)


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize("name", sampled(FUNCTIONS, 2))
def test_what_gpus_save_of_a_function(name: str) -> None:
    """One array of 8 MiB a layer more or less would be 12 % of these programs and more."""
    audit = _function_audited(name)
    assert _predicted_live(audit) == _live(audit), audit.table()


@pytest.mark.gpu_aot
@pytest.mark.parametrize("name", sampled(FUNCTIONS, 2))
def test_memory_of_a_function_is_that_of_the_compiler(name: str, request: pytest.FixtureRequest) -> None:
    if name in GAPPED:
        request.applymarker(GAPS_UNTIL_0_12)
    audit = _function_audited(name)
    assert audit.predicted_memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=0.03), audit.table()


@pytest.mark.gpu_aot
@pytest.mark.parametrize("name", sampled(["erf", "erfc", "erf_inv", "atan", "tan"]))
def test_what_gpus_save_where_arithmetic_is_wide(name: str) -> None:
    """On A100, in float32: one array a layer more or less would be a quarter and more."""
    function = FUNCTIONS[name]
    audit = _audited(lambda x: 0.5 * x * (1 + function(x)), "a100-pcie:8")
    assert audit.predicted_memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=0.05), audit.table()


@functools.cache
def _exact_gelu_audited() -> Any:
    return _audited(lambda x: jax.nn.gelu(x, approximate=False), "h100:8")


@pytest.mark.slow
@GAPS_UNTIL_0_12
@pytest.mark.gpu_aot
def test_memory_of_an_exact_gelu_is_that_of_the_compiler() -> None:
    audit = _exact_gelu_audited()
    assert audit.predicted_memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=0.03), audit.table()


@pytest.mark.gpu_aot
def test_gpus_save_what_erfc_reads() -> None:
    """Four arrays a layer: the dot, the exact GELU of it, ``erfc`` and its argument."""
    audit = _exact_gelu_audited()
    assert _predicted_live(audit) == _live(audit), audit.table()
    inner = BATCH // 8 * ROWS * INNER * 2
    held = sum(h.num_bytes for h in audit.held if str(INNER) in h.array and h.num_bytes // h.count == inner)
    assert held >= 4 * LAYERS * inner


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": jax.nn.gelu,
    "exact gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "snake": lambda x: x + jnp.sin(x) ** 2,
    "atan": lambda x: x * lax.atan(x),
    "erf_inv": lambda x: x * lax.erf_inv(0.1 * x),
    "capped": lambda x: jax.nn.softmax(50 * jnp.tanh(x / 50)) * x,
}


@pytest.mark.gpu_aot
@pytest.mark.parametrize("name", sampled(ACTIVATIONS))
def test_what_gpus_save_of_a_gelu(name: str, request: pytest.FixtureRequest) -> None:
    """In float32, one array of 16 MiB a layer more or less would be a fifth of these programs."""
    if name in ("exact gelu", "mish"):
        request.applymarker(missed_from_0_12("280 MiB are compiled and 268 predicted"))
    audit = _audited(ACTIVATIONS[name], "h100:8", jnp.float32)
    assert _predicted_live(audit) == _live(audit), audit.table()


@pytest.mark.slow
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
    ("topology", "arrays", "most"), sampled([("h100:8", 3, 1.1), ("a100-pcie:8", 4, 1.03)])
)
def test_gpus_do_not_save_what_erfc_reads_of_a_convolution(topology: str, arrays: int, most: float) -> None:
    """The convolution, the exact GELU of it and ``erfc``; where arithmetic is wide, the first in float32."""
    batch, samples, width, half = 32, 16385, 512, jnp.bfloat16

    def loss(kernels: Any, x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = lax.conv_general_dilated(x, kernel, (2,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
            x = jax.nn.gelu(x, approximate=False)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(kernels: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, kernels, jax.grad(loss)(kernels, x))

    kernels, x = [shape(3, width, width, dtype=half)] * LAYERS, shape(batch, samples, width, dtype=half)
    frontier = jaxplan.plan(step, kernels, x, topology=topology, progress=False)
    audit = frontier.references["data"].audit()
    assert 0.97 < audit.predicted_memory_bytes / audit.compiled_memory_bytes < most, audit.table()
    first = batch // 8 * (samples // 2) * width * 2
    made_of_first = [h for h in audit.held if h.num_bytes // h.count >= first and "jvp" in h.op_name]
    assert sum(h.num_bytes for h in made_of_first) == arrays * first, audit.held


IMAGES = sampled([(56, 96, 24), (28, 240, 40), (14, 480, 80)])


@functools.cache
def _weighing_audited(side: int, channels: int, width: int) -> Any:
    """Squeeze and excitation behind a norm and a swish, three times; beside the dot and the weighed image there is
    the image that is weighed."""

    def loss(layers: Any, x: jax.Array) -> jax.Array:
        for up, scale, bias, squeeze, excite, down in layers:
            c = x @ up
            wide = c.astype(jnp.float32)
            mean = wide.mean((0, 1, 2))
            rate = lax.rsqrt((wide * wide).mean((0, 1, 2)) - mean**2 + 1e-3) * scale
            h = jax.nn.swish(((wide - mean) * rate + bias).astype(c.dtype))
            gate = jax.nn.sigmoid(jax.nn.swish(h.mean((1, 2), keepdims=True) @ squeeze) @ excite)
            x = x + (h * gate) @ down
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(layers: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, layers, jax.grad(loss)(layers, x))

    narrow = width // 4
    sizes = (width, channels), (channels,), (channels,), (channels, narrow), (narrow, channels), (channels, width)
    layer = tuple(shape(*size, dtype=jnp.bfloat16) for size in sizes)
    images = shape(256, side, side, width, dtype=jnp.bfloat16)
    return jaxplan.plan(step, [layer] * 3, images, topology="h100:8", progress=False).references["data"].audit()


@pytest.mark.slow
@pytest.mark.gpu_aot
@pytest.mark.parametrize(("side", "channels", "width"), IMAGES)
def test_images_that_weigh_themselves_are_written(side: int, channels: int, width: int) -> None:
    audit = _weighing_audited(side, channels, width)
    assert audit.predicted_memory_bytes == _live(audit), audit.table()
    image = 32 * side * side * channels * 2
    held = [h for h in audit.held if h.num_bytes // h.count == image]
    assert sum(h.count for h in held) >= 9


@pytest.mark.slow
@GAPS
@pytest.mark.gpu_aot
@pytest.mark.parametrize(("side", "channels", "width"), IMAGES)
def test_memory_of_weighed_images_is_that_of_the_compiler(side: int, channels: int, width: int) -> None:
    audit = _weighing_audited(side, channels, width)
    ratio = audit.predicted_memory_bytes / audit.compiled_memory_bytes
    assert 1 <= ratio < 1.12, audit.table()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "is_saved"),
    sampled(
        [
            (lambda x: jax.nn.gelu(x, approximate=False), False),
            (lax.sin, True),
            (lax.erf, True),
            (lambda x: lax.erf_inv(jnp.tanh(x) * 0.9), True),
            (lax.tan, False),
            (lax.cbrt, False),
            (jax.nn.gelu, False),
        ],
        1,
    ),
    ids=["exact gelu", "sin", "erf", "erf_inv", "tan", "cbrt", "gelu"],
)
def test_what_tpus_save_of_a_function(function: Callable[[jax.Array], jax.Array], is_saved: bool) -> None:
    """Of 8 x 1536 rows, too many for the memory beside the cores: expensive functions are one array a layer more."""
    half = jnp.bfloat16
    layer = shape(WIDTH, INNER, dtype=half), shape(INNER, dtype=half), shape(INNER, WIDTH, dtype=half)
    x = shape(64, 1536, WIDTH, dtype=half)

    def audited(function: Callable[[jax.Array], jax.Array]) -> Any:
        frontier = jaxplan.plan(_perceptrons(function), [layer] * LAYERS, x, topology="v5e:2x4", progress=False)
        return frontier.references["data"].audit()

    audit, plain = audited(function), audited(jax.nn.silu)
    inner = 8 * 1536 * INNER * 2
    assert (audit.compiled_memory_bytes - plain.compiled_memory_bytes > 2 * inner) == is_saved
    assert (audit.predicted_memory_bytes - plain.predicted_memory_bytes > 2 * inner) == is_saved
