"""Order constraints: weight gradients that run after the input gradient that reads the same cotangent.

Of a vocabulary's output projection both read the cotangent of the logits, and the parameter, or the copy gathered for
it, is read for the last time by the input gradient. The TPU compiler was seen to gather it while the weight gradient
runs, and so to hold both.
"""

from __future__ import annotations

from jaxplan.partition._lowering import Order
from jaxplan.partition._resident import Resident


def find_orders(resident: Resident) -> tuple[Order, ...]:
    """Order constraints of a plan, from those that the prediction assumes (`jaxplan.xla.Buffers.behind`).

    They are asked for where less is held for longer than is freed by then. Where the input gradient is a partial sum
    (the vocabulary is split) only if the parameter is gathered again: the compiler keeps the order of the others by
    itself, and asked for it kept the logits of a Gemma for longer.
    """
    shardings = resident.shardings
    equations, written = shardings.graph.program.equations, resident.buffers.materialised
    again = {span.first for transfer in shardings.transfers if transfer.repeated for span in transfer.spans}

    def pays(e: int, first: int) -> bool:
        held = set(equations[e].operands) - set(equations[first].operands)
        is_less = sum(map(shardings.local_bytes, held)) < shardings.local_bytes(equations[e].results[0])
        return is_less and (first in again or not shardings.home(equations[first].results[0]).partial)

    def operand(e: int) -> int:
        """Position of an operand, one that is a buffer if there is any."""
        operands = equations[e].operands
        return max(range(len(operands)), key=lambda i: written[operands[i]])

    behind = resident.buffers.behind
    return tuple(Order(equation=e, after=first, operand=operand(e)) for e, first in behind.items() if pays(e, first))
