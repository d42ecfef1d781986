"""The step that a command of the shell names: its arguments on the command line, and how they are found."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from jaxplan.core._units import parse_memory
from jaxplan.errors import ArgumentError


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a step, its arguments and the machine."""
    add_planning_arguments(parser)
    parser.add_argument(
        "--topology", metavar="CHIP:SHAPE", help="such as h100:8 or a100:2x8; default: this machine"
    )
    parser.add_argument(
        "--profile", metavar="FILE", help="price with what `jaxplan profile` measured on that machine"
    )


def add_planning_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a step and its arguments, and how it is planned."""
    parser.add_argument(
        "step", metavar="MODULE:FUNCTION", help="the step; MODULE may be a path that ends in .py"
    )
    parser.add_argument(
        "--args", required=True, metavar="MODULE:FUNCTION", help="returns the tuple of the step's arguments"
    )
    parser.add_argument(
        "--memory", metavar="AMOUNT", help="limit per device, such as 40GiB; default: the device's own"
    )
    parser.add_argument("--solver", default="auto", help="default: auto")
    parser.add_argument(
        "--donate",
        type=int,
        nargs="*",
        metavar="N",
        help="arguments that the step may overwrite, none without a number; default: those that it returns updated",
    )
    _add_rewrites(parser)
    parser.add_argument(
        "--options",
        metavar="MODULE:FUNCTION",
        help="returns further options as a dict: pins, axes, references (docs/steering.md)",
    )
    parser.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="rank plans by simulated times, communication beside compute (the default), or by the sum of both",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="the search ends then with the best plans so far; default: none",
    )
    add_static_argument(parser)


def _add_rewrites(parser: argparse.ArgumentParser) -> None:
    """Add the options that rewrite the step before it is planned."""
    parser.add_argument(
        "--remat",
        action=argparse.BooleanOptionalAction,
        help="plans may compute blocks of the forward pass again (docs/remat.md); default: where memory is short",
    )
    parser.add_argument(
        "--microbatches",
        metavar="N|look|none",
        help="slices of the batch, one after the other (docs/microbatches.md); default: where nothing fits otherwise",
    )
    parser.add_argument(
        "--offload",
        action=argparse.BooleanOptionalAction,
        help="state, parameters, activations may live on the host (docs/offload.md); default: where nothing fits else",
    )
    parser.add_argument(
        "--stages",
        metavar="N|look|none",
        help="parts of the step on devices of their own, in a pipeline (docs/stages.md); default: where nothing fits "
        "otherwise",
    )


def add_static_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that names static arguments."""
    parser.add_argument(
        "--static",
        nargs="+",
        default=[],
        metavar="N|NAME",
        help="arguments that are no arrays, by number or name; a jitted step names its own",
    )


def static_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `jaxplan.plan` and `jaxplan.load` that `--static` stands for."""
    numbers = tuple(int(item) for item in arguments.static if item.lstrip("-").isdigit())
    names = tuple(item for item in arguments.static if not item.lstrip("-").isdigit())
    return {"static_argnums": numbers, **({"static_argnames": names} if names else {})}


def step_arguments(
    arguments: argparse.Namespace,
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return the step, its arguments, and the options of `jaxplan.plan` that were given."""
    step, args = named_step(arguments)
    options = {
        "topology": _topology(arguments),
        "memory": parse_memory(arguments.memory) if arguments.memory is not None else None,
        "solver": arguments.solver,
        "donate_argnums": None if arguments.donate is None else tuple(arguments.donate),
        **static_options(arguments),
    }
    if arguments.time_limit is not None:
        options["time_limit"] = arguments.time_limit
    if not arguments.overlap:
        options["overlap"] = False
    if arguments.remat is not None:
        options["remat"] = arguments.remat
    if arguments.microbatches is not None:
        options["microbatches"] = _number("microbatches", "slices", arguments.microbatches)
    if arguments.stages is not None:
        options["stages"] = _number("stages", "stages", arguments.stages)
    if arguments.offload is not None:
        options["offload"] = arguments.offload
    if arguments.options is not None:
        options.update(_further_options(arguments.options))
    return step, args, options


def _number(option: str, of: str, given: str) -> bool | int:
    if given in ("look", "none"):
        return given == "look"
    if not given.isascii() or not given.isdigit():
        raise ArgumentError(f"--{option} {given}: expected a number of {of}, 'look' or 'none'")
    return int(given)


_FURTHER_OPTIONS = ("pins", "axes", "references")


def _further_options(reference: str) -> dict[str, Any]:
    """The options that a function returns: those that the command line has no spelling for."""
    found = _resolve(reference)()
    if not isinstance(found, dict) or not set(found) <= set(_FURTHER_OPTIONS):
        raise ArgumentError(
            f"--options {reference} returned {found!r}.\n"
            f"  expected: a dict with some of {', '.join(map(repr, _FURTHER_OPTIONS))}"
        )
    return found


def named_step(arguments: argparse.Namespace) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the step that `step` names, and the arguments that `--args` makes."""
    args = _made_arguments(arguments.args)
    return _undecorated(_resolve(arguments.step)), args


def _made_arguments(reference: str) -> tuple[Any, ...]:
    """The result of the function of `--args`: a tuple or list of arguments, or the only one."""
    make = _resolve(reference)
    try:
        args = make()
    except Exception as error:
        raise ArgumentError(
            f"--args {reference} failed when it was called: {type(error).__name__}: {error}.\n"
            "  expected:     a function without arguments that returns the tuple of the step's arguments\n"
            "  likely cause: it takes arguments itself, or what it reads is not there\n"
            "  fix:          call it in Python first; jax.ShapeDtypeStruct does for an array"
        ) from error
    if args is None:
        raise ArgumentError(
            f"--args {reference} returned None.\n"
            "  expected:     the tuple of the step's arguments\n"
            "  likely cause: the function has no return\n"
            "  fix:          return (state, batch)"
        )
    is_one = not isinstance(args, tuple | list) or hasattr(args, "_fields")  # a NamedTuple is an argument
    return (args,) if is_one else tuple(args)


def _topology(arguments: argparse.Namespace) -> Any:
    """The given topology; with the prices of the profile where one was given too."""
    if arguments.profile is None:
        return arguments.topology
    from jaxplan.mesh import parse_topology

    return parse_topology(arguments.topology).with_profile(arguments.profile)


def _resolve(reference: str) -> Any:
    """Return the object named by "module:attribute" or "path/to/file.py:attribute"; attributes may be dotted."""
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
        raise ArgumentError(
            f"{reference!r} is not a function: its type is {type(found).__name__}.\n"
            "  expected: the name of a function of that module"
        )
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
                raise  # the module was found; something that it imports was not
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
