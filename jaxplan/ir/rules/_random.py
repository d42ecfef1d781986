"""Random numbers: keys are small and whole, the numbers may be made in any split.

That a device can make its own part of the numbers without the rest rests on `jax_threefry_partitionable`, the
default since JAX 0.5: a number depends on the key and its position only.
"""

from __future__ import annotations

from jaxplan.core._compat import key_implementation, setting
from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.rules._builder import Factors, leading_dims_rule, one_to_one_rule

_PARTITIONABLE = "jax_threefry_partitionable"
# Generators of numbers that depend on key and position alone.
_BY_POSITION = frozenset({"threefry2x32"})


@register_rule("random_bits", "random_split")
def random_bits_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Keys of shape k to numbers (or keys) of shape ``k i j``: new dimensions are mapped, from nothing.

    With another generator, or without `jax_threefry_partitionable`, a number depends on the whole shape: whole.
    """
    is_by_position = key_implementation(in_avals[0].dtype) in _BY_POSITION and setting(_PARTITIONABLE)
    num_key_dims, shape = len(in_avals[0].shape), out_avals[0].shape
    factors = Factors()
    dims = factors.add_except(shape, () if is_by_position else range(num_key_dims, len(shape)))
    return factors.rule([dims[:num_key_dims]], [dims], "rng")


@register_rule(
    "random_seed",
    "random_fold_in",
    "random_clone",
    "threefry2x32",
    "threefry4x32",
    "philox2x32",
    "philox4x32",
)
def random_elementwise_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """One output per key or counter."""
    return one_to_one_rule(in_avals, out_avals, family="rng")


@register_rule("random_wrap", "random_unwrap")
def random_wrap_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Keys against their words: the words are one more dimension, whole."""
    num_keys_dims = min(len(in_avals[0].shape), len(out_avals[0].shape))
    return leading_dims_rule(in_avals, out_avals, num_leading=num_keys_dims, family="rng")


@register_rule("random_gamma")
def random_gamma_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``k, k i -> k i`` with i whole: one key makes numbers in a loop until the last of them is accepted."""
    num_key_dims = len(in_avals[0].shape)
    return leading_dims_rule(in_avals, out_avals, num_leading=num_key_dims, family="rng", manual=True)


@register_rule("rng_bit_generator", "rng_uniform")
def sequential_random_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Generators of the compiler: each number depends on the whole shape, so nothing is split."""
    factors = Factors()
    operands = [factors.add_except(aval.shape, range(len(aval.shape))) for aval in in_avals]
    results = [factors.add_except(aval.shape, range(len(aval.shape))) for aval in out_avals]
    return factors.rule(operands, results, "rng")


@register_rule("iota_2x32_shape")
def counter_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """The positions that the generator hashes, two words each: made from nothing, in any split."""
    factors = Factors()
    dims = factors.add_all(out_avals[0].shape)
    return factors.rule([], [dims] * len(out_avals), "source")
