"""Fused attention and recurrent layers of cuDNN, which are one call to a library."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import register_count
from jaxplan.ir._registry import Aval, Avals, Params

_HEADS_FIRST = 1
"""Value of the parameter ``layout`` for batch, heads, time, width; 0 is batch, time, heads, width."""
_CAUSAL_MASKS = (2, 3)
"""``MaskType.CAUSAL`` and ``PADDING_CAUSAL`` of JAX's cuDNN attention."""
_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5
"""Dots of queries x keys x width: scores and weighted values; the backward pass computes scores again and makes
four gradients of dots (Dao, "FlashAttention-2", section 4.1: 2.5 times the forward pass)."""
_SOFTMAX_OPERATIONS = 20
"""Per score: scale, mask, maximum, difference, exponential (eight), sum, cast, and the same once more as rescaling."""


@register_count("dot_product_attention_fwd", "dot_product_attention_fwd_wrapper", kind="two dots")
@register_count("dot_product_attention_fp8_fwd", "dot_product_attention_fp8_fwd_wrapper", kind="two dots")
def forward(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Scores and weighted values; masked blocks of scores are skipped."""
    return _attention(in_avals, params, _FORWARD_PRODUCTS)


@register_count("dot_product_attention_bwd", "dot_product_attention_bwd_wrapper", kind="five dots")
@register_count(
    "dot_product_attention_fp8_bwd", "dot_product_attention_fp8_bwd_wrapper", kind="five dots"
)
def backward(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Scores again, and the gradients of values, weights, queries and keys."""
    return _attention(in_avals, params, _BACKWARD_PRODUCTS)


def _attention(in_avals: Avals, params: Params, dots: int) -> Count:
    query, key, value = in_avals[:3]
    heads, queries, width = _dims(query, params)
    _, keys, _ = _dims(key, params)
    scores = query.shape[0] * heads * _score_pairs(queries, keys, params)
    of_keys, of_values = (dots + 1) // 2, dots // 2
    flops = 2.0 * scores * (of_keys * width + of_values * value.shape[-1])
    dtype = str(query.dtype)
    return Count(matrix=((dtype, flops),), vector=(("float32", float(_SOFTMAX_OPERATIONS * scores)),))


def _dims(aval: Aval, params: Params) -> tuple[int, int, int]:
    """Heads, positions and width of one sequence."""
    _, first, second, width = aval.shape
    return (first, second, width) if params["layout"] == _HEADS_FIRST else (second, first, width)


def _score_pairs(queries: int, keys: int, params: Params) -> int:
    """Pairs of a query and a key that are not masked by position: a causal mask hides later keys, a sliding window
    those that are too far behind."""
    mask = params.get("mask_type")
    is_causal = bool(params.get("use_causal_mask")) or getattr(mask, "value", mask) in _CAUSAL_MASKS
    window = params.get("sliding_window_length") or 0
    if not is_causal:
        return queries * keys
    ahead = keys - queries
    seen = (min(keys, max(0, i + 1 + ahead)) for i in range(queries))
    return sum(min(n, window) if window > 0 else n for n in seen)


@register_count("rnn_fwd", kind="dots of an LSTM")
def rnn_forward(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Four gates of every layer and direction read the layer below and the hidden state."""
    return _lstm(in_avals[0], params, 1)


@register_count("rnn_bwd", kind="dots of an LSTM")
def rnn_backward(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Gradients of inputs and of weights: twice the dots of the forward pass."""
    return _lstm(in_avals[3], params, 2)


def _lstm(x: Aval, params: Params, passes: int) -> Count:
    hidden, directions = params["hidden_size"], 1 + params["bidirectional"]
    widths: Sequence[int] = [params["input_size"], *[directions * hidden] * (params["num_layers"] - 1)]
    weights = sum(directions * 4 * hidden * (width + hidden) for width in widths)
    steps = math.prod(x.shape[:-1])
    return Count(matrix=((str(x.dtype), 2.0 * passes * steps * weights),), kernels=x.shape[1] * len(widths))
