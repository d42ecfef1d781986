"""Options that commands share: `--debug`, `--json`, `--virtual-devices`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from jaxplan.errors import ArgumentError


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--debug`."""
    parser.add_argument("--json", action="store_true", help="print plain data as JSON in place of text")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def print_result(arguments: argparse.Namespace, text: Any, data: Any) -> None:
    """Print the text, or with `--json` the data; both are functions that are called where they are needed."""
    if arguments.json:
        arguments.watch.printed = True
        print(json.dumps(data(), indent=1, sort_keys=True, default=str))
    else:
        print(text())


def use_virtual_devices(count: int) -> None:
    """Let this host's CPU stand for so many devices, as `--virtual-devices` asks.

    Raises:
      ArgumentError: the number is below 1, or JAX has been used before.
    """
    import jax

    if count < 1:
        raise ArgumentError(f"--virtual-devices is {count}; expected at least 1")
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise ArgumentError(
            f"--virtual-devices {count} comes too late: JAX has found its devices already.\n"
            "  expected:     a process that has not used JAX\n"
            "  fix:          run the command in the shell, or start Python with JAX_NUM_CPU_DEVICES set"
        ) from error
