"""`jax.experimental.custom_partitioning`: the operator brings a sharding rule of its own, in Shardy's notation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxplan.errors import RuleError
from jaxplan.ir._registry import Avals, Params, register_rule, unknown_rule
from jaxplan.ir._rule import Dimension, OperatorRule, Shape
from jaxplan.ir.rules._builder import Factors

_BATCHING = "…"
"""Begins the name of a run of leading dimensions in a sharding rule."""


@register_rule("custom_partitioning")
def custom_partitioning_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """The operator's ``sharding_rule``, its factors of results mapped and all others whole.

    Reduced factors are whole because the operator's own ``partition`` function takes the sum: the result is no
    partial result. Without a rule, or with one that asks for the mesh, nothing is split, and the plan says so; a
    description registered for ``custom_partitioning`` replaces this rule.
    """
    given: Any = params.get("sharding_rule")
    if not hasattr(given, "operand_mappings"):
        return unknown_rule(in_avals, out_avals)
    shapes = [tuple(aval.shape) for aval in (*in_avals, *out_avals)]
    mappings = [*given.operand_mappings, *given.result_mappings]
    if len(mappings) != len(shapes):
        raise RuleError(f"the sharding rule has {len(mappings)} tensors, and the operator has {len(shapes)}")
    tensors = [_expanded(mapping, shape) for mapping, shape in zip(mappings, shapes)]
    results = {name for tensor in tensors[len(in_avals) :] for dim in tensor for name in dim}
    fixed = {*given.reduction_factors, *given.need_replication_factors, *given.permutation_factors}
    sizes = _sizes(tensors, shapes, given.factor_sizes)
    factors, index = Factors(), dict[str, Dimension]()
    for name, size in sizes.items():
        index[name] = factors.add(size, "map" if name in results and name not in fixed else "whole")
    dims = [tuple(_joined(index, names) for names in tensor) for tensor in tensors]
    return factors.rule(dims[: len(in_avals)], dims[len(in_avals) :], "opaque")


def _expanded(mapping: Sequence[Any], shape: Shape) -> list[tuple[str, ...]]:
    """Per dimension the names of its factors; a run of leading dimensions is numbered from its end."""
    rest = [(entry,) if isinstance(entry, str) else tuple(entry) for entry in mapping]
    if not rest or not rest[0][0].startswith(_BATCHING):
        return rest
    run = rest[0][0]
    num_leading = len(shape) - len(rest) + 1
    return [(f"{run}{num_leading - i}",) for i in range(num_leading)] + rest[1:]


def _sizes(
    tensors: Sequence[Sequence[tuple[str, ...]]], shapes: Sequence[Shape], given: Mapping[str, int]
) -> dict[str, int]:
    """Size of every factor: that of the dimension that it is alone in, or the one that is given."""
    sizes = dict(given)
    for tensor, shape in zip(tensors, shapes):
        if len(tensor) != len(shape):
            raise RuleError(f"the sharding rule has {len(tensor)} dimensions for a tensor of shape {shape}")
        for names, size in zip(tensor, shape):
            if len(names) == 1:
                sizes.setdefault(names[0], size)
    return sizes


def _joined(index: Mapping[str, Dimension], names: Sequence[str]) -> Dimension:
    return tuple(factor for name in names for factor in index[name])
