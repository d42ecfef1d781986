"""The `jaxplan` command: plan a step that a module defines, or show a saved plan or frontier."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jaxplan
from jaxplan.cli._audit import add_audit_arguments, audit_of
from jaxplan.cli._checks import check_before_planning
from jaxplan.cli._compare import add_compare_command
from jaxplan.cli._doctor import add_doctor_command
from jaxplan.cli._errors import EXIT_AUDIT, EXIT_DONE, JsonParser, exit_code, print_error
from jaxplan.cli._interrupt import EXIT_INTERRUPTED, watched
from jaxplan.cli._output import add_output_arguments, print_result
from jaxplan.cli._profile import add_profile_command
from jaxplan.cli._scaling import add_scaling_commands
from jaxplan.cli._step import add_step_arguments, step_arguments
from jaxplan.cli._views import add_choice_arguments, add_view_commands, show_frontier
from jaxplan.core._interrupt import INTERRUPTED_NOTE
from jaxplan.core._log import shorten_plugin_errors
from jaxplan.core._progress import Progress
from jaxplan.core._units import format_seconds
from jaxplan.errors import ArgumentError

if TYPE_CHECKING:
    from jaxplan.plans._frontier import Frontier
    from jaxplan.plans._plan import Plan

_EPILOG = """\
examples:
  jaxplan plan train:train_step --args train:make_args --topology h100:8 --memory 40GiB --donate 0
  jaxplan plan examples/train_gpt.py:train_step --args examples/train_gpt.py:make_args --topology a100:2x8
  jaxplan min-devices train:train_step --args train:make_args --topology h100:16x8 --memory 60GiB
  jaxplan scaling train:train_step --args train:make_args --topology h100:4x8 --device-counts 1 8 32
  jaxplan compare train:train_step --args train:make_args --topologies h100:8 a100:16 --price h100=2.5 a100=1.1
  jaxplan show frontier.json
  jaxplan explain frontier.json block_3/up/kernel --step train:train_step --args train:make_args
  jaxplan diff frontier.json --choose knee fsdp
  jaxplan export frontier.json --step train:train_step --args train:make_args -o train_planned.py
  jaxplan audit frontier.json train:train_step --args train:make_args --choose knee
  jaxplan doctor --output doctor.json
  jaxplan profile --output here.json && jaxplan plan ... --profile here.json

