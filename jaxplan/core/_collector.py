"""Python's cyclic garbage collector set aside while much is built that lives on."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Leave cycles alone for the time of a block.

    The tables and tuples of a large step make the collector walk the whole program again and again and find nothing:
    a quarter of the time of pricing 8B on 64 devices was measured to go there. Counted references are freed as ever.
    New objects count as old afterwards: the next full collection walks them, and not the next one of young objects.
    A program that has frozen objects itself keeps them so, and its new objects stay young.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not _has_frozen():  # both together move young objects to the oldest, without a walk
                gc.freeze()
                gc.unfreeze()
            gc.enable()


_frozen_seen = threading.Event()


def _has_frozen() -> bool:
    """Whether the program has frozen objects: counting them walks all, so they are counted until some are found."""
    if not _frozen_seen.is_set() and gc.get_freeze_count():
        _frozen_seen.set()
    return _frozen_seen.is_set()
