"""Operators with results that depend on where a piece lies: iota, random bits, and keys that are split off.

Element i of the random bits of one key is a hash of the key and of i, the flat index in the whole array
(`jax_threefry_partitionable`), so a device that starts to count at its own piece draws the bits of a single device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import random as jex_random

_HALF = 16
"""Bits of half a word."""
_LOW = (1 << _HALF) - 1
_WORD = 1 << (2 * _HALF)
_WIDTHS = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}


class Piece(NamedTuple):
    """A piece of an array: shape of the whole, its own, and per dimension the position of its first element."""

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    starts: Sequence[Any]


Positional = Callable[[Mapping[str, Any], Sequence[Any], Piece], list[Any]]
"""(parameters, local operands, piece of the result) -> local results."""


def _iota(params: Mapping[str, Any], _: Sequence[Any], piece: Piece) -> list[Any]:
    dimension, dtype = params["dimension"], params["dtype"]
    start = piece.starts[dimension]
    if isinstance(start, int):
        return [lax.broadcasted_iota(dtype, piece.shape, dimension)]
    counts = lax.broadcasted_iota(jnp.int32, piece.shape, dimension) + start
    return [lax.convert_element_type(counts, dtype)]


def _counter(params: Mapping[str, Any], _: Sequence[Any], piece: Piece) -> list[Any]:
    return list(counters(piece))


def _random_bits(params: Mapping[str, Any], operands: Sequence[Any], piece: Piece) -> list[Any]:
    high, low = _hashed(operands[0], piece)
    width = params["bit_width"]
    dtype = _WIDTHS[width]
    if width == 64:
        return [lax.shift_left(high.astype(dtype), dtype(32)) | low.astype(dtype)]
    return [(high ^ low).astype(dtype)]


def _random_split(params: Mapping[str, Any], operands: Sequence[Any], piece: Piece) -> list[Any]:
    words = jnp.stack(_hashed(operands[0], piece), axis=-1)
    return [jax.random.wrap_key_data(words, impl=jax.random.key_impl(operands[0]))]


POSITIONAL: dict[str, Positional] = {
    "iota": _iota,
    "iota_2x32_shape": _counter,
    "random_bits": _random_bits,
    "random_split": _random_split,
}
"""Primitive -> its results on a piece. Random primitives: of threefry keys alone, the only ones that are split."""


def _hashed(keys: Any, piece: Piece) -> tuple[Any, Any]:
    """The two words of each position of each key."""
    leading = len(np.shape(keys))
    words = jax.random.key_data(keys)
    ones = (1,) * (len(piece.shape) - leading)
    first, second = (jnp.reshape(words[..., i], (*np.shape(keys), *ones)) for i in (0, 1))
    counts = counters(Piece(piece.whole[leading:], piece.shape[leading:], piece.starts[leading:]))
    operands = [jnp.broadcast_to(x, piece.shape) for x in (first, second, *counts)]
    high, low = jex_random.threefry2x32_p.bind(*operands)
    return high, low


def counters(piece: Piece) -> tuple[Any, Any]:
    """High and low word of the flat index, in the whole array, of each element of a piece: two uint32 arrays."""
    high = low = jnp.zeros(piece.shape, jnp.uint32)
    stride = 1
    for dim in reversed(range(len(piece.shape))):
        index = lax.broadcasted_iota(jnp.uint32, piece.shape, dim) + jnp.asarray(piece.starts[dim]).astype(jnp.uint32)
        more_high, more_low = _times(index, stride)
        total = low + more_low
        high = high + more_high + (total < low).astype(jnp.uint32)
        low = total
        stride *= piece.whole[dim]
    return high, low


def _times(x: Any, factor: int) -> tuple[Any, Any]:
    """High and low word of a product of a word and a number below 2**64, modulo 2**64."""
    word = jnp.uint32
    if factor == 1:
        return jnp.zeros_like(x), x
    high, low = word(factor // _WORD % _WORD), factor % _WORD
    half = [word(low & _LOW), word(low >> _HALF)]
    parts = [x & word(_LOW), x >> word(_HALF)]
    lower = parts[0] * half[0]
    crossed = [parts[0] * half[1], parts[1] * half[0]]
    middle = (lower >> word(_HALF)) + (crossed[0] & word(_LOW)) + (crossed[1] & word(_LOW))
    carried = (
        parts[1] * half[1]
        + (crossed[0] >> word(_HALF))
        + (crossed[1] >> word(_HALF))
        + (middle >> word(_HALF))
    )
    return carried + x * high, (middle << word(_HALF)) | (lower & word(_LOW))
