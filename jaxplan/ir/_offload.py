"""Arrays that live in the memory of the host between two uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxplan.ir._rule import OperatorRule

if TYPE_CHECKING:
    from jaxplan.ir._program import Program

_ELEMENTWISE = "elementwise"
LEAST_SHARE = 1e-3
"""Arguments of less than this share of all that could be offloaded stay on the device: they are not worth a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """The arguments that a plan keeps in the memory of the host.

    Each is donated and read by element-wise operators alone, and its successor goes back to the host. The kernel of the
    update reads such an argument from the host as it is; the successor is written on the device and copied to the host.

    Attributes:
      inputs: positions among the program's inputs, ascending.
      outputs: positions of the results that succeed them, in their order.
      of: how many could be offloaded.

    >>> str(Offload(inputs=(3, 4), outputs=(1, 2), of=2)), str(Offload(inputs=(3,), outputs=(1,), of=2))
    ('optimizer state on the host', 'optimizer state partly on the host')
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    of: int

    @property
    def cell(self) -> str:
        """The same in a column of a table on the state."""
        return "host" if len(self.inputs) == self.of else "part host"

    def __str__(self) -> str:
        return f"optimizer state {'' if len(self.inputs) == self.of else 'partly '}on the host"


def offloadable(
    program: Program, rules: Sequence[OperatorRule], consumers: Sequence[Sequence[int]], parameters: frozenset[int]
) -> dict[int, int]:
    """Position of each input that can live on the host -> that of its successor.

    These are donated state beside the parameters that element-wise operators alone read; the largest (`LEAST_SHARE`).
    """
    outputs = set(program.outputs)
    state = {pair.input: pair.output for pair in program.pairs if pair.is_state and pair.flow == "updated"}
    sizes = {
        i: program.tensors[t].num_bytes
        for i, t in enumerate(program.inputs)
        if i in state
        and program.donated[i]
        and t not in parameters
        and t not in outputs
        and program.outputs.count(program.outputs[state[i]]) == 1
        and consumers[t]
        and all(rules[e].family == _ELEMENTWISE for e in consumers[t])
    }
    least = LEAST_SHARE * sum(sizes.values())
    return {i: state[i] for i, size in sizes.items() if size and size >= least}
