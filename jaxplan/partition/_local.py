"""Run one equation on the devices' own pieces, inside a manual region, when one of its reduced factors is split.

Contractions, reductions and scatter-adds apply to local pieces as they are: their parameters hold no sizes of split
dimensions. What is left to do is to combine the pieces: a sum stays partial (the plan's transfers take it where it
is wanted), a maximum, minimum or product is combined on the spot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxplan.ir import Equation, OperatorRule

_COMBINE: dict[str, Callable[[Any, tuple[str, ...]], Any]] = {
    "max": lax.pmax,
    "min": lax.pmin,
    "prod": lambda x, names: jnp.prod(lax.all_gather(x, names), axis=0),
}


def run_local(
    eqn: Equation,
    rule: OperatorRule,
    bind: Callable[[Sequence[Any]], list[Any]],
    pieces: Sequence[Any],
    reduced: dict[int, tuple[str, ...]],
) -> list[Any]:
    """Results of one equation from local pieces.

    Args:
      bind: applies the primitive.
      pieces: local operands.
      reduced: factor index -> mesh axes that split it, reduce factors only.

    Returns:
      Results; where a summed factor is split they lack the sum over its axes.
    """
    sums = tuple(n for f, names in reduced.items() if rule.factors[f].reducer == "sum" for n in names)
    if rule.family == "scatter" and sums:
        pieces = [_count_once(pieces[0], sums), *pieces[1:]]
    results = bind(pieces)
    for f, names in reduced.items():
        combine = _COMBINE.get(rule.factors[f].reducer or "")
        if combine is not None:
            results = [combine(r, names) for r in results]
    return results


def _count_once(operand: Any, names: tuple[str, ...]) -> Any:
    """A scatter adds to its operand: only the first device of each group may hold it, or it would be summed again."""
    return jnp.where(lax.axis_index(names) == 0, operand, jnp.zeros_like(operand))
