"""One plan for all processes of a run: they compare the step, the first one plans, and the others receive its plans."""

from __future__ import annotations

import dataclasses
import importlib.metadata as metadata
from collections.abc import Iterator
from typing import Any

import jax

from jaxplan.core._processes import agree, from_first, spans_processes
from jaxplan.core._progress import Progress
from jaxplan.core._version import __version__
from jaxplan.frontend._arguments import step_name
from jaxplan.frontend._options import Options
from jaxplan.ir import Program, StepGraph
from jaxplan.mesh import parse_topology
from jaxplan.plans._frontier import Frontier
from jaxplan.search._bind import Binder
from jaxplan.search._entry import StepToPlan, plan_on

_CAUSE = "another code, configuration, batch or installation in one of the processes"
_FIX = "start the same program with the same settings everywhere; read data by process, not shapes or options"
_OWN_OPTIONS = frozenset({"progress", "cache_dir", "max_plans", "like", "plan"})
"""Options that may differ: their consequences are compared in their place."""


def plan_everywhere(step: StepToPlan, options: Options) -> Frontier:
    """As `plan_on`, and where the plan's devices belong to several processes, one answer for all of them.

    Raises:
      ProcessError: the processes differ in the step, its arguments, options or versions; the same in every process.
      JaxplanError: as `plan_on`; the error of the first process, in every process.
    """
    topology = parse_topology(options.topology)
    if not spans_processes(jax.devices()[: topology.num_devices]):
        return plan_on(step, options)
    with Progress(options.progress) as report:
        graph = step.graph(topology, report)
    facts = {**_versions(), **_arguments(graph.program), **_options(options), "machine": str(topology)}
    facts["program that the step traces to"] = graph.program.fingerprint
    agree(f"the planning of {step_name(step.step)}", facts, cause=_CAUSE, fix=_FIX)
    own: list[Frontier] = []

    def planned() -> dict[str, Any]:
        own.append(plan_on(step, options))
        return own[0].to_json()

    received = from_first(f"the planning of {step_name(step.step)}", planned)
    return own[0] if own else _bound(received, step, graph)


def _bound(data: Any, step: StepToPlan, graph: StepGraph) -> Frontier:
    binder = Binder(step=step.step, args=(), kwargs={}, graph=graph)
    return Frontier.from_json(data, binder.read)


def _versions() -> dict[str, str]:
    versions = {"jaxplan": __version__, "jax": jax.__version__, "jaxlib": metadata.version("jaxlib")}
    return {f"version of {name}": version for name, version in versions.items()}


def _arguments(program: Program) -> dict[str, str]:
    found = {f"argument {path}": aval for path, aval in zip(program.in_paths, program.in_avals, strict=True)}
    return {**found, "arrays among the arguments": str(len(found))}


def _options(options: Options) -> dict[str, str]:
    return dict(_described(options))


def _described(options: Options) -> Iterator[tuple[str, str]]:
    for option in dataclasses.fields(options):
        if option.name not in _OWN_OPTIONS:
            value = getattr(options, option.name)
            text = repr(value)
            yield f"option {option.name}", type(value).__name__ if " at 0x" in text else text
