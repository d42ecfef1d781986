"""`jaxplan audit`: compile a saved plan without its devices and set it beside the prediction."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import jaxplan
from jaxplan.cli._output import add_output_arguments
from jaxplan.cli._step import add_static_argument, named_step, static_options
from jaxplan.errors import ArgumentError

if TYPE_CHECKING:
    from jaxplan.audit import Audit

_HELP = "compile a saved plan, without its devices, and compare it with the prediction"
_DESCRIPTION = (
    "Compile a saved plan for its topology and compare memory by part, FLOPs and collectives with what was predicted. "
    "Needs the compiler of the topology (extras gpu-aot, tpu-aot), not its devices."
)


def add_audit_arguments(commands: Any) -> argparse.ArgumentParser:
    """Add the subcommand to the parser's, and return its own parser."""
    audit = commands.add_parser("audit", help=_HELP, description=_DESCRIPTION)
    audit.add_argument("file", help="a plan, or a frontier to choose from")
    audit.add_argument("step", metavar="MODULE:FUNCTION", help="the step that it was made for")
    audit.add_argument(
        "--args", required=True, metavar="MODULE:FUNCTION", help="returns the tuple of the step's arguments"
    )
    audit.add_argument(
        "--choose",
        metavar="WHICH",
        help="of a frontier: fastest (default), knee, leanest, a number, or a reference strategy",
    )
    add_static_argument(audit)
    audit.add_argument("--cache", metavar="FOLDER", help="keep compiled programs there")
    add_output_arguments(audit)
    return audit


def audit_of(arguments: argparse.Namespace) -> Audit:
    """Load the plan with its step, compile it and compare."""
    from jaxplan.plans._frontier import Frontier

    step, args = named_step(arguments)
    plan = jaxplan.load(arguments.file, step, *args, **static_options(arguments))
    if isinstance(plan, Frontier):
        plan = plan.choose(arguments.choose or "fastest")
    elif arguments.choose:
        raise ArgumentError(f"{arguments.file} holds one plan: --choose needs a frontier")
    return plan.audit(cache_dir=arguments.cache)
