"""Fused attention of cuDNN: a batch of heads, each by itself.

Layouts and operands: https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html with
``implementation="cudnn"``.
"""

from __future__ import annotations

from jaxplan.ir._registry import Aval, Avals, Params, register_rule
from jaxplan.ir._rule import Dimension, OperatorRule, TensorFactors
from jaxplan.ir.rules._builder import Factors, leading_dims_rule

_HEADS_FIRST = 1
"""Value of the parameter ``layout`` for batch, heads, time, width; 0 is batch, time, heads, width."""
_BIAS, _Q_SEQLEN, _KV_SEQLEN, _Q_OFFSETS, _FIRST_OPTIONAL = 3, 4, 5, 6, 10
_NUM_GRADIENTS = 3


@register_rule("dot_product_attention_fwd", "dot_product_attention_fwd_wrapper")
def forward_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b t h d, b s h d, b s h d ... -> b t h d, b h t`` with b and h mapped.

    Operands: query, key, value, bias, lengths and offsets of sequences, page tables; those not used are empty.
    """
    if _is_packed(in_avals):
        return leading_dims_rule(in_avals, out_avals, num_leading=0, family="attention")
    space = _Heads(in_avals, params)
    results = [space.tensor(out_avals[0]), *map(space.statistics, out_avals[1:])]
    return space.factors.rule(space.operands(in_avals), results, "attention")


@register_rule("dot_product_attention_bwd", "dot_product_attention_bwd_wrapper")
def backward_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """The gradient: operands of the forward pass, its statistics, its result and the cotangent of that."""
    if (
        _is_packed(in_avals) or len(out_avals) > _NUM_GRADIENTS
    ):  # a bias's gradient sums over the dimensions it was broadcast to
        return leading_dims_rule(in_avals, out_avals, num_leading=0, family="attention")
    space = _Heads(in_avals, params)
    statistics, *tensors = in_avals[_FIRST_OPTIONAL:]
    operands = [
        *space.operands(in_avals[:_FIRST_OPTIONAL]),
        space.statistics(statistics),
        *map(space.tensor, tensors),
    ]
    return space.factors.rule(
        operands, list(map(space.tensor, out_avals)), "attention", ((len(in_avals) - 1,),)
    )


def _is_packed(in_avals: Avals) -> bool:
    """Several sequences in one row: their offsets count through the whole batch."""
    return any(0 not in aval.shape and aval.shape for aval in in_avals[_Q_OFFSETS:_FIRST_OPTIONAL])


class _Heads:
    """Factors of the batch and of the heads; where queries have more heads, groups of them share one of the keys'."""

    def __init__(self, in_avals: Avals, params: Params) -> None:
        self._axis = 1 if params["layout"] == _HEADS_FIRST else 2
        query, key = in_avals[0].shape, in_avals[1].shape
        self._num_heads = key[self._axis]
        self.factors = Factors()
        self._batch, self._head = self.factors.add(query[0]), self.factors.add(self._num_heads)

    def operands(self, in_avals: Avals) -> list[TensorFactors]:
        """All but those that only the backward pass has."""
        tensors = [self.tensor(aval) for aval in in_avals[:_BIAS]]
        return [*tensors, self.statistics(in_avals[_BIAS]), *map(self._per_row, in_avals[_BIAS + 1 :])]

    def tensor(self, aval: Aval) -> TensorFactors:
        """Factors of query, key, value, and other arrays of their shape."""
        return tuple(
            self._batch
            if axis == 0
            else self._heads(size)
            if axis == self._axis
            else self.factors.whole(size)
            for axis, size in enumerate(aval.shape)
        )

    def statistics(self, aval: Aval) -> TensorFactors:
        """Batch, heads, time: softmax statistics and the bias, which may have one row or head for all."""
        if len(aval.shape) < _BIAS:
            return self._per_row(aval)
        leading = [
            () if size == 1 else dim
            for size, dim in zip(aval.shape, (self._batch, self._heads(aval.shape[1])))
        ]
        return (*leading, *map(self.factors.whole, aval.shape[2:]))

    def _per_row(self, aval: Aval) -> TensorFactors:
        is_batch = len(aval.shape) == 1 and self._batch and aval.shape[0] == self.factors.size(self._batch)
        return (self._batch,) if is_batch else tuple(map(self.factors.whole, aval.shape))

    def _heads(self, size: int) -> Dimension:
        if size == 1:
            return ()
        if size % self._num_heads:
            return self.factors.whole(size)
        return self._head + self.factors.whole(size // self._num_heads)
