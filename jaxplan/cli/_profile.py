"""`jaxplan profile`: measure the devices present, with the settings of the command line."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from jaxplan.cli._interrupt import EXIT_INTERRUPTED
from jaxplan.cli._output import add_output_arguments, print_result, use_virtual_devices
from jaxplan.core._progress import Progress
from jaxplan.core._units import format_bytes, format_seconds, parse_memory

if TYPE_CHECKING:
    from jaxplan.mesh._profile_table import ProfileTable

_HELP = "measure collectives, matrix products and memory of the devices present"
_DESCRIPTION = (
    "Measure the devices present, all busy at once, and write a table for `jaxplan plan --profile`. Run it again with "
    "the same file to go on after an interruption: nothing that was measured is lost or measured twice."
)


def add_profile_command(commands: Any) -> None:
    """Add the subcommand to the parser's."""
    profile = commands.add_parser("profile", help=_HELP, description=_DESCRIPTION)
    profile.add_argument("--output", metavar="FILE", help="default: profile-<topology>.json")
    profile.add_argument(
        "--topology", metavar="CHIP:SHAPE", help="of the devices; default: recognised by their kind"
    )
    profile.add_argument(
        "--max-bytes", metavar="AMOUNT", default="64MiB", help="largest array communicated; default: 64MiB"
    )
    profile.add_argument(
        "--dtypes", nargs="+", metavar="DTYPE", help="of matrix products; default: float32 bfloat16"
    )
    profile.add_argument(
        "--virtual-devices", type=int, metavar="N", help="measure so many virtual devices of this host's CPU"
    )
    add_output_arguments(profile)
    profile.set_defaults(run=run_profile)


def run_profile(arguments: argparse.Namespace) -> int:
    """Measure, write, and print the result."""
    from jaxplan.mesh import Topology
    from jaxplan.mesh.profile import Settings, measure

    if arguments.virtual_devices is not None:
        use_virtual_devices(arguments.virtual_devices)
    topology = Topology.parse(arguments.topology) if arguments.topology else Topology.detect()
    file = arguments.output or f"profile-{topology.name.replace(':', '-')}.json"
    settings = Settings(max_bytes=1 << (parse_memory(arguments.max_bytes) - 1).bit_length())
    if arguments.dtypes:
        settings = dataclasses.replace(settings, dtypes=tuple(arguments.dtypes))
    arguments.watch.answers = True
    with Progress() as progress:
        try:
            table = measure(file, topology=topology, settings=settings, progress=progress)
        except KeyboardInterrupt:
            print(
                f"interrupted: what was measured is in {file}.partial; run it again to go on", file=sys.stderr
            )
            arguments.watch.saved = True
            return EXIT_INTERRUPTED
    print(f"measured: {progress}", file=sys.stderr)
    print_result(arguments, lambda: _text(table, file), lambda: {"file": file, "table": table.to_json()})
    return 0


def _text(table: ProfileTable, file: str) -> str:
    lines = [f"{table!r} written to {file}"]
    for (kind, shape), curve in sorted(table.collectives.items()):
        rate = curve.sizes[-1] / curve.seconds[-1]
        lines.append(
            f"  {kind:<18} in groups of {'x'.join(map(str, shape)):<6} {format_seconds(curve.seconds[0]):>8} for "
            f"{format_bytes(int(curve.sizes[0]))}, {rate / 1e9:.3g} GB/s for {format_bytes(int(curve.sizes[-1]))}"
        )
    return "\n".join(lines)
