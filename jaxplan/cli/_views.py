"""`jaxplan show`, `explain`, `diff` and `export`: saved plans and frontiers, looked at and written as scripts."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

import jaxplan
from jaxplan.cli._checks import check_files
from jaxplan.cli._output import add_output_arguments, print_result
from jaxplan.cli._step import add_static_argument, named_step, static_options
from jaxplan.core._files import check_writable
from jaxplan.core._units import format_bytes, format_seconds
from jaxplan.errors import ArgumentError
from jaxplan.plans._advice import advice_text

if TYPE_CHECKING:
    from jaxplan.plans._frontier import Frontier
    from jaxplan.plans._joint import JointPlan
    from jaxplan.plans._plan import Plan

_CHOOSE_HELP = (
    "fastest (default), knee, leanest, a number of the table, or a reference strategy such as fsdp; of a joint plan, "
    "a step"
)
_DIFF_EPILOG = "`jaxplan diff frontier.json --choose knee fsdp` compares two plans of one frontier."


def add_choice_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the choice from a frontier, and the views of it that `plan` and `show` can write."""
    parser.add_argument("--choose", metavar="WHICH", help=_CHOOSE_HELP)
    parser.add_argument("--explain", action="store_true", help="explain the chosen plan")
    parser.add_argument("--verbose", action="store_true", help="parts of the time, references and sentences too")
    parser.add_argument("--plot", metavar="FILE", help="draw the frontier (.svg, .pdf, .png)")
    parser.add_argument("--report", metavar="FILE", help="write all about the frontier as one HTML page")
    add_output_arguments(parser)


def add_view_commands(commands: Any) -> None:
    """Add the subcommands to the parser's."""
    show = commands.add_parser("show", help="print a saved frontier or plan")
    show.add_argument("file")
    add_choice_arguments(show)
    show.set_defaults(run=_run_show)
    explain = commands.add_parser(
        "explain", help="explain a saved plan, or why an argument is laid out as it is and what else would cost"
    )
    explain.add_argument("file", help="a plan, or a frontier to choose from")
    explain.add_argument(
        "path", nargs="?", metavar="PATH", help="of an argument, such as block_3/up/kernel, or a pattern; needs --step"
    )
    explain.add_argument("--choose", metavar="WHICH", help=_CHOOSE_HELP)
    _add_step(explain)
    explain.set_defaults(run=_run_explain)
    diff = commands.add_parser("diff", help="say what differs between two saved plans of a step", epilog=_DIFF_EPILOG)
    diff.add_argument("file", help="a plan, or a frontier to choose from")
    diff.add_argument("other", nargs="?", metavar="OTHER", help="another; default: the same frontier")
    diff.add_argument(
        "--choose", nargs=2, metavar=("WHICH", "WHICH"), help="of a frontier; default: fastest, and leanest of the same"
    )
    _add_step(diff)
    diff.set_defaults(run=_run_diff)
    export = commands.add_parser("export", help="write a saved plan as a JAX script that needs no jaxplan")
    export.add_argument("file", help="a plan, or a frontier to choose from")
    export.add_argument("-o", "--output", required=True, metavar="FILE", help="such as train_planned.py")
    export.add_argument("--choose", metavar="WHICH", help=_CHOOSE_HELP)
    export.add_argument(
        "--names", nargs="+", metavar="NAME=SIZE", help="axes of the mesh, outermost first, such as data=4 tensor=2"
    )
    export.add_argument("--step", required=True, metavar="MODULE:FUNCTION", help="the step that the plan was made for")
    export.add_argument("--args", required=True, metavar="MODULE:FUNCTION", help="returns the step's arguments")
    add_static_argument(export)
    add_output_arguments(export)
    export.set_defaults(run=_run_export)


def _add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--step", metavar="MODULE:FUNCTION", help="the step that the plan was made for: says more")
    parser.add_argument("--args", metavar="MODULE:FUNCTION", help="with --step, returns the step's arguments")
    add_static_argument(parser)
    add_output_arguments(parser)


def show_frontier(
    frontier: Frontier, arguments: argparse.Namespace, more: dict[str, Any] | None = None
) -> None:
    """Print the frontier and the plan chosen from it, and draw the requested plots.

    Args:
      more: printed beside them with `--json`.
    """
    plan = frontier.choose(arguments.choose or "fastest")
    advised = getattr(arguments, "advice", False)
    advice = frontier.advice(choose=arguments.choose or "fastest") if advised else ()

    def text() -> str:
        lines = [
            frontier.table(verbose=arguments.verbose),
            f"chosen: {frontier.label(plan)}, {format_seconds(plan.time_seconds)} a step, "
            f"{format_bytes(plan.memory_bytes)} per device",
        ]
        lines += [plan.explain()] if arguments.explain else []
        return "\n".join([*lines, advice_text(advice)] if advised else lines)

    def data() -> dict[str, Any]:
        found = {"chosen": frontier.label(plan), "frontier": frontier.to_json()}
        found |= {"advice": list(map(dataclasses.asdict, advice))} if advised else {}
        return found | (more or {})

    if not arguments.json:
        print_result(arguments, text, data)
    if arguments.plot:
        frontier.plot(arguments.plot, choose=arguments.choose or "fastest")
    if arguments.report:
        frontier.report(arguments.report, choose=arguments.choose or "fastest")
    if arguments.json:  # one object, after all that may fail
        print_result(arguments, text, data)


