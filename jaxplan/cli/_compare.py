"""`jaxplan compare`: a step on several machines, in time, memory and money."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import jaxplan
from jaxplan.cli._output import add_output_arguments, print_result
from jaxplan.cli._step import add_planning_arguments, step_arguments
from jaxplan.core._progress import Progress
from jaxplan.errors import ArgumentError

_HELP = "plan a step on several machines, to see which one to rent"
_DESCRIPTION = (
    "Plan the step on each machine and print the fastest plan that fits, one line a machine: time, memory, and with "
    "--price the money for 1000 steps."
)


def add_compare_command(commands: Any) -> None:
    """Add the subcommand to the parser's."""
    compare = commands.add_parser("compare", help=_HELP, description=_DESCRIPTION)
    add_planning_arguments(compare)
    compare.add_argument(
        "--topologies", nargs="+", required=True, metavar="CHIP:SHAPE", help="the machines, such as h100:8 a100:16"
    )
    compare.add_argument(
        "--price",
        nargs="+",
        metavar="NAME=PRICE",
        help="of one device for one hour, in any currency, by chip or topology, such as h100=2.5 a100:16=1.1",
    )
    add_output_arguments(compare)
    compare.set_defaults(run=_run_compare, topology=None, profile=None)


def _run_compare(arguments: argparse.Namespace) -> int:
    prices = _prices(arguments.price)
    step, args, options = step_arguments(arguments)
    del options["topology"]
    with Progress() as progress:
        found = jaxplan.compare(
            step, *args, **options, topologies=arguments.topologies, prices=prices, progress=progress
        )
    print(f"planned: {progress}", file=sys.stderr)
    print_result(arguments, found.table, found.to_json)
    return 0


def _prices(given: list[str] | None) -> dict[str, float] | None:
    """The price of each chip or topology."""
    if given is None:
        return None
    prices = {}
    for item in given:
        name, _, price = item.rpartition("=")
        try:
            prices[name] = float(price)
        except ValueError:
            prices[name] = math.nan
        if not name or not 0 <= prices[name] < math.inf:
            raise ArgumentError(
                f"--price {item}: no name with the price of a device for one hour.\n"
                "  expected: such as h100=2.5 or a100:16=1.1"
            )
    return prices
