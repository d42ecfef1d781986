"""Arguments that their owner has put in the memory of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxplan.core import _compat

PINNED, UNPINNED = "pinned_host", "unpinned_host"


def lives_on_host(leaf: Any) -> bool:
    """Whether an array, or an abstract one with a sharding, is in the memory of the host by its memory kind.

    CPUs may call their own memory ``unpinned_host``: arrays there are on the device.

    Example:
      >>> import numpy as np
      >>> lives_on_host(np.ones(4))
      False
    """
    if isinstance(leaf, _compat.Tracer):
        return False
    sharding = getattr(leaf, "sharding", None)
    kind = getattr(sharding, "memory_kind", None)
    if kind == UNPINNED:
        devices = getattr(sharding, "device_set", None) or ()
        return all(device.default_memory().kind != UNPINNED for device in devices)
    return kind == PINNED


def on_host(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the arguments that live there."""
    return tuple(i for i, leaf in enumerate(leaves) if lives_on_host(leaf))
