"""Parameters that are updated in parts, one on each device, and then gathered (ZeRO-1)."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from jaxplan.cost._transfers import Transfer


def gathered_updates(
    replaced: Container[int], num_equations: int, transfers: Sequence[Transfer]
) -> Iterator[Transfer]:
    """The transfers, after the last equation, that bring an input's successor to the sharding of the input."""
    for transfer in transfers:
        if transfer.tensor in replaced and transfer.spans[0].first == num_equations:
            yield transfer
