"""Errors at the boundary to the shell: exit codes, one line on stderr, and with `--json` an object on stdout."""

from __future__ import annotations

import argparse
import errno
import json
import re
import sys
from typing import Any, NoReturn

from jaxplan.errors import (
    ArgumentError,
    AuditError,
    InfeasibleError,
    JaxplanError,
    PlanFileError,
    PlanMismatchError,
    ProblemError,
    ProfileError,
    SaveError,
    TopologyError,
)

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INFEASIBLE, EXIT_AUDIT = 0, 1, 2, 3, 4
_GIVEN = (ArgumentError, PlanFileError, PlanMismatchError, ProblemError, ProfileError, TopologyError)
"""Errors in the arguments and files that a command was given."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Of files with a right path, which could not be written all the same."""
_PART = re.compile(r"\n\s*(given|expected|got|at|because|likely cause|fix):\s*")


class JsonParser(argparse.ArgumentParser):
    """A parser that prints wrong usage as an object on stdout too."""

    def error(self, message: str) -> NoReturn:
        """Print the object, the usage and the message, and exit."""
        fix = f"{self.prog} --help"
        print_json_error({"type": "UsageError", "message": message, "fix": fix, "exit_code": EXIT_USAGE})
        super().error(message)


def exit_code(error: Exception) -> int:
    """The exit code of an error, as `jaxplan --help` lists them."""
    if isinstance(error, SaveError):
        return EXIT_FAILED if error.errno in _FULL else EXIT_USAGE
    codes = {InfeasibleError: EXIT_INFEASIBLE, AuditError: EXIT_AUDIT, **dict.fromkeys(_GIVEN, EXIT_USAGE)}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), EXIT_FAILED)


def print_error(error: Exception, *, as_json: bool) -> None:
    """One line on stderr, and an object on stdout where that is asked for."""
    print(f"jaxplan: error: {one_line(error)}", file=sys.stderr)
    if as_json:
        print_json_error(error_data(error))


def print_json_error(data: dict[str, Any]) -> None:
    """Print ``{"error": {...}}`` on stdout."""
    print(json.dumps({"error": data}, indent=1, sort_keys=True, default=str))


def error_data(error: Exception) -> dict[str, Any]:
    """Type, message, the parts of the message by name, and the exit code; of too little memory the figures too."""
    message, *parts = _PART.split(str(error).strip())
    data = {"type": type(error).__name__, "message": _spaced(message), "exit_code": exit_code(error)}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        data[name.replace(" ", "_")] = _spaced(text)
    if isinstance(error, InfeasibleError):
        data["smallest_memory_bytes"] = error.smallest_memory_bytes
        data["memory_parts"] = error.memory_parts
    return data


def one_line(error: Exception) -> str:
    """The message on one line, its parts (``expected:``, ``fix:``) set apart by semicolons where no point is there."""
    if not isinstance(error, JaxplanError):
        return f"{type(error).__name__}: {_spaced(str(error))} (--debug shows where)"
    message, *parts = _PART.split(str(error).strip())
    found = [_spaced(message), *(f"{n}: {_spaced(t)}" for n, t in zip(parts[::2], parts[1::2], strict=True))]
    ended = [part if part.endswith((".", ":", "?", ";")) else f"{part};" for part in found[:-1]]
    return " ".join([*ended, found[-1]])


def _spaced(text: str) -> str:
    return " ".join(text.split())
