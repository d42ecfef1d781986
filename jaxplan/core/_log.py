"""The one logger, and warnings that are given once per cause."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from jaxplan.core._interrupt import EndedError, current

logger = logging.getLogger("jaxplan")

_PLUGINS = "jax._src.xla_bridge"
"""The logger of JAX that says which plugins for devices could not be loaded, each with a traceback."""
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


def shorten_plugin_errors() -> None:
    """Let JAX say in one line that a plugin finds no device, in place of a traceback (on a machine without the GPU).

    For commands: their error output belongs to jaxplan; the library leaves the logging of a program as it is. The
    traceback stays at level DEBUG.
    """
    logging.getLogger(_PLUGINS).addFilter(_in_one_line)


def _in_one_line(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[1] is not None and record.levelno >= logging.ERROR:
        error = record.exc_info[1]
        plugins = " ".join(map(str, record.args)) if isinstance(record.args, tuple) else ""
        logger.debug("a plugin of JAX could not be loaded", exc_info=record.exc_info)
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg = f"jaxplan: no devices through JAX's plugin {plugins}: {type(error).__name__}: {error}"
        record.args, record.exc_info, record.exc_text = (), None, None
    return True


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
