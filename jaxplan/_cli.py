"""The `jaxplan` command: plan a step that a module defines, or show a saved plan or frontier."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jaxplan
from jaxplan._cli_profile import add_profile_command
from jaxplan._errors import (
    ArgumentError,
    AuditError,
    InfeasibleError,
    JaxplanError,
    ProfileError,
    TopologyError,
)
from jaxplan._progress import Progress
from jaxplan._units import format_bytes, format_seconds, parse_memory

if TYPE_CHECKING:
    from jaxplan._frontier import Frontier
    from jaxplan._plan import Plan

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INFEASIBLE, EXIT_AUDIT = 0, 1, 2, 3, 4

_EPILOG = """\
examples:
  jaxplan plan train:train_step --args train:make_args --topology h100:8 --memory 40GiB --donate 0
  jaxplan plan examples/train_gpt.py:train_step --args examples/train_gpt.py:make_args --topology a100:2x8
  jaxplan show frontier.json
  jaxplan profile --output here.json && jaxplan plan ... --profile here.json

exit codes: 0 done, 1 failed, 2 wrong usage, 3 no plan fits the memory, 4 the compiled program differs
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; an error is one line on stderr (--debug: a traceback)."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except Exception as error:  # the boundary to the shell: whatever happened becomes one line and a code
        if arguments.debug:
            raise
        print(f"jaxplan: error: {_one_line(error)}", file=sys.stderr)
        return _exit_code(error)


def _exit_code(error: Exception) -> int:
    codes = {
        InfeasibleError: EXIT_INFEASIBLE,
        AuditError: EXIT_AUDIT,
        ArgumentError: EXIT_USAGE,
        ProfileError: EXIT_USAGE,
        TopologyError: EXIT_USAGE,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), EXIT_FAILED)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, JaxplanError):
        return text
    return f"{type(error).__name__}: {text} (--debug shows where)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxplan",
        description="Plans how a single-device JAX train step is sharded over several accelerators.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jaxplan {jaxplan.__version__}")
    commands = parser.add_subparsers(required=True, metavar="plan|show|profile|coverage")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--choose", metavar="WHICH", help="fastest (default), knee, leanest, or a number of the table"
    )
    common.add_argument("--explain", action="store_true", help="explain the chosen plan")
    common.add_argument("--plot", metavar="FILE", help="draw the frontier (.svg, .pdf, .png)")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")

    plan = commands.add_parser(
        "plan", parents=[common], help="print the frontier of a step, and choose from it"
    )
    plan.add_argument(
        "step", metavar="MODULE:FUNCTION", help="the step; MODULE may be a path that ends in .py"
    )
    plan.add_argument(
        "--args", required=True, metavar="MODULE:FUNCTION", help="returns the tuple of the step's arguments"
    )
    plan.add_argument(
        "--topology", metavar="CHIP:SHAPE", help="such as h100:8 or a100:2x8; default: this machine"
    )
    plan.add_argument(
        "--profile", metavar="FILE", help="price with what `jaxplan profile` measured on that machine"
    )
    plan.add_argument(
        "--memory", metavar="AMOUNT", help="limit per device, such as 40GiB; default: the device's own"
    )
    plan.add_argument("--solver", default="auto", help="default: auto")
    plan.add_argument(
        "--donate", type=int, nargs="+", default=[], metavar="N", help="arguments that the step may overwrite"
    )
    plan.add_argument(
        "--static", type=int, nargs="+", default=[], metavar="N", help="arguments that are no arrays"
    )
    plan.add_argument("--save", metavar="FILE", help="write the frontier as JSON")
    plan.add_argument("--plan", metavar="FILE", help="write the chosen plan as JSON")
    plan.add_argument("--audit", action="store_true", help="compile the chosen plan and compare")
    plan.set_defaults(run=_run_plan)

    show = commands.add_parser("show", parents=[common], help="print a saved frontier or plan")
    show.add_argument("file")
    show.set_defaults(run=_run_show)
    add_profile_command(commands)
    coverage = commands.add_parser("coverage", help="print which primitives of JAX have a rule, and what tests it")
    coverage.add_argument("--debug", action="store_true", help="show the traceback of an error")
    coverage.set_defaults(run=_run_coverage)
    return parser


