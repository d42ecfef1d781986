"""Parameters that are updated in parts, one on each device, and then gathered (ZeRO-1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jaxplan.cost._transfers import Transfer
from jaxplan.ir import Program


def replaced_in_place(program: Program) -> dict[int, int]:
    """Tensor index of an output -> that of the donated input that gives it its buffer."""
    return {program.outputs[o]: program.inputs[i] for o, i in program.aliases.items() if program.donated[i]}


def gathered_updates(
    replaced: Mapping[int, int], num_equations: int, transfers: Sequence[Transfer]
) -> Iterator[Transfer]:
    """The transfers, after the last equation, that bring an input's successor to the sharding of the input."""
    for transfer in transfers:
        if transfer.tensor in replaced and transfer.spans[0].first == num_equations:
            yield transfer
