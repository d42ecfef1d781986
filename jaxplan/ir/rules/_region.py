"""Rules of the equations through which values enter and leave loops and branches (`jaxplan.ir.Region`)."""

from __future__ import annotations

from jaxplan.ir._program import REGION_IN, REGION_OUT
from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.rules._builder import Factors


@register_rule(REGION_IN)
def region_in_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """An operand keeps its dimensions as it enters; the leading one of an operand sliced per trip is never split."""
    factors = Factors()
    inner = factors.add_all(out_avals[0].shape)
    outer = (factors.whole(in_avals[0].shape[0]), *inner) if params["role"] == "x" else inner
    return factors.rule([outer], [inner], "region", ((0,),))


@register_rule(REGION_OUT)
def region_out_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """A result keeps its dimensions as it leaves; the leading one of a result stacked over the trips is never split."""
    factors = Factors()
    if params["role"] == "y":
        inner = factors.add_all(in_avals[0].shape)
        outer = (factors.whole(out_avals[0].shape[0]), *inner)
        return factors.rule([inner], [outer], "region", ((0,),))
    inner = factors.add_all(out_avals[0].shape)
    return factors.rule([inner] * len(in_avals), [inner], "region", (tuple(range(len(in_avals))),))
