"""A value that is computed at its first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """A value that is computed when it is first asked for, then kept; of two threads that ask at once, one computes.

    >>> once = Once(lambda: print("computed") or 3)
    >>> once.get(), once.get()
    computed
    (3, 3)
    """

    __slots__ = ("_compute", "_lock", "_value")

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute: Callable[[], T] | None = compute
        self._lock = threading.Lock()

    @classmethod
    def of(cls, value: T) -> Once[T]:
        """A value that is known already."""
        return cls(lambda: value)

    def get(self) -> T:
        """The value; an error of its computation is raised, and the next call tries again."""
        with self._lock:
            if self._compute is not None:
                self._value = self._compute()
                self._compute = None  # and the objects that it refers to
            return self._value