def _run_show(arguments: argparse.Namespace) -> int:
    from jaxplan.plans._explain import explain_data
    from jaxplan.plans._frontier import Frontier
    from jaxplan.plans._joint import JointPlan

    check_files(arguments)
    loaded = jaxplan.load(arguments.file)
    if isinstance(loaded, Frontier):
        show_frontier(loaded, arguments)
        return 0
    if arguments.plot or arguments.report or (arguments.choose and not isinstance(loaded, JointPlan)):
        raise ArgumentError(f"{arguments.file} holds no frontier: --choose, --plot and --report need one")
    if isinstance(loaded, JointPlan):
        if not arguments.choose:
            print_result(arguments, loaded.explain, loaded.to_json)
            return 0
        loaded = _of_step(loaded, arguments.choose, arguments.file)
    print_result(arguments, loaded.explain, lambda: explain_data(loaded))
    return 0


def _run_explain(arguments: argparse.Namespace) -> int:
    from jaxplan.plans._explain import explain_data
    from jaxplan.plans._why import explain_leaves_data

    plan = _chosen(_loaded(arguments.file, arguments), arguments.choose, arguments.file, "fastest")
    path = arguments.path
    if path is not None and plan.graph is None:
        raise ArgumentError(
            f"explaining {path!r} prices other layouts, which needs the step.\n"
            "  expected: --step MODULE:FUNCTION and --args MODULE:FUNCTION"
        )
    print_result(
        arguments,
        lambda: plan.explain(path),
        lambda: explain_data(plan) if path is None else explain_leaves_data(plan, path),
    )
    return 0


def _run_export(arguments: argparse.Namespace) -> int:
    names = _axis_sizes(arguments.names)
    check_writable(arguments.output)
    plan = _chosen(_loaded(arguments.file, arguments), arguments.choose, arguments.file, "fastest")
    plan.export(arguments.output, names=names)
    print_result(arguments, lambda: f"wrote {arguments.output}", lambda: {"written": arguments.output})
    return 0


def _axis_sizes(given: list[str] | None) -> dict[str, int] | None:
    if given is None:
        return None
    pairs = [item.partition("=") for item in given]
    if not all(name and size.isascii() and size.isdigit() for name, _, size in pairs):
        raise ArgumentError(f"--names {' '.join(given)}: expected names and sizes, such as data=4 tensor=2")
    return {name: int(size) for name, _, size in pairs}


def _run_diff(arguments: argparse.Namespace) -> int:
    from jaxplan.plans._frontier import Frontier

    first, second = arguments.choose or (None, None)
    one = _loaded(arguments.file, arguments)
    if arguments.other is None and not isinstance(one, Frontier):
        raise ArgumentError(f"{arguments.file} holds one plan: diff needs a second file, or a frontier")
    other = one if arguments.other is None else _loaded(arguments.other, arguments)
    before = _chosen(one, first, arguments.file, "fastest")
    after = _chosen(other, second, arguments.other or arguments.file, "leanest" if other is one else "fastest")
    found = before.diff(after)
    print_result(arguments, lambda: found, found.to_json)
    return 0


def _loaded(file: str, arguments: argparse.Namespace) -> Plan | Frontier | JointPlan:
    if (arguments.step is None) != (arguments.args is None):
        raise ArgumentError("--step and --args go together: the step, and what returns its arguments")
    if arguments.step is None:
        return jaxplan.load(file)
    step, args = named_step(arguments)
    return jaxplan.load(file, step, *args, **static_options(arguments))


def _chosen(loaded: Plan | Frontier | JointPlan, which: str | None, file: str, default: str) -> Plan:
    from jaxplan.plans._frontier import Frontier
    from jaxplan.plans._joint import JointPlan

    if isinstance(loaded, Frontier):
        return loaded.choose(which or default)
    if isinstance(loaded, JointPlan):
        return _of_step(loaded, which, file)
    if which:
        raise ArgumentError(f"{file} holds one plan: --choose needs a frontier")
    return loaded


def _of_step(joint: JointPlan, step: str | None, file: str) -> Plan:
    """The plan of one step of a joint plan, by its name."""
    if step is None or step not in joint.plans:
        steps = ", ".join(joint.plans)
        raise ArgumentError(f"{file} holds the plans of several steps: --choose names one of them: {steps}")
    return joint[step]
