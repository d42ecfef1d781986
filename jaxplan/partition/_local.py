"""Run one equation on the devices' own pieces, inside a manual region.

An equation runs so when one of its reduced factors is split, when the indices of a look-up or an update address a split
dimension, when windows (`_halo.py`) or the groups or blocks of a ragged dot (`_ragged.py`) are split, or when the
compiler would not split it by itself. What is left to do afterwards is to combine the pieces: a sum stays partial (the
plan's transfers take it where it is wanted), a maximum, minimum or product is combined on the spot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxplan.errors import RuleError
from jaxplan.ir import RAGGED_DOT, Equation, OperatorRule, local_params
from jaxplan.ir.attention import ATTENTIONS, sequence_factor
from jaxplan.partition._attention import attend
from jaxplan.partition._halo import run_windows
from jaxplan.partition._indexed import own_look_ups, own_updates
from jaxplan.partition._ragged import group_axes, run_ragged

_COMBINE: dict[str, Callable[[Any, tuple[str, ...]], Any]] = {
    "max": lax.pmax,
    "min": lax.pmin,
    "prod": lambda x, names: jnp.prod(lax.all_gather(x, names), axis=0, dtype=x.dtype),
}
_SHAPES_MSG = """\
primitive {name!r} applied to one device's pieces of shapes {ins} returned shapes {found}, and its rule says {expected}.
  likely cause: one of its parameters holds a size of a dimension that is split
  fix: give register_rule the argument local_params, a function that adapts the parameters to the pieces"""

Bind = Callable[[Mapping[str, Any], Sequence[Any]], list[Any]]
"""Applies the primitive: (parameters, operands) -> results."""


def runs_on_pieces(rule: OperatorRule, split: Collection[int]) -> bool:
    """Whether an equation with these factors split (by index) must run in a manual region."""
    by_hand = {factor for factor, _ in rule.indexed} | {window.factor for window in rule.windows}
    return bool(split) and (
        rule.manual or any(rule.factors[f].kind == "reduce" or f in by_hand for f in split)
    )


def run_local(
    eqn: Equation,
    rule: OperatorRule,
    bind: Bind,
    pieces: Sequence[Any],
    split: Mapping[int, tuple[str, ...]],
    out_shapes: Sequence[tuple[int, ...]],
) -> list[Any]:
    """Results of one equation from local pieces.

    Args:
      bind: applies the primitive.
      pieces: local operands.
      split: factor index -> mesh axes that split it.
      out_shapes: local shapes of the results.

    Returns:
      Results; where a summed factor is split they lack the sum over its axes.

    Raises:
      RuleError: the primitive returned other shapes, so its parameters do not fit the pieces.
    """
    reduced = {f: names for f, names in split.items() if rule.factors[f].reducer}
    in_shapes = [np.shape(piece) for piece in pieces]
    params = local_params(eqn.name, eqn.params, in_shapes, out_shapes)
    if rule.family == "scatter":
        pieces = [_count_once(pieces[0], rule, reduced), *pieces[1:]]
    if (attention := params.get("attention")) is not None and eqn.name in ATTENTIONS:
        axes = [names for f, names in split.items() if f == sequence_factor(rule, attention)]
        results = attend(attention, pieces, *(axes or [()]))
    elif any(f in split for f, _ in rule.indexed):
        on_own = own_look_ups if rule.family == "gather" else own_updates
        results = on_own(rule, bind, params, pieces, split)
    elif eqn.name == RAGGED_DOT:
        results = run_ragged(bind, params, pieces, group_axes(rule, params, split))
    elif any(window.factor in split for window in rule.windows):
        results = run_windows(eqn.name, rule, bind, params, pieces, split)
    else:
        results = bind(params, pieces)
    found = [np.shape(r) for r in results]
    if found != [tuple(shape) for shape in out_shapes]:
        raise RuleError(
            _SHAPES_MSG.format(name=eqn.name, ins=in_shapes, found=found, expected=list(out_shapes))
        )
    for f, names in reduced.items():
        combine = _COMBINE.get(rule.factors[f].reducer or "")
        if combine is not None:
            results = [combine(r, names) for r in results]
    return results


def _count_once(operand: Any, rule: OperatorRule, reduced: Mapping[int, tuple[str, ...]]) -> Any:
    """The operand of a scatter, on the first device of each group alone, or it would count again.

    A maximum or minimum may count as often as it likes.
    """
    for neutral, reducer in ((jnp.zeros_like, "sum"), (jnp.ones_like, "prod")):
        names = tuple(n for f, axes in reduced.items() if rule.factors[f].reducer == reducer for n in axes)
        if names:
            operand = jnp.where(lax.axis_index(names) == 0, operand, neutral(operand))
    return operand
