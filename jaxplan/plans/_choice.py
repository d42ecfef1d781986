"""A choice from a frontier, by name or number, checked before the search that it waits for."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from jaxplan.errors import ArgumentError

if TYPE_CHECKING:
    from jaxplan.mesh import Topology

POINT_NAMES = ("fastest", "knee", "leanest")
"""Points of every frontier; `jaxplan.strategies.reference_names` are the others that a choice can name."""


def point_number(which: Any) -> int | None:
    """The number of a point, given as an integer or in digits; None for anything else."""
    if isinstance(which, str):
        return int(which) if which.isascii() and which.isdigit() else None
    try:
        return None if isinstance(which, bool) else operator.index(which)
    except TypeError:
        return None


def check_choice(which: Any, topology: Topology, option: str = "choose") -> None:
    """Raise ArgumentError for a choice that no frontier on the topology has: neither a name of a plan nor a number.

    ``option``: the name under which it was given.
    """
    from jaxplan.strategies import reference_names

    names = (*POINT_NAMES, *reference_names(topology))
    number = point_number(which)
    if (number is None or number < 0) and (not isinstance(which, str) or which not in names):
        raise ArgumentError(
            f"{option}={which!r} is no choice from a frontier.\n"
            f"  expected: {', '.join(map(repr, names))} or a number from 0\n"
            f"  likely cause: a misspelt name, or a strategy of another topology than {topology.name}\n"
            "  fix: one of these"
        )
