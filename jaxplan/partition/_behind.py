"""Gradients of parameters behind the input gradient that is computed of the same.

Of a vocabulary's output projection both are computed of the logits' gradient, and the parameter, or the copy that was
gathered for it, is read for the last time by the input gradient. The TPU compiler was seen to gather it while it makes
the parameter's gradient, and so to hold both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jaxplan.cost import Transfer
from jaxplan.ir import Equation, StepGraph
from jaxplan.mesh import Sharding
from jaxplan.partition._evaluation import Evaluation


def products_behind(
    graph: StepGraph,
    behind: Mapping[int, int],
    local_bytes: Callable[[int, Sharding | None], int],
    home: Callable[[int], Sharding],
    transfers: Collection[Transfer],
) -> dict[int, int]:
    """Products that make the gradient of a large parameter, and are to run behind an input gradient.

    Args:
      behind: those that are predicted to (`jaxplan.cost.Buffers.behind`).
      local_bytes: tensor index, layout (None: that in which it is made) -> bytes of it on one device.
      home: tensor index -> layout in which it is made.
      transfers: all of the plan.

    Returns:
      Equation -> the product that comes first, where less is held for longer than is gone by then. Where the input
      gradient is a partial sum (the vocabulary is split) only those for which the parameter is gathered again: the
      compiler keeps the others' order by itself, and asked for it kept the logits of a Gemma for longer.
    """
    equations = graph.program.equations
    again = {span.first for transfer in transfers if transfer.repeated for span in transfer.spans}

    def pays(e: int, first: int) -> bool:
        held = set(equations[e].operands) - set(equations[first].operands)
        is_less = sum(local_bytes(t, None) for t in held) < local_bytes(equations[e].results[0], None)
        return is_less and (first in again or not home(equations[first].results[0]).partial)

    return {e: first for e, first in behind.items() if pays(e, first)}


def run_behind(
    run: Evaluation,
    eqn: Equation,
    first: int,
    operands: Sequence[Any],
    shardings: Sequence[Sharding],
    written: Sequence[bool],
) -> list[Any]:
    """Operands of a product that runs behind ``first``, which is evaluated now: one depends on its result.

    ``written`` says per tensor whether it is a buffer of its own.
    """
    (result,) = run.program.equations[first].results
    run.evaluate_early(first)
    operands = list(operands)
    position = max(range(len(operands)), key=lambda i: written[eqn.operands[i]])
    operands[position] = run.executor.behind(
        operands[position], shardings[position], run.env[result], run.home(result)
    )
    return operands
