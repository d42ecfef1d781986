"""Random numbers: integer operations of counter-based generators, per word that they hash.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): Threefry 2x32 has 20 rounds of an addition, a
rotation (two shifts and an or) and an exclusive or, and a key of three words added after every four rounds; Philox 4x32
has 10 rounds of two wide multiplications (high and low half) and four exclusive ors, and two key additions.
"""

from __future__ import annotations

import math

from jaxplan.core import _compat
from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import register_count
from jaxplan.ir._registry import Aval, Avals, Params

_ROUNDS, _PER_ROUND = 20, 5
_INJECTIONS, _PER_WORD_OF_KEY, _ROUND_NUMBER = 5, 1, 1
THREEFRY_2X32 = _ROUNDS * _PER_ROUND + 2 + _INJECTIONS * (2 * _PER_WORD_OF_KEY + _ROUND_NUMBER)
"""Per block of two words."""
THREEFRY_4X32 = 2 * (_ROUNDS * _PER_ROUND) + 4 + _INJECTIONS * (4 * _PER_WORD_OF_KEY + _ROUND_NUMBER)
"""Per block of four words."""
PHILOX_2X32 = 10 * (2 + 2) + 9
PHILOX_4X32 = 10 * (4 + 4) + 9 * 2
"""Per block of two and of four words."""
_BLOCKS = {
    "threefry2x32": (THREEFRY_2X32, 2),
    "threefry4x32": (THREEFRY_4X32, 4),
    "philox2x32": (PHILOX_2X32, 2),
    "philox4x32": (PHILOX_4X32, 4),
}
_COMPILER = (PHILOX_4X32, 4)
"""XLA's own generator for `rbg` keys: Philox on GPUs and CPUs (`RngBitGenerator`); on TPUs an instruction."""
_PARTITIONABLE = "jax_threefry_partitionable"
_GAMMA_TRIES = 2
"""Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), table 1: less than 1.05 normal numbers
per result; the loop of a vector of 32 lanes runs until the last of them is accepted."""
_NORMAL = 64
"""A normal number from its bits: `erf_inv`, a shift, a cast, a scale and a shift of the mean."""


def _register_generator(name: str) -> None:
    per_block, words = _BLOCKS[name]

    @register_count(name, kind=f"{per_block} operations per {words} words")
    def count(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
        return _integer(per_block * math.prod(out_avals[0].shape))


for _name in _BLOCKS:
    _register_generator(_name)


@register_count("random_bits", kind="operations of the key's generator")
def random_bits(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Words of a result for each key; the partitionable Threefry hashes a block of two for each word of 32 bits."""
    return _integer(_operations_per_number(in_avals[0], params) * math.prod(out_avals[0].shape))


def _operations_per_number(key: Aval, params: Params) -> float:
    generator = _compat.key_implementation(key.dtype)
    per_block, words = _BLOCKS.get(generator, _COMPILER)
    num_words = max(1.0, params.get("bit_width", 32) / 32)
    if generator == "threefry2x32" and _compat.setting(_PARTITIONABLE):
        return per_block + 1  # both words of a block make one number
    return per_block * num_words / words


@register_count("random_seed", "random_fold_in", "random_split", kind="a block per key")
def random_keys(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """One block of the generator per new key."""
    per_block, _ = _BLOCKS.get(_compat.key_implementation(out_avals[0].dtype), _COMPILER)
    return _integer(per_block * math.prod(out_avals[0].shape))


@register_count("rng_bit_generator", kind="operations of the compiler's generator")
def rng_bit_generator(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Philox: a block of four words."""
    per_block, words = _COMPILER
    num_words = _compat.itemsize(out_avals[1].dtype) / 4
    return _integer(per_block / words * num_words * math.prod(out_avals[1].shape))


@register_count("rng_uniform", kind="operations of the compiler's generator")
def rng_uniform(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Bits, and two operations to scale them."""
    per_block, words = _COMPILER
    return _integer((per_block / words + 2) * math.prod(out_avals[0].shape))


@register_count("random_gamma", kind="rejection sampling")
def random_gamma(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Marsaglia and Tsang: per try a key is split, a normal and a uniform number are made."""
    per_try = 4 * (THREEFRY_2X32 + 1) + _NORMAL
    return _integer(_GAMMA_TRIES * per_try * math.prod(out_avals[0].shape))


def _integer(number: float) -> Count:
    return Count(vector=(("uint32", float(number)),), streams=True)
