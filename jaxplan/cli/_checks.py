"""Checks before the search, which takes long: unknown choices, and files that cannot be written."""

from __future__ import annotations

import argparse
import itertools
import os
from typing import TYPE_CHECKING

from jaxplan.core._files import check_writable
from jaxplan.errors import ArgumentError
from jaxplan.plans._choice import check_choice

if TYPE_CHECKING:
    from jaxplan.mesh import Topology

_FILES = ("save", "plan", "trace", "plot", "report")


def check_before_planning(arguments: argparse.Namespace, topology: str | Topology | None) -> None:
    """Raise now the errors that the choice, the files to write, or the audit would raise after the search.

    ArgumentError: no such choice, or two options that name one file. SaveError: a file that cannot be written.
    MissingExtraError: the library that draws a plot, or compiles for an audit, is not installed.
    """
    from jaxplan.mesh import parse_topology

    if getattr(arguments, "choose", None):
        check_choice(arguments.choose, parse_topology(topology))
    check_files(arguments)
    if getattr(arguments, "audit", False):
        from jaxplan.search._verify import check_verifiable

        check_verifiable(parse_topology(topology))


def check_files(arguments: argparse.Namespace) -> None:
    """Raise for files that the options of a command name and that cannot be written, or are one."""
    files = {f"--{name}": file for name in _FILES if (file := getattr(arguments, name, None))}
    if "--plot" in files:
        from jaxplan.plans._plot import check_plot

        check_plot(files["--plot"])
    if "--report" in files:
        from jaxplan.plans._report import check_report

        check_report(files["--report"])
    for file in files.values():
        check_writable(file)
    for (one, file), (other, second) in itertools.combinations(files.items(), 2):
        is_stream = os.path.exists(file) and not os.path.isfile(file)
        if os.path.realpath(file) == os.path.realpath(second) and not is_stream:
            raise ArgumentError(f"{one} and {other} both name {file}: the second would overwrite the first")
