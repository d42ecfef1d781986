"""Small steps, and for each rule on the compiler one that it applies to and a near one that it does not.

Nothing is allocated: arguments are shapes. A near step differs from the first in the rule's condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.cost.one_device import shape

HALF = jnp.bfloat16
SIDE, CHANNELS, BATCH = 16, 32, 16
IMAGES = ("NHWC", "HWIO", "NHWC")
Step = tuple[Callable[..., Any], tuple[Any, ...]]
Function = Callable[[jax.Array], jax.Array]


def _trained(loss: Callable[..., jax.Array], params: Any, *data: Any) -> Step:
    """A step of SGD on a loss."""

    def step(params: Any, *data: Any) -> Any:
        gradients = jax.grad(loss)(params, *data)
        return jax.tree.map(lambda p, g: p - (0.1 * g).astype(p.dtype), params, gradients)

    return step, (params, *data)


def _fitted(dtype: Any = jnp.float32) -> Step:
    """A step with its loss, the cross entropy of two classes, of two layers of which the last has a bias."""

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            hidden, last, bias = params
            scores = (jnp.tanh(x @ hidden) @ last + bias).astype(jnp.float32)
            return jnp.mean(jax.nn.softplus(scores) - y * scores)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - (0.1 * g).astype(p.dtype), params, gradients), value

    params = shape(64, 64, dtype=dtype), shape(64, 32, dtype=dtype), shape(32, dtype=dtype)
    return step, (params, shape(512, 64, dtype=dtype), shape(512, 32))


def _square(x: jax.Array) -> jax.Array:
    return jnp.sum(x.astype(jnp.float32) ** 2)


def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def _layers(function: Function, dtype: Any = jnp.float32, *, is_recomputed: bool = False) -> Step:
    """Residual perceptrons."""
    width = 64

    def layer(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return x + function(x @ up) @ down

    run = jax.checkpoint(layer) if is_recomputed else layer

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for up, down in params:
            x = run(x, up, down)
        return _square(x)

    kernels = shape(width, 4 * width, dtype=dtype), shape(4 * width, width, dtype=dtype)
    return _trained(loss, [kernels] * 3, shape(32, width, dtype=dtype))


def _normed(x: jax.Array, dims: Sequence[int], groups: int = 1) -> jax.Array:
    wide = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
    centred = wide - wide.mean(dims, keepdims=True)
    scale = lax.rsqrt((centred * centred).mean(dims, keepdims=True) + 1e-6)
    return (centred * scale).reshape(x.shape).astype(x.dtype)


def _normed_layer(w: jax.Array, x: jax.Array) -> jax.Array:
    return _square(jnp.tanh(_normed(x, (-1,)) @ w))


def _conv(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    strides = (stride, stride)
    return lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=IMAGES, feature_group_count=groups)


def _images(dtype: Any = jnp.float32) -> Any:
    return shape(BATCH, SIDE, SIDE, CHANNELS, dtype=dtype)


def _convolutions(
    function: Function = jax.nn.relu, dtype: Any = jnp.float32, stride: int = 1, groups: int = 1, data: Any = None
) -> Step:
    def loss(kernels: Any, x: jax.Array) -> jax.Array:
        x = x.astype(dtype)
        for kernel in kernels:
            x = function(_conv(x, kernel, stride, groups))
        return _square(x)

    kernel = shape(3, 3, CHANNELS // groups, CHANNELS, dtype=dtype)
    return _trained(loss, [kernel] * 2, _images(data or dtype))


def _residual_convolutions(kernels: Any, x: jax.Array) -> jax.Array:
    for kernel in kernels:
        x = jax.nn.relu(x + _conv(x, kernel))
    return _square(x)


def _group_norms(dtype: Any) -> Step:
    def loss(kernels: Any, x: jax.Array) -> jax.Array:
        for kernel in kernels:
            x = jax.nn.relu(_normed(_conv(x, kernel), (1, 2, 4), groups=4))
        return _square(x)

    return _trained(loss, [shape(3, 3, CHANNELS, CHANNELS, dtype=dtype)] * 2, _images(dtype))


def _branches(pixels: int) -> Step:
    """Two convolutions that read one image."""

    def loss(kernels: Any, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(_conv(x, kernels[0]))
        return sum((jnp.sum(_conv(x, kernel) ** 3) for kernel in kernels[1:]), jnp.zeros(()))

    kernel = shape(pixels, pixels, CHANNELS, 64)
    return _trained(loss, [shape(3, 3, CHANNELS, CHANNELS), kernel, kernel], _images())


def _gated(function: Function = jax.nn.silu, groups: int = 1) -> Step:
    """Squeeze and excitation of the result of a convolution."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        kernel, down, up = params
        x = function(_conv(x, kernel, groups=groups))
        gate = jax.nn.sigmoid(jax.nn.relu(x.mean((1, 2)) @ down) @ up)
        return _square(x * gate[:, None, None])

    params = shape(3, 3, CHANNELS // groups, CHANNELS), shape(CHANNELS, 8), shape(8, CHANNELS)
    return _trained(loss, params, _images())


def _pooled(window: int = 2, dtype: Any = jnp.float32, is_mean: bool = False) -> Step:
    def loss(kernel: jax.Array, x: jax.Array) -> jax.Array:
        start, function = (0.0, lax.add) if is_mean else (-jnp.inf, lax.max)
        windows, strides = (1, window, window, 1), (1, 2, 2, 1)
        return _square(lax.reduce_window(_conv(x, kernel), start, function, windows, strides, "VALID"))

    return _trained(loss, shape(3, 3, CHANNELS, CHANNELS, dtype=dtype), _images(dtype))


def _flattened(params: Any, x: jax.Array) -> jax.Array:
    kernel, w = params
    return _square(jax.nn.relu(_conv(x, kernel)).reshape(BATCH, -1) @ w)


def _patches(window: int) -> Step:
    """Windows of an image as rows."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        parts = SIDE // window
        cut = x.reshape(BATCH, parts, window, parts, window, CHANNELS).swapaxes(2, 3)
        return _square(jax.nn.gelu(jnp.sin(cut.reshape(BATCH, parts**2, -1)) @ w))

    return _trained(loss, shape(window**2 * CHANNELS, 64), _images())


def _attention(
    kv_heads: int | None = 4, cap: float = 0.0, scores: Any = jnp.float32, *, is_scanned: bool = False
) -> Step:
    """Queries grouped by key, one query in each group of 4 key heads; no groups without `kv_heads`."""
    batch, tokens, width, heads = BATCH, 64, 64, 4
    groups = kv_heads or heads

    def layer(params: Any, x: jax.Array) -> jax.Array:
        query, key, value, out = params
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, w) for w in (query, key, value))
        if kv_heads is None:
            found = jnp.einsum("bthk,bshk->bhts", q, k)
        else:
            q = q.reshape(batch, tokens, kv_heads, heads // kv_heads, -1)
            found = jnp.einsum("btghk,bsgk->bghts", q, k)
        found = found.astype(scores) * 0.1
        found = cap * jnp.tanh(found / cap) if cap else found
        weights = jax.nn.softmax(found, -1).astype(x.dtype)
        if kv_heads is None:
            y = jnp.einsum("bhts,bshk->bthk", weights, v)
        else:
            y = jnp.einsum("bghts,bsgk->btghk", weights, v).reshape(batch, tokens, heads, -1)
        return x + jnp.einsum("bthk,hkd->btd", y, out)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        if is_scanned:
            return _square(lax.scan(lambda x, layer_: (layer(layer_, x), None), x, params)[0])
        for layer_ in params:
            x = layer(layer_, x)
        return _square(x)

    of = width // heads
    shapes = (width, heads, of), (width, groups, of), (width, groups, of), (heads, of, width)
    if is_scanned:
        return _trained(
            loss, tuple(shape(2, *dims, dtype=HALF) for dims in shapes), shape(batch, tokens, width, dtype=HALF)
        )
    params = tuple(shape(*dims, dtype=HALF) for dims in shapes)
    return _trained(loss, [params] * 2, shape(batch, tokens, width, dtype=HALF))


def _mixed(params: Any, x: jax.Array) -> jax.Array:
    """Dots over tokens, then over features."""
    tokens, features = params
    x = x + jnp.swapaxes(jax.nn.gelu(jnp.swapaxes(x, 1, 2) @ tokens) @ tokens.T, 1, 2)
    return _square(x + jax.nn.gelu(x @ features) @ features.T)


def _tables(rows: int = 2**14, number: int = 2) -> Step:
    def loss(tables: Any, ids: jax.Array, w: jax.Array) -> jax.Array:
        return _square(sum((jnp.tanh(table[ids] @ w) for table in tables), jnp.zeros(())))

    return _trained(loss, [shape(rows, 64)] * number, shape(32, dtype=jnp.int32), shape(64, 64))


def _vocabulary(words: int) -> Step:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.logsumexp(x @ params[0] @ params[1], -1))

    return _trained(loss, (shape(64, 64), shape(64, words)), shape(32, 64))


def _experts(params: Any, x: jax.Array) -> jax.Array:
    """Tokens reach experts by dots with one-hot rows."""
    router, w = params
    gates = jax.nn.softmax(x @ router, -1)
    mask = jax.nn.one_hot(jnp.argmax(gates, -1), 8, dtype=x.dtype)
    return _square(jnp.einsum("etf,te->tf", jnp.einsum("te,td,edf->etf", mask, x, w), mask * gates))


def _scanned_layers(params: Any, x: jax.Array) -> jax.Array:
    return _square(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params)[0])


def _unrolled_layers(params: Any, x: jax.Array) -> jax.Array:
    for w in params:
        x = jnp.tanh(x @ w)
    return _square(x)


def _recurrent(returns_states: bool = True) -> Step:
    def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
        def body(state: jax.Array, x: jax.Array) -> Any:
            state = jnp.tanh(state @ w + x)
            return state, state if returns_states else jnp.sum(state)

        return _square(lax.scan(body, xs[0], xs)[1])

    return _trained(loss, shape(64, 64), shape(8, 32, 64))


def _stacked_twice(w: jax.Array, xs: jax.Array) -> Any:
    def body(state: jax.Array, x: jax.Array) -> Any:
        state = jnp.tanh(state @ w + x)
        return state, (state, state)

    return lax.scan(body, xs[0], xs)[1]


def _added_where(condition: bool) -> Step:
    """A loop that adds outer products to a matrix, those of some rows alone or all."""

    def step(rows: jax.Array) -> jax.Array:
        def body(total: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
            if condition:
                return lax.cond(row[0] > 0, lambda t: t + jnp.outer(row, row), lambda t: t, total), None
            return total + jnp.outer(row, row), None

        return lax.scan(body, jnp.zeros((64, 64)), rows)[0]

    return step, (shape(8, 64),)


def _read_in_loop(w: jax.Array, xs: jax.Array) -> jax.Array:
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), xs[0], xs)[0]


def _micro_batches(params: Any, xs: jax.Array) -> Any:
    def body(total: Any, x: jax.Array) -> Any:
        return jax.tree.map(jnp.add, total, jax.grad(_unrolled_layers)(params, x)), None

    return lax.scan(body, jax.tree.map(jnp.zeros_like, params), xs)[0]


def _reshaped_in_loop(w: jax.Array, rows: jax.Array) -> jax.Array:
    return _read_in_loop(w, rows.reshape(8, 32, 64))


def _pair_scan(params: Any, x: jax.Array) -> jax.Array:
    """A linear recurrence by halves of the sequence."""
    decay, w = params
    decays = jax.nn.sigmoid(x * decay)
    scanned = lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decays, x), axis=1)
    return _square(scanned[1] @ w)


def _products(summed: int) -> Step:
    return lambda a, b: jnp.max(jnp.einsum("bik,bkj->bij", a, b)), (shape(4, 32, summed), shape(4, summed, 32))


_SQUARE = shape(64, 64)
STEPS: dict[str, Step] = {
    "element-wise": (lambda x: jnp.sqrt(x) * 2, (shape(32, 64),)),
    "tanh": _layers(jnp.tanh),
    "relu": _layers(jax.nn.relu),
    "sin": _layers(jnp.sin),
    "exact gelu": _layers(_gelu),
    "exact gelu of 16 bits": _layers(_gelu, HALF),
    "tanh gelu": _layers(jax.nn.gelu),
    "tanh gelu of 16 bits": _layers(jax.nn.gelu, HALF),
    "sin of 16 bits": _layers(jnp.sin, HALF),
    "recomputed": _layers(jnp.tanh, is_recomputed=True),
    "returned loss": _fitted(),
    "returned loss of 16 bits": _fitted(HALF),
    "norm": _trained(_normed_layer, _SQUARE, shape(32, 64)),
    "convolutions": _convolutions(),
    "convolutions of 16 bits": _convolutions(dtype=HALF),
    "cast images": _convolutions(dtype=HALF, data=jnp.float32),
    "strides": _convolutions(stride=2),
    "channel groups": _convolutions(groups=4),
    "exact gelu of images": _convolutions(_gelu),
    "residual convolutions": _trained(_residual_convolutions, [shape(3, 3, CHANNELS, CHANNELS)] * 3, _images()),
    "group norms of 16 bits": _group_norms(HALF),
    "group norms": _group_norms(jnp.float32),
    "branches of one pixel": _branches(1),
    "branches": _branches(3),
    "gate": _gated(),
    "gate without function": _gated(lambda x: x),
    "gate of channel groups": _gated(groups=4),
    "disjoint maxima": _pooled(),
    "disjoint maxima of 16 bits": _pooled(dtype=HALF),
    "overlapping maxima": _pooled(3),
    "disjoint means": _pooled(is_mean=True),
    "flattened images": _trained(_flattened, (shape(3, 3, CHANNELS, 8), shape(SIDE**2 * 8, 64)), _images()),
    "windows as rows": _patches(4),
    "pixels as rows": _patches(1),
    "attention": _attention(),
    "attention in 16 bits": _attention(scores=HALF),
    "shared heads": _attention(kv_heads=2),
    "plain attention": _attention(kv_heads=None),
    "scanned shared heads": _attention(kv_heads=2, is_scanned=True),
    "capped scores": _attention(kv_heads=None, cap=30.0),
    "mixer": _trained(_mixed, (shape(16, 64), shape(64, 128)), shape(32, 16, 64)),
    "two large tables": _tables(),
    "a large table": _tables(number=1),
    "small tables": _tables(rows=256),
    "large vocabulary": _vocabulary(2**15),
    "small vocabulary": _vocabulary(2**10),
    "one-hot experts": _trained(_experts, (shape(64, 8), shape(8, 64, 64)), shape(128, 64)),
    "ragged experts": (lax.ragged_dot, (shape(128, 64), shape(8, 64, 64), shape(8, dtype=jnp.int32))),
    "scanned layers": _trained(_scanned_layers, shape(4, 64, 64), shape(32, 64)),
    "unrolled layers": _trained(_unrolled_layers, [_SQUARE] * 4, shape(32, 64)),
    "returned states": _recurrent(),
    "returned sums": _recurrent(returns_states=False),
    "stacked twice": (_stacked_twice, (shape(64, 64), shape(8, 32, 64))),
    "sums of some rows": _added_where(True),
    "sums of rows": _added_where(False),
    "forward loop": (_read_in_loop, (_SQUARE, shape(8, 32, 64))),
    "forward loop over reshaped rows": (_reshaped_in_loop, (_SQUARE, shape(256, 64))),
    "micro-batches": (_micro_batches, ([_SQUARE] * 4, shape(4, 8, 64))),
    "pair scan": _trained(_pair_scan, (shape(64), _SQUARE), shape(8, 32, 64)),
    "outer products": _products(1),
    "inner products": _products(2),
}

APPLIES: dict[str, tuple[str, str]] = {
    "loops-read-and-make-buffers": ("scanned layers", "unrolled layers"),
    "constants-of-loops-are-no-copies": ("returned states", "scanned layers"),  # each trip reads its own slice
    "reshaped-arguments-are-no-copies": ("forward loop over reshaped rows", "forward loop"),
    "outer-products-are-multiplications": ("outer products", "inner products"),
    "reductions-compute-their-operands": ("norm", "tanh"),
    "residual-sums-are-written-once": ("residual convolutions", "convolutions"),
    "gated-images-are-written": ("gate", "gate without function"),
    "gated-images-of-channel-groups-are-written": ("gate of channel groups", "gate"),
    "masks-are-compared-again": ("relu", "tanh"),
    "weight-gradients-are-deferred": ("unrolled layers", "forward loop"),
    "weight-gradients-are-born-after-input-gradients": ("unrolled layers", "forward loop"),
    "kernel-gradients-are-deferred-to-the-next-dot": ("convolutions", "relu"),
    "input-gradients-come-first": ("large vocabulary", "small vocabulary"),
    "gradients-of-trips-are-added-at-once": ("micro-batches", "scanned layers"),  # one gradient a trip, stacked
    "gradients-wait-for-the-next-barrier": ("recomputed", "tanh"),
    "scatters-write-over-their-operand": ("a large table", "one-hot experts"),
    "branches-write-over-carries": ("sums of some rows", "sums of rows"),
    "carries-are-one-buffer": ("returned states", "unrolled layers"),
    "updates-are-gathered-into-donated-arguments": ("tanh", "forward loop"),
    "casts-travel-narrow": ("exact gelu of 16 bits", "exact gelu"),
    "look-ups-are-fused": ("small tables", "two large tables"),
    "scatters-compute-their-updates": ("a large table", "one-hot experts"),
    "disjoint-windows-compute-their-operand": ("disjoint maxima", "overlapping maxima"),
    "images-are-padded-in-copies": ("strides", "convolutions"),
    "merged-dots-are-added-to-nothing": ("attention", "tanh"),
    "gemm-accumulates-into-c": ("tanh", "norm"),
    "convolution-adds-side-input": ("branches of one pixel", "branches"),
    "summands-of-few-blocks-are-written": ("group norms of 16 bits", "group norms"),
    "dots-read-transposed-matrices-in-place": ("tanh", "forward loop"),
    "costly-functions-are-saved": ("tanh", "relu"),
    "trigonometry-of-16-bits-is-saved": ("sin of 16 bits", "tanh gelu of 16 bits"),
    "float32-tanh-of-one-fusion-is-recomputed": ("tanh gelu", "tanh gelu of 16 bits"),
    "arguments-of-erfc-are-saved": ("exact gelu of 16 bits", "tanh gelu of 16 bits"),
    "erfc-of-convolutions-recomputes-its-argument": ("exact gelu of images", "exact gelu"),
    "saved-functions-are-float32": ("exact gelu of 16 bits", "exact gelu"),
    "resharded-copies-are-saved-in-float32": ("group norms of 16 bits", "exact gelu of 16 bits"),  # a loss casts
    "losses-are-summed-with-gradients-or-late": ("returned loss", "tanh"),
    "losses-are-recomputed-for-gradients": ("returned loss", "tanh"),
    "logarithms-of-narrow-predictions-are-saved": ("returned loss of 16 bits", "returned loss"),
    "batched-dots-read-one-layout": ("shared heads", "plain attention"),
    "results-meet-transposed-in-float32": ("shared heads", "plain attention"),
    "one-fusion-writes-both-layouts": ("shared heads", "plain attention"),
    "stacks-are-transposed-between-loops": ("scanned shared heads", "scanned layers"),
    "reduce-scatters-of-a-trip-run-in-the-next": ("scanned layers", "tanh"),
    "exponentials-of-many-capped-scores-are-saved": ("", "capped scores"),
    "matrices-of-16-bits-are-padded": ("exact gelu of 16 bits", "exact gelu"),
    "pooling-gradients-write-indices": ("disjoint maxima", "disjoint means"),
    "poolings-of-16-bits-are-float32": ("disjoint maxima of 16 bits", "disjoint maxima"),
    "dots-have-workspace": ("tanh", "element-wise"),
    "zeros-of-carries-are-made-together": ("micro-batches", "forward loop"),
    "zeros-of-scatters-are-made-together": ("two large tables", "a large table"),
    "gradients-of-large-tables-take-turns": ("two large tables", "small tables"),
    "all-reduces-are-in-place": ("tanh", "element-wise"),
    "equal-stacks-of-a-loop-are-one": ("stacked twice", "returned sums"),
    "borders-of-images-are-multiplied": ("strides", "convolutions"),
    "ragged-dots-multiply-all-groups": ("ragged experts", "one-hot experts"),
    "ragged-dots-compute-their-rows": ("ragged experts", "one-hot experts"),
    "ragged-dots-read-masked-copies": ("ragged experts", "one-hot experts"),
    "fusions-write-over-operands": ("tanh", "element-wise"),
    "images-have-batch-and-features-innermost": ("convolutions", "relu"),
    "batched-dots-have-their-matrices-innermost": ("attention", "tanh"),
    "mixed-tokens-keep-tokens-and-features-innermost": ("mixer", "attention"),
    "dot-operands-of-loops-are-rounded-once": ("returned states", "forward loop"),  # all that it reads are arguments
    "dot-operands-travel-rounded": ("tanh", "tanh gelu of 16 bits"),
    "tables-are-rounded-whole": ("a large table", "one-hot experts"),
    "dots-compute-their-operands": ("tanh", "element-wise"),
    "rectifiers-of-sums-are-recomputed": ("residual convolutions", "tanh"),
    "widened-scores-are-kept-in-float32": ("attention", "attention in 16 bits"),
    "gradients-of-widened-scores-are-written": ("attention", "attention in 16 bits"),
    "backward-dots-write-what-is-computed-of-them": ("tanh", "forward loop"),
    "batches-of-rows-are-written": ("shared heads", "attention"),
    "images-are-transposed-for-dots": ("mixer", "windows as rows"),
    "flattened-images-are-written": ("flattened images", "branches"),
    "erfc-of-images-is-written": ("exact gelu of images", "exact gelu"),
    "reshapes-that-no-layout-frees-are-written": ("windows as rows", "pixels as rows"),
    "interleaving-pads-are-written": ("pair scan", "returned states"),
    "interleaved-sums-are-sliced-apart": ("pair scan", "returned states"),
    "strided-slices-read-buffers": ("pair scan", "returned states"),
    "buffers-are-saved-rather-than-their-slices": ("pair scan", "returned states"),
    "erf-and-trigonometry-are-saved": ("sin", "tanh"),
    "channel-groups-are-innermost": ("channel groups", "convolutions"),
    "images-whose-edges-are-sent-are-written": ("convolutions", "relu"),
    "stacks-of-loops-are-on-chip": ("returned states", "unrolled layers"),
    "images-of-arguments-are-written": ("cast images", "convolutions"),
    "convolutions-of-channel-groups-write-wide": ("", "convolutions of 16 bits"),
    "rearranged-values-are-written-widened": ("", "windows as rows"),
    "updates-of-scatters-are-transposed": ("", "a large table"),
    "kernels-read-and-write-memory": ("tanh", "element-wise"),
}
"""Rule -> a step that it finds something in (empty: models of the registry alone), and one in which it does not."""
