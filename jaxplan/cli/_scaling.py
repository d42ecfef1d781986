"""`jaxplan min-devices` and `jaxplan scaling`: a step on parts of a machine."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import jaxplan
from jaxplan.cli._checks import check_files
from jaxplan.cli._output import add_output_arguments, print_result
from jaxplan.cli._step import add_step_arguments, step_arguments
from jaxplan.core._progress import Progress
from jaxplan.core._units import counted, format_bytes, format_seconds

_MIN_HELP = "find the fewest devices on which a step fits"
_MIN_DESCRIPTION = (
    "Plan the step on ever larger even parts of the machine until a plan fits the memory, and print what was tried."
)
_SCALING_HELP = "print the best time of a step for each number of devices"
_SCALING_DESCRIPTION = (
    "Plan the step on a part of the machine for each number of devices, and print the fastest plan that fits."
)


def add_scaling_commands(commands: Any) -> None:
    """Add both subcommands to the parser's."""
    fewest = commands.add_parser("min-devices", help=_MIN_HELP, description=_MIN_DESCRIPTION)
    _add_arguments(fewest)
    fewest.add_argument("--plan", metavar="FILE", help="write the fastest plan on so few devices as JSON")
    fewest.set_defaults(run=_run_min_devices)
    scaling = commands.add_parser("scaling", help=_SCALING_HELP, description=_SCALING_DESCRIPTION)
    _add_arguments(scaling)
    scaling.add_argument(
        "--device-counts",
        type=int,
        nargs="+",
        metavar="N",
        help="numbers of devices; default: all even parts of the machine",
    )
    scaling.set_defaults(run=_run_scaling)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_step_arguments(parser)
    add_output_arguments(parser)


def _run_min_devices(arguments: argparse.Namespace) -> int:
    step, args, options = step_arguments(arguments)
    check_files(arguments)
    with Progress() as progress:
        found = jaxplan.min_devices(step, *args, **options, progress=progress)
    print(f"planned: {progress}", file=sys.stderr)
    plan = found.plan
    if arguments.plan:
        with arguments.watch.saving():
            plan.save(arguments.plan)
    fewest = (
        f"fewest: {counted(found.num_devices, 'device')} ({plan.topology.name}), "
        f"{format_seconds(plan.time_seconds)} a step, {format_bytes(plan.memory_bytes)} per device"
    )
    print_result(arguments, lambda: f"{found.table()}\n{fewest}", found.to_json)
    return 0


def _run_scaling(arguments: argparse.Namespace) -> int:
    step, args, options = step_arguments(arguments)
    with Progress() as progress:
        found = jaxplan.scaling(
            step, *args, **options, device_counts=arguments.device_counts, progress=progress
        )
    print(f"planned: {progress}", file=sys.stderr)
    print_result(arguments, found.table, found.to_json)
    return 0
