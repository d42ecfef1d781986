"""The program of a planned step is the same in all processes: compared before it is compiled, and compiled in all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax

from jaxplan.core._processes import agree, exchange
from jaxplan.errors import ProcessError

_CAUSE = "another code, plan, configuration, closed-over value or installation in one of the processes"
_FIX = "start the same program with the same settings everywhere"
_ADDRESSES = re.compile(r'backend_config = "\d+"|index = \d+ : ui64')
"""Of Python callbacks: object addresses or counters of the process."""


def check_same_program(name: str, lowered: Any) -> None:
    """Compare a lowered program, and the versions that compile it, with those of the other processes.

    Raises:
      ProcessError: they differ; the same in every process.
    """
    text = _ADDRESSES.sub("", lowered.as_text())
    versions = f"jax {jax.__version__}, jaxlib {version('jaxlib')}, {jax.devices()[0].client.platform_version}"
    facts = {"versions": versions, "lowered program": hashlib.sha256(text.encode()).hexdigest()[:16]}
    agree(f"the program of {name}", facts, cause=_CAUSE, fix=_FIX)


def compiled_everywhere(
    name: str, compile_: Callable[[], Any], bytes_of: Callable[[Any], int | None]
) -> tuple[Any, int | None]:
    """The compiled program, and the largest number of bytes per device that any of the processes reads.

    Raises:
      ProcessError: another process could not compile it; with the text of its error.
    """
    compiled, failure = None, None
    try:
        compiled = compile_()
    except Exception as error:
        failure = error
    num_bytes = None if compiled is None else bytes_of(compiled)
    facts = {"bytes": num_bytes, "error": None if failure is None else f"{type(failure).__name__}: {failure}"}
    found = exchange(f"the compilation of {name}", facts)
    if failure is not None:
        raise failure
    for process, of in enumerate(found):
        if of["error"] is not None:
            raise ProcessError(f"{name} could not be compiled in process {process}: {of['error']}")
    known = [of["bytes"] for of in found if of["bytes"] is not None]
    return compiled, max(known, default=None)