every command prints plain data with --json, and {"error": {"type", "message", "exit_code", ...}} where it fails.
exit codes: 0 done, 1 failed, 2 something given is wrong (an option, a file, a step of another plan), 3 no plan fits
the memory or meets the pins, 4 the compiled program differs,
130 interrupted: what was found until then is saved and printed
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; an error is one line on stderr (--debug: a traceback)."""
    given = sys.argv[1:] if argv is None else argv
    arguments = _parser(as_json="--json" in given).parse_args(given)
    shorten_plugin_errors()
    with watched() as watch:
        arguments.watch, watch.as_json = watch, arguments.json
        try:
            code = arguments.run(arguments)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except Exception as error:  # the boundary to the shell: whatever happened becomes one line and a code
            if arguments.debug:
                raise
            if not watch.interrupted:
                print_error(error, as_json=arguments.json)
            code = exit_code(error)
        if watch.interrupted or code == EXIT_INTERRUPTED:
            watch.print_message()
            return EXIT_INTERRUPTED
        return code


def _parser(*, as_json: bool = False) -> argparse.ArgumentParser:
    kind = JsonParser if as_json else argparse.ArgumentParser  # subcommands have the same
    parser = kind(
        prog="jaxplan",
        description="Plans how a single-device JAX train step is sharded over several accelerators.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jaxplan {jaxplan.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    plan = commands.add_parser("plan", help="print the frontier of a step, and choose from it")
    add_step_arguments(plan)
    add_choice_arguments(plan)
    plan.add_argument("--save", metavar="FILE", help="write the frontier as JSON")
    plan.add_argument("--plan", metavar="FILE", help="write the chosen plan as JSON")
    plan.add_argument("--trace", metavar="FILE", help="simulate the chosen plan and write its timeline for Perfetto")
    plan.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        help="compile the points near the choice, and count what the compiler says; default: where the memory limit "
        "lies within the error of the choice",
    )
    plan.add_argument("--cache", metavar="FOLDER", help="with --verify, keep compiled programs there")
    plan.add_argument("--audit", action="store_true", help="compile the chosen plan and compare")
    plan.add_argument(
        "--advice", action="store_true", help="say what would make the chosen plan faster or leaner, with figures"
    )
    plan.set_defaults(run=_run_plan)

    add_view_commands(commands)
    add_scaling_commands(commands)
    add_compare_command(commands)
    add_audit_arguments(commands).set_defaults(run=_run_audit)
    add_profile_command(commands)
    add_doctor_command(commands)
    coverage = commands.add_parser("coverage", help="print which primitives of JAX have a rule, and what tests it")
    add_output_arguments(coverage)
    coverage.set_defaults(run=_run_coverage)
    return parser


def _run_plan(arguments: argparse.Namespace) -> int:
    step, args, options = step_arguments(arguments)
    if arguments.verify:
        options |= {"verify": arguments.choose or True, "cache_dir": arguments.cache}
    elif arguments.verify is False:
        options |= {"verify": False}
    elif arguments.cache:
        raise ArgumentError("--cache keeps what --verify compiles: give both, or neither")
    check_before_planning(arguments, options["topology"])
    arguments.watch.rescue = lambda: _save_found(arguments)
    with Progress() as progress:
        frontier = jaxplan.plan(step, *args, **options, progress=progress)
        if arguments.verify is None and arguments.choose and not arguments.watch.interrupted:
            frontier = _verified_near_limit(frontier, arguments.choose, progress)
    print(f"planned: {progress}", file=sys.stderr)
    plan = _save(frontier, arguments)
    if not arguments.json:
        show_frontier(frontier, arguments)
    interrupted = arguments.watch.interrupted
    data = {} if interrupted else _look_closer(plan, arguments)
    if arguments.json:  # one object, after all that may fail
        show_frontier(frontier, arguments, data)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_DONE if data.get("audit", {"ok": True})["ok"] else EXIT_AUDIT


def _verified_near_limit(frontier: Frontier, choose: str, progress: Progress) -> Frontier:
    from jaxplan.search._verify import verified_near_limit

    with contextlib.suppress(ArgumentError):  # a choice that is not there is an error once files are written
        return verified_near_limit(frontier, choose, progress=progress)
    return frontier


def _save(frontier: Frontier, arguments: argparse.Namespace) -> Plan:
    """Write the files that were asked for, and return the plan chosen."""
    with arguments.watch.saving():
        if arguments.save:  # before the choice, which this frontier may not have
            frontier.save(arguments.save)
        plan = frontier.choose(arguments.choose or "fastest")
        if arguments.plan:
            plan.save(arguments.plan)
    return plan


def _save_found(arguments: argparse.Namespace) -> None:
    """Write the results so far in the middle of the search, if anything fits."""
    from jaxplan.plans._frontier import Frontier

    found = arguments.watch.interruption
    frontier = Frontier.from_plans(
        found.plans, memory_limit_bytes=found.memory_limit_bytes, notes=(INTERRUPTED_NOTE,)
    )
    if arguments.save:
        frontier.save(arguments.save)
    if arguments.plan:
        frontier.choose(arguments.choose or "fastest").save(arguments.plan)


def _look_closer(plan: Plan, arguments: argparse.Namespace) -> dict[str, Any]:
    """Simulate and audit the plan as was asked for; print the results, or with `--json` return them alone."""
    found = {}
    if arguments.trace:
        simulation = plan.simulate()
        simulation.save_timeline(arguments.trace)
        found["simulated"] = {
            "time_seconds": simulation.time_seconds,
            "hidden_seconds": simulation.hidden_seconds,
            "timeline": arguments.trace,
        }
        if not arguments.json:
            print(
                f"simulated: {format_seconds(simulation.time_seconds)} a step with overlap, "
                f"{format_seconds(simulation.hidden_seconds)} of communication beside compute; "
                f"timeline in {arguments.trace}"
            )
    if arguments.audit:
        audit = plan.audit()
        found["audit"] = dataclasses.asdict(audit) | {"ok": audit.ok}
        if not arguments.json:
            print(audit.table())
    return found


def _run_audit(arguments: argparse.Namespace) -> int:
    audit = audit_of(arguments)
    print_result(arguments, audit.table, lambda: dataclasses.asdict(audit) | {"ok": audit.ok})
    return EXIT_DONE if audit.ok else EXIT_AUDIT


def _run_coverage(arguments: argparse.Namespace) -> int:
    from jaxplan.cli._coverage import coverage, coverage_table

    entries = coverage()
    print_result(arguments, lambda: coverage_table(entries), lambda: [dataclasses.asdict(entry) for entry in entries])
    return EXIT_DONE
