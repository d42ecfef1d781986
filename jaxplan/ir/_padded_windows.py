"""A sum over windows of a padded value is one operator with windows that reach beyond its operand.

JAX writes the gradient of average pooling as a padding with zeros, whole by nature, and a sum over windows of the
result. As one operator its image may be split.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxplan.ir._builder import Builder, keep, register_inline
from jaxplan.ir._program import Equation


@register_inline("reduce_window_sum")
def _inline_sum(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    pad = _padding_of(builder, operands[0])
    if pad is None or any(d != 1 for d in eqn.params["base_dilation"]):
        return keep(builder, eqn, operands, stack)
    config = pad.params["padding_config"]
    around = zip(config, eqn.params["padding"], strict=True)
    params = {
        **eqn.params,
        "padding": tuple((low + before, high + after) for (low, high, _), (before, after) in around),
        "base_dilation": tuple(holes + 1 for _, _, holes in config),
    }
    avals = [var.aval for var in eqn.outvars]
    return builder.append(eqn.primitive, params, [pad.operands[0]], avals, stack, eqn)


def _padding_of(builder: Builder, t: int) -> Equation | None:
    """The equation that pads a value with zeros, and cuts nothing, just before."""
    made = next((e for e in reversed(builder.equations[-2:]) if t in e.results), None)
    if made is None or made.name != "pad" or made.region != builder.region:
        return None
    value = builder.tensors[made.operands[1]].value
    is_zero = value is not None and not np.any(np.asarray(value))
    grows = all(low >= 0 and high >= 0 for low, high, _ in made.params["padding_config"])
    return made if is_zero and grows else None
