"""Bring arguments to where the plan wants them, and say once which of them had to move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, SingleDeviceSharding

from jaxplan.core import _compat
from jaxplan.core._log import logger
from jaxplan.core._units import counted, format_bytes
from jaxplan.errors import PlanMismatchError
from jaxplan.frontend._host_arguments import PINNED, lives_on_host
from jaxplan.partition._host_values import check_equal_leaves, put

_MOST_PATHS = 4

_MOVED_MSG = (
    "{count} of the step's arguments were committed to other places than the plan's and were moved: {moves}; "
    "{total} in all. Every call that brings arguments like this moves them again: "
    "place them once (plan.shard), or pass on what the step returned"
)
_ON_HOST_MSG = (
    "arguments live in the memory of the host (pinned_host), and the plan has them on the devices: {names}.\n"
    "  expected: arrays in the memory that the plan has for them\n"
    "  likely cause: they were put on the host after the step was planned, or by hand\n"
    "  fix: plan again with the arrays as they are, or jax.device_put(x, x.sharding.with_memory_kind('device'))"
)
_PLACED_MSG = "placed {count} arguments on {devices}: {moves}; {total} in all"


class Placer:
    """Places flat arguments by shardings; each of its two messages is given once.

    Attributes:
      paths: key paths of the arguments.
      shardings: where each of them belongs.
    """

    def __init__(self, paths: Sequence[str], shardings: Sequence[NamedSharding]) -> None:
        self.paths, self.shardings = tuple(paths), tuple(shardings)
        self._spans_processes = not all(sharding.is_fully_addressable for sharding in self.shardings)
        self._told: set[str] = set()

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """The arguments where they belong; those that already lie so are passed on."""
        wanted = zip(leaves, self.shardings, strict=True)
        astray = [i for i, (leaf, sharding) in enumerate(wanted) if not _is_there(leaf, sharding)]
        if not astray:
            return list(leaves)
        if self._spans_processes and _compat.trace_state_clean():
            check_equal_leaves("the arguments of a call", self.paths, leaves, astray)
        self._check_host(leaves, astray)
        placed = list(leaves)
        for i in astray:
            placed[i] = put(leaves[i], self.shardings[i])
        committed = [i for i in astray if _is_elsewhere(leaves[i], self.shardings[i])]
        free = [i for i in astray if not getattr(leaves[i], "committed", False)]
        if committed:
            self._tell(logger.warning, _MOVED_MSG, committed, leaves)
        if free:
            self._tell(logger.info, _PLACED_MSG, free, leaves)
        return placed

    def _check_host(self, leaves: Sequence[Any], astray: Sequence[int]) -> None:
        """Raise PlanMismatchError for arrays that were put on the host, and that the plan has on the devices."""
        moved = [i for i in astray if lives_on_host(leaves[i]) and self.shardings[i].memory_kind != PINNED]
        if moved:
            names = ", ".join(self.paths[i] for i in moved[:_MOST_PATHS])
            more = f" and {len(moved) - _MOST_PATHS} more" if len(moved) > _MOST_PATHS else ""
            raise PlanMismatchError(_ON_HOST_MSG.format(names=names + more))

    def _tell(self, say: Any, message: str, which: Sequence[int], leaves: Sequence[Any]) -> None:
        if message in self._told or any(isinstance(leaves[i], _compat.Tracer) for i in which):
            return
        self._told.add(message)
        sizes = {i: jax.typeof(leaves[i]) for i in which}
        sizes = {i: aval.size * getattr(aval.dtype, "itemsize", 0) for i, aval in sizes.items()}
        largest = sorted(which, key=lambda i: (-sizes[i], i))[:_MOST_PATHS]
        moves = [
            f"{self.paths[i]} ({format_bytes(sizes[i])}) from {_where(leaves[i])} to {_where_to(self.shardings[i])}"
            for i in largest
        ]
        if len(which) > len(largest):
            moves.append(f"and {len(which) - len(largest)} more")
        devices = self.shardings[0].mesh.size
        total = format_bytes(sum(sizes.values()))
        say(message.format(count=len(which), moves=", ".join(moves), total=total, devices=counted(devices, "device")))


def _is_there(leaf: Any, sharding: NamedSharding) -> bool:
    return getattr(leaf, "sharding", None) == sharding


def _is_elsewhere(leaf: Any, sharding: NamedSharding) -> bool:
    """Whether an array was put somewhere on purpose, and somewhere else than the plan would."""
    if not getattr(leaf, "committed", False):
        return False
    return not leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def _where(leaf: Any) -> str:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return "the host"
    if isinstance(sharding, SingleDeviceSharding):
        return str(next(iter(sharding.device_set)))
    return _where_to(sharding)


def _where_to(sharding: Any) -> str:
    spec = getattr(sharding, "spec", None)
    text = str(sharding) if spec is None else f"P({', '.join(map(repr, spec))})"
    return f"{text} on {counted(len(sharding.device_set), 'device')}"
