"""Parameters that are updated in parts, one on each device, and then gathered (ZeRO-1)."""

from __future__ import annotations

from collections.abc import Container

from jaxplan.cost._transfers import Transfer


def is_gathered_update(replaced: Container[int], num_equations: int, transfer: Transfer) -> bool:
    """Whether a transfer brings, after the last equation, an input's successor to the sharding of the input."""
    return transfer.tensor in replaced and transfer.spans[0].first == num_equations