def _run_plan(arguments: argparse.Namespace) -> int:
    step = _undecorated(_resolve(arguments.step))
    args = _resolve(arguments.args)()
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    with Progress() as progress:
        frontier = jaxplan.plan(
            step,
            *args,
            topology=_topology(arguments),
            memory=parse_memory(arguments.memory) if arguments.memory is not None else None,
            solver=arguments.solver,
            donate_argnums=tuple(arguments.donate),
            static_argnums=tuple(arguments.static),
            progress=progress,
        )
    print(f"planned: {progress}", file=sys.stderr)
    plan = _show_frontier(frontier, arguments)
    if arguments.save:
        frontier.save(arguments.save)
    if arguments.plan:
        plan.save(arguments.plan)
    if not arguments.audit:
        return EXIT_DONE
    audit = plan.audit()
    print(audit.table())
    return EXIT_DONE if audit.ok else EXIT_AUDIT


def _topology(arguments: argparse.Namespace) -> Any:
    """What was given; with the prices of the profile where one was given too."""
    if arguments.profile is None:
        return arguments.topology
    from jaxplan._planner import parse_topology

    return parse_topology(arguments.topology).with_profile(arguments.profile)


def _run_show(arguments: argparse.Namespace) -> int:
    from jaxplan._frontier import Frontier

    loaded = jaxplan.load(arguments.file)
    if isinstance(loaded, Frontier):
        _show_frontier(loaded, arguments)
        return EXIT_DONE
    if arguments.choose or arguments.plot:
        raise ArgumentError(f"{arguments.file} holds one plan: --choose and --plot need a frontier")
    print(loaded.explain())
    return EXIT_DONE


def _run_coverage(arguments: argparse.Namespace) -> int:
    from jaxplan._coverage import coverage, coverage_table

    print(coverage_table(coverage()))
    return EXIT_DONE


def _show_frontier(frontier: Frontier, arguments: argparse.Namespace) -> Plan:
    """Print the frontier and the plan chosen from it, draw what was asked for, and return the plan."""
    plan = frontier.choose(arguments.choose or "fastest")
    print(frontier.table())
    marks = ", ".join(frontier.marks(plan)) or "by number"
    print(
        f"chosen: #{frontier.points.index(plan)} ({marks}), {format_seconds(plan.time_seconds)} a step, "
        f"{format_bytes(plan.memory_bytes)} per device"
    )
    if arguments.explain:
        print(plan.explain())
    if arguments.plot:
        frontier.plot(arguments.plot)
    return plan


def _resolve(reference: str) -> Any:
    """Return what "module:attribute" or "path/to/file.py:attribute" names; attributes may be dotted."""
    module_name, _, attribute = reference.rpartition(":")
    if not module_name or not attribute:
        raise ArgumentError(f"{reference!r} names no function: expected module:function or file.py:function")
    found = _import(module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            public = [n for n in dir(found) if not n.startswith("_") and callable(getattr(found, n))]
            expected = f"one of {', '.join(public)}" if public else "a module with public functions"
            raise ArgumentError(f"{reference!r}: there is no {name!r}; expected {expected}")
        found = getattr(found, name)
    if not callable(found):
        raise ArgumentError(f"{reference!r} is a {type(found).__name__}, not a function")
    return found


def _import(module_name: str) -> Any:
    """Import a module by name, the working directory first as `python -m` does, or a file by its path."""
    if not module_name.endswith(".py"):
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # the module is there; something that it imports is not
            raise ArgumentError(
                f"there is no module {module_name!r}: looked in {os.getcwd()} and where Python imports from"
            ) from error
    return _import_file(os.path.abspath(module_name))


def _import_file(path: str) -> Any:
    """Run a file as a module, once, with its own folder first on the path as `python file.py` has it."""
    name = f"jaxplan_cli_{os.path.splitext(os.path.basename(path))[0]}"
    if getattr(sys.modules.get(name), "__file__", None) == path:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise ArgumentError(f"there is no file {path!r}")
    sys.path.insert(0, os.path.dirname(path))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _undecorated(step: Any) -> Any:
    """Return the function that `@jaxplan.auto` decorates; any other callable as it is."""
    if type(step).__module__.partition(".")[0] == "jaxplan":
        return step.__wrapped__
    return step
