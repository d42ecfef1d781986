"""Ctrl-C or a time limit during a search: its stages end early, and the best results so far are the answer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

INTERRUPTED_NOTE = "the search was interrupted: there may be better plans than those that were found until then"
TIME_LIMIT_NOTE = "time_limit ended the search: there may be better plans than those that were found until then"
SECONDS_LEFT = 0.3
"""After an interrupt, for predicting and describing the results so far."""


class EndedError(KeyboardInterrupt):
    """Raised at the reports of later stages after an interrupt, so that they end as well."""


class Interruption:
    """Of one search: when it was interrupted, and the results to save. Written by the search, read by the shell.

    Attributes:
      since: clock of the first interrupt; None while nothing interrupted it.
      plans: complete plans that are known.
      memory_limit_bytes: of the search, per device.
      deadline: clock at which the search ends if it knows a plan, else as soon as it does; None: never.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.plans: tuple[Any, ...] = ()
        self.memory_limit_bytes: int | None = None
        self.deadline: float | None = None

    @property
    def is_late(self) -> bool:
        """Whether the time limit has ended the search."""
        return self.deadline is not None and bool(self.plans) and time.monotonic() >= self.deadline

    @property
    def happened(self) -> bool:
        return self.since is not None or self.is_late

    @property
    def note(self) -> str:
        """What a frontier says of its search."""
        return TIME_LIMIT_NOTE if self.since is None else INTERRUPTED_NOTE

    def mark(self) -> None:
        """Note an interrupt."""
        self.since = time.monotonic() if self.since is None else self.since

    def check(self) -> None:
        """Raise EndedError if there was an interrupt, or the time is over."""
        if self.happened:
            raise EndedError

    @property
    def time_is_left(self) -> bool:
        ends = [at for at in (self.since, self.deadline if self.plans else None) if at is not None]
        return not ends or time.monotonic() < min(ends) + SECONDS_LEFT


_current: ContextVar[Interruption | None] = ContextVar("jaxplan_interruption", default=None)


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """A search runs in the block; one around it is joined."""
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    token = _current.set(Interruption())
    try:
        yield current()
    finally:
        _current.reset(token)


def current() -> Interruption:
    """The interruption of the search around; a new one where there is none."""
    return _current.get() or Interruption()
