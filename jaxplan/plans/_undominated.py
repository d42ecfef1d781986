"""Points that no other one beats in both time and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar


class Timed(Protocol):
    """A plan or a candidate for one: seconds of a step and bytes on a device."""

    @property
    def memory_bytes(self) -> int: ...
    @property
    def time_seconds(self) -> float: ...


class Described(Timed, Protocol):
    """A plan of one step or of several: a point of a frontier, with its name and the parts of its memory."""

    @property
    def name(self) -> str: ...
    @property
    def memory_parts(self) -> Mapping[str, int]: ...


_P = TypeVar("_P", bound=Timed)


def undominated(plans: Iterable[_P]) -> list[_P]:
    """The plans that none beats in both time and memory, by ascending memory; of equals, the first given."""
    best: list[_P] = []
    for plan in sorted(plans, key=lambda plan: (plan.memory_bytes, plan.time_seconds)):
        if not best or plan.time_seconds < best[-1].time_seconds:
            best.append(plan)
    return best
