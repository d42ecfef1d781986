"""Random numbers: keys are small and whole, the numbers may be made in any split.

That a device can make its own part of the numbers without the rest rests on `jax_threefry_partitionable`, the
default since JAX 0.5: a number depends on the key and its position only.
"""

from __future__ import annotations

from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.rules._builder import Factors, leading_dims_rule, one_to_one_rule


@register_rule("random_bits", "random_split")
def random_bits_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Keys of shape k to numbers (or keys) of shape ``k i j``: new dimensions are mapped, from nothing."""
    factors = Factors()
    dims = factors.add_all(out_avals[0].shape)
    return factors.rule([dims[: len(in_avals[0].shape)]], [dims], "rng")


@register_rule(
    "random_seed",
    "random_fold_in",
    "random_clone",
    "random_gamma",
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


@register_rule("rng_bit_generator", "rng_uniform")
def sequential_random_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Generators of the compiler: what a number is depends on the whole shape, so nothing is split."""
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
