"""Operators that only their author can describe: foreign functions, callbacks, and those that act on the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxplan.ir._registry import Avals, Params, register_local_params, register_rule, unknown_rule
from jaxplan.ir._rule import OperatorRule, Shape
from jaxplan.ir.rules._builder import leading_dims_rule

# Their semantics is in the user's Python or binary; a name of its own in the registry splits a foreign function.
WHOLE_BY_NATURE = (
    "buffer_callback",
    "call_exported",
    "cholesky_update",
    "compute_on",
    "cudnn_fusion",
    "custom_lin",
    "dce_sink",
    "debug_callback",
    "debug_print",
    "dot_product_attention_fp8_bwd",
    "dot_product_attention_fp8_bwd_wrapper",
    "dot_product_attention_fp8_fwd",
    "dot_product_attention_fp8_fwd_wrapper",
    "fused_call",
    "inspect_sharding",
    "io_callback",
    "pure_callback",
    "rnn_bwd",
    "rnn_fwd",
)


@register_rule(*WHOLE_BY_NATURE)
def whole_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Nothing is split: run replicated, known to be."""
    return leading_dims_rule(in_avals, out_avals, num_leading=0, family="opaque")


@register_rule("ffi_call")
def foreign_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """A foreign function that nobody described: the plan says so."""
    return unknown_rule(in_avals, out_avals)


@register_local_params("ffi_call")
def ffi_call_params(
    params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]
) -> dict[str, Any]:
    """A foreign function is told the shapes of its results."""
    avals = [aval.update(shape=tuple(shape)) for shape, aval in zip(out_shapes, params["result_avals"])]
    return {**params, "result_avals": tuple(avals)}
