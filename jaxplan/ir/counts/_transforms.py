"""Fourier transforms, sorts and scans along one dimension: arithmetic, and passes of the data through memory."""

from __future__ import annotations

import math

import numpy as np

from jaxplan.core import _compat
from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import register_count
from jaxplan.ir._registry import Aval, Avals, Params

_ON_CHIP_KEYS = 2048
"""Keys that one block of a GPU sorts without memory: the tile of CUB's block-wide sorts, 128 to 512 threads of 4 to 16
keys (https://nvidia.github.io/cccl/cub/)."""
_SCAN_PASSES = 2
_OPERATIONS = {"cumsum": 1, "cumprod": 1, "cummax": 1, "cummin": 1, "cumlogsumexp": 20}
"""Per combination; a logarithm of a sum of two exponentials is a maximum, two differences, two special functions."""


def num_bytes(avals: Avals) -> int:
    """Bytes of all of some tensors."""
    return sum(math.prod(aval.shape) * _compat.itemsize(aval.dtype) for aval in avals)


@register_count("fft", kind="5 n log2 n")
def fft(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """5 n log2 n per complex transform of n elements, half for a real one, a pass through memory per dimension.

    Source: Van Loan, "Computational Frameworks for the Fast Fourier Transform", section 1.4; the convention of
    https://www.fftw.org/speed/method.html .
    """
    lengths = params["fft_lengths"]
    n = math.prod(lengths)
    widest = max((*in_avals, *out_avals), key=lambda aval: math.prod(aval.shape))
    batch = math.prod(widest.shape[: len(widest.shape) - len(lengths)])
    is_real = not all(str(aval.dtype).startswith("complex") for aval in (in_avals[0], out_avals[0]))
    flops = batch * 5.0 * n * math.log2(max(n, 2)) / (2 if is_real else 1)
    passes = sum(length > 1 for length in lengths)
    moved = passes * num_bytes((*in_avals, *out_avals))
    return Count(vector=((str(out_avals[0].dtype), flops),), moved=moved, kernels=max(1, passes))


@register_count("sort", kind="n log2 n comparisons")
def sort(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """n log2 n comparisons per row; rows beyond `_ON_CHIP_KEYS` pass through memory once per merge, or per byte of the
    key where that is less (radix sort, 8 bits per pass: https://arxiv.org/abs/2206.01784)."""
    shape, axis = in_avals[0].shape, params["dimension"]
    comparisons = params.get("num_keys", 1) * _comparisons(shape, axis)
    passes = _sort_passes(in_avals[0], shape[axis])
    return Count(
        vector=((_key_dtype(in_avals[0]), comparisons),),
        moved=passes * num_bytes((*in_avals, *out_avals)),
        kernels=passes,
    )


def _comparisons(shape: tuple[int, ...], axis: int) -> float:
    return math.prod(shape) * math.log2(max(2, shape[axis]))


def _sort_passes(keys: Aval, length: int) -> int:
    if length <= _ON_CHIP_KEYS:
        return 1
    merges = 1 + math.ceil(math.log2(length / _ON_CHIP_KEYS))
    return min(merges, _compat.itemsize(keys.dtype))


def _key_dtype(aval: Aval) -> str:
    return "uint32" if _compat.is_key_dtype(aval.dtype) else str(aval.dtype)


@register_count("top_k", kind="n log2 k comparisons")
def top_k(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Each element is put into a heap of the k largest so far: log2 k comparisons, at least one."""
    return _selection(in_avals, math.log2(max(2, params["k"])))


@register_count("approx_top_k", kind="n comparisons")
def approx_top_k(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """One comparison per element, with the largest of its bin (https://arxiv.org/abs/2206.14286)."""
    return _selection(in_avals, 1.0)


def _selection(in_avals: Avals, per_element: float) -> Count:
    number = per_element * math.prod(in_avals[0].shape)
    return Count(vector=((_key_dtype(in_avals[0]), number),))


def _register(name: str, operations: int) -> None:
    @register_count(name, kind="2 n combinations")
    def count(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
        """A work-efficient scan combines twice per element, up and down a tree, each a pass through memory
        (Blelloch, "Prefix sums and their applications", 1990)."""
        number = 2.0 * operations * math.prod(in_avals[0].shape)
        moved = _SCAN_PASSES * num_bytes((*in_avals, *out_avals))
        return Count(vector=((str(np.dtype(in_avals[0].dtype)), number),), moved=moved)


for _name, _number in _OPERATIONS.items():
    _register(_name, _number)
