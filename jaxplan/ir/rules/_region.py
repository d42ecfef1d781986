"""Rules of the equations through which values enter and leave loops and branches (`jaxplan.ir.Region`)."""

from __future__ import annotations

from jaxplan.ir._program import REGION_IN, REGION_OUT
from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.rules._builder import Factors


@register_rule(REGION_IN)
def region_in_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """What enters keeps its dimensions; of an operand that is sliced per trip the leading one is never split."""
    factors = Factors()
    inner = factors.add_all(out_avals[0].shape)
    outer = (factors.whole(in_avals[0].shape[0]), *inner) if params["role"] == "x" else inner
    return factors.rule([outer], [inner], "region", ((0,),))


@register_rule(REGION_OUT)
def region_out_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """What leaves keeps its dimensions; of a result that is stacked over the trips the leading one is never split."""
    factors = Factors()
    if params["role"] == "y":
        inner = factors.add_all(in_avals[0].shape)
        outer = (factors.whole(out_avals[0].shape[0]), *inner)
        return factors.rule([inner], [outer], "region", ((0,),))
    inner = factors.add_all(out_avals[0].shape)
    return factors.rule([inner] * len(in_avals), [inner], "region", (tuple(range(len(in_avals))),))
