"""Options that commands share for their output: `--debug`, `--json`."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--debug`."""
    parser.add_argument("--json", action="store_true", help="print plain data as JSON in place of text")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def print_result(arguments: argparse.Namespace, text: Any, data: Any) -> None:
    """Print the text, or with `--json` the data; both are functions that are called where they are needed."""
    if arguments.json:
        print(json.dumps(data(), indent=1, sort_keys=True, default=str))
    else:
        print(text())
