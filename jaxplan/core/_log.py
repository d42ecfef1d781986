"""The one logger, and warnings that are given once per cause."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from jaxplan.core._interrupt import EndedError, current

logger = logging.getLogger("jaxplan")

_given: set[str] = set()
_lock = threading.Lock()


def warn_once(message: str, *, cause: str | None = None) -> None:
    """Warn through the logger ``jaxplan`` unless the process has been warned of that cause (default: the text)."""
    if _is_new(cause or message):
        logger.warning(message)


def inform_once(message: str, *, cause: str | None = None) -> None:
    """As `warn_once`, at the level INFO, which is not shown unless logging is configured."""
    if _is_new(cause or message):
        logger.info(message)


@contextlib.contextmanager
def until_interrupted(stage: str) -> Iterator[None]:
    """Let Ctrl-C end one stage of a search and not the search, and say so once: results so far are kept.

    Pressed again, it ends the search.
    """
    interruption = current()
    try:
        yield
    except EndedError:
        return
    except KeyboardInterrupt:
        if interruption.happened:
            raise
        interruption.mark()
        logger.warning("interrupted: %s ends here, and what was found so far is the answer", stage)


def forget() -> None:
    """Give every warning again, as a new process would."""
    with _lock:
        _given.clear()


def _is_new(cause: str) -> bool:
    with _lock:
        if cause in _given:
            return False
        _given.add(cause)
        return True
