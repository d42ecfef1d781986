"""Arrays that live in the memory of the host between two uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jaxplan.ir._barriers import backward_barriers
from jaxplan.ir._blocks import turning_point
from jaxplan.ir._rule import OperatorRule

if TYPE_CHECKING:
    from jaxplan.ir._program import Program
    from jaxplan.ir._values import Values

_ELEMENTWISE = "elementwise"
LEAST_SHARE = 1e-3
"""Arguments of less than this share of all that could be offloaded stay on the device: they are not worth a copy."""

LEAST_OPERAND = 0.01
"""... and so do operands of a recomputed region of less than this share of its largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """The arrays that a plan keeps in the memory of the host between two uses.

    An argument is donated and read by element-wise operators alone, and its successor goes back to the host. The kernel
    of the update reads it from the host as it is; the successor is written on the device and copied to the host.

    A recomputed region of the backward pass keeps its operands behind a barrier (`jaxplan.ir._remat`,
    `jax.checkpoint`): those of the first regions, in the order of the forward pass, wait on the host
    (`waiting_values`).

    Attributes:
      inputs: positions among the program's inputs, ascending.
      outputs: positions of the results that succeed them, in their order.
      of: how many could be offloaded.
      regions: number of regions whose operands wait on the host, of ``regions_of``.

    >>> str(Offload(inputs=(3, 4), outputs=(1, 2), of=2)), str(Offload(inputs=(3,), outputs=(1,), of=2))
    ('optimizer state on the host', 'optimizer state partly on the host')
    >>> str(Offload(regions=5, regions_of=6))
    'activations of 5 of 6 recomputed blocks on the host'
    """

    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    of: int = 0
    regions: int = 0
    regions_of: int = 0

    @property
    def cell(self) -> str:
        """The arguments among them, in a column of a table on the state."""
        return "host" if self.inputs and len(self.inputs) == self.of else "part host" if self.inputs else ""

    def __str__(self) -> str:
        state = f"optimizer state{'' if len(self.inputs) == self.of else ' partly'}" if self.inputs else ""
        blocks = f"activations of {self.regions} of {self.regions_of} recomputed blocks" if self.regions else ""
        return f"{' and '.join(filter(None, (state, blocks)))} on the host"


class Waiting(NamedTuple):
    """A value of the forward pass that a recomputed region reads, the equation of its barrier, and the result there."""

    tensor: int
    barrier: int
    copy: int


def waiting_values(program: Program, values: Values, stored: frozenset[int]) -> tuple[tuple[Waiting, ...], ...]:
    """For each recomputed region, in the order of the forward pass, the values that could wait for it on the host.

    Values that anything else of the backward pass reads stay, and so do small ones (`LEAST_OPERAND`).
    """
    turning, equations, tensors = turning_point(program), program.equations, program.tensors
    outputs, found = set(program.outputs), []
    for barrier in backward_barriers(program):
        of = []
        for e in barrier:
            (t,), made = equations[e].operands, values.producer[equations[e].operands[0]]
            is_whole = made >= 0 and equations[made].region < 0 and equations[e].region < 0
            is_forward = is_whole and equations[made].phase == "forward" and made < turning
            others = [c for c in values.consumers[t] if c != e]
            if is_forward and not values.free[t] and t not in stored | outputs and all(c < turning for c in others):
                of.append(Waiting(t, e, equations[e].results[0]))
        most = max((tensors[w.tensor].num_bytes for w in of), default=0)
        of = [w for w in of if tensors[w.tensor].num_bytes >= max(1, LEAST_OPERAND * most)]
        found += [tuple(of)] if of else []
    return tuple(sorted(found, key=lambda of: min(values.producer[w.tensor] for w in of)))


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
