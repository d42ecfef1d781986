"""Bind a plan that was read from a file to the step that it was made for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxplan.core._json import read_json
from jaxplan.core._once import Once
from jaxplan.core._paths import readable_path
from jaxplan.cost import offloadable_arguments
from jaxplan.errors import PlanFileError, PlanMismatchError
from jaxplan.frontend._arguments import argnames, argnums, check_call
from jaxplan.frontend._options import Options
from jaxplan.ir import (
    LoopRemat,
    MicroBatches,
    Program,
    SortBlocks,
    StepGraph,
    loop_recomputed_graph,
    recomputable_blocks,
    rematerialise,
    sliced_graph,
    sorted_graph,
)
from jaxplan.ir.attention import attention_graph
from jaxplan.partition import decide_lowering
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._joint import JointPlan
from jaxplan.plans._joint_json import JOINT_SCHEMA
from jaxplan.plans._plan import Plan
from jaxplan.plans._plan_json import FRONTIER_SCHEMA, PLAN_SCHEMA
from jaxplan.plans._staged_json import STAGED_SCHEMA
from jaxplan.plans._staged_plan import StagedPlan, any_plan_from_json
from jaxplan.search._traced import analyse_step
from jaxplan.search.stages import bound_in_stages

_MOST_NAMED = 3
_OTHER_LOWERING_MSG = (
    "the plan's lowering decisions are for {given} arrays, and this jaxplan finds {found} in the step.\n"
    "  likely cause: another version of jaxplan wrote the file, or it was edited\n"
    "  fix: plan again with jaxplan.plan"
)
_NOT_OFFLOADABLE_MSG = (
    "the plan keeps arguments on the host that this jaxplan finds cannot live there: {names}.\n"
    "  expected: parameters, or donated state beside them that element-wise operators alone read\n"
    "  likely cause: another version of jaxplan wrote the file, or it was edited\n"
    "  fix: plan again with jaxplan.plan"
)
_OTHER_BLOCKS_MSG = (
    "the plan recomputes some of {of} repeated blocks, and this jaxplan finds {found} in the step.\n"
    "  likely cause: another version of jaxplan wrote the file, or it was edited\n"
    "  fix: plan again with jaxplan.plan"
)

_JOINT_FILE_MSG = (
    "{path!r} has the plans of several steps.\n"
    "  expected: the file of one step's plan, or all of the steps by name\n"
    '  fix: jaxplan.load(path, {{"train": (train_step, args), "eval": (eval_step, args)}})["train"]'
)
_ONE_STEP_FILE_MSG = (
    "{path!r} has the plan of one step, and several were given by name.\n"
    "  expected: a file that JointPlan.save wrote\n"
    "  fix: jaxplan.load(path, step, *args)"
)
_OTHER_STEPS_MSG = (
    "the joint plan is of other steps.\n"
    "  given:    {given}\n"
    "  planned:  {planned}\n"
    "  fix: give the steps that were planned together, under their names"
)


def read_plan_file(path: str | Path, binder: Binder) -> Plan | Frontier | JointPlan:
    """A plan or a frontier from its file, each plan bound; a joint plan, where there is no step to bind.

    Raises:
      PlanFileError: not a plan file, another schema version, or too large.
      PlanMismatchError: the step is not the one that the plan was made for; names the difference.
    """
    data = _plan_data(path)
    schema = _schema_of(data)
    if schema == JOINT_SCHEMA:
        if binder.has_step:
            raise PlanMismatchError(_JOINT_FILE_MSG.format(path=str(path)))
        return JointPlan.from_json(data)
    if schema in (PLAN_SCHEMA, STAGED_SCHEMA):
        return binder.read(data)
    if schema == FRONTIER_SCHEMA:
        return Frontier.from_json(data, binder.read)
    raise PlanFileError(
        f"{str(path)!r} has schema {schema!r}; expected {PLAN_SCHEMA!r} or {FRONTIER_SCHEMA!r}: "
        "is it a file that Plan.save or Frontier.save wrote?\n"
        "  likely cause: it is another JSON file\n"
        "  fix: save the plan again, or plan again with jaxplan.plan"
    )


def read_joint_file(path: str | Path, binders: Mapping[str, Binder]) -> JointPlan:
    """A joint plan from its file, each plan bound to the step of its name.

    Raises:
      PlanFileError: not the file of a joint plan, another schema version, or too large.
      PlanMismatchError: the steps are others than those of the plan; names the difference.
    """
    data = _plan_data(path)
    if _schema_of(data) != JOINT_SCHEMA:
        raise PlanMismatchError(_ONE_STEP_FILE_MSG.format(path=str(path)))
    def read(step: str, of: Any) -> Plan:
        return binders[step].read(of)

    steps = data.get("steps")
    if isinstance(steps, list) and set(map(str, steps)) != set(binders):
        given, planned = (", ".join(sorted(map(str, names))) for names in (binders, steps))
        raise PlanMismatchError(_OTHER_STEPS_MSG.format(given=given, planned=planned))
    return JointPlan.from_json(data, read)


def _plan_data(path: str | Path) -> Any:
    """The content of a plan file."""
    return read_json(
        path,
        kind="plan file",
        writer="Plan.save or Frontier.save",
        fix="save the plan again, or plan again with jaxplan.plan",
        error=PlanFileError,
    )


def _schema_of(data: Any) -> Any:
    """The schema that a plan file names; None: it is no plan file."""
    return data.get("schema") if isinstance(data, dict) else None


def given_plan(
    step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: Options
) -> tuple[Frontier, Plan]:
    """The plan that options name, bound to the step, and the frontier that it is of.

    Raises:
      PlanMismatchError, PlanFileError: the plan is another step's, or no plan.
    """
    binder = Binder(
        step=step,
        args=args,
        kwargs=kwargs,
        static_argnums=options.static_argnums,
        static_argnames=options.static_argnames,
    )
    found = options.plan
    found = binder.bind(found) if isinstance(found, Plan) else read_plan_file(found, binder)
    assert not isinstance(found, JointPlan), "a binder with a step refuses the file of several"
    if isinstance(found, Plan):
        return Frontier(points=(found,), memory_limit_bytes=options.memory_limit_bytes), found
    return found, found.choose(options.choose)


class Binder:
    """Gives plans their program; the step is analysed once for all plans of a frontier."""

    def __init__(
        self,
        *,
        step: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        graph: StepGraph | None = None,
    ) -> None:
        """``graph``: of the step, where it is known and no arguments are given."""
        self._step, self._args, self._kwargs, self._graph = step, args, kwargs, graph
        self._static = argnums(static_argnums, "static_argnums") or ()
        self._static_names = argnames(static_argnames, "static_argnames")
        self._graphs: dict[Any, StepGraph] = {}

    @property
    def has_step(self) -> bool:
        """Whether plans are bound at all."""
        return self._step is not None

    def read(self, data: Any) -> Plan:
        """A plan from its plain data, bound."""
        return self.bind(any_plan_from_json(data))

    def bind(self, plan: Plan) -> Plan:
        if self._step is None:
            return plan
        if plan.donate_argnums not in self._graphs:
            self._graphs[plan.donate_argnums] = self._analyse(plan)
        graph = self._graphs[plan.donate_argnums]
        if isinstance(plan, StagedPlan):
            _check_same_program(plan, graph.program)
            return bound_in_stages(plan, graph, _bound_to)
        if _rewritten(graph.program) != _rewritten(plan) or graph.program.sequences not in (None, _form(plan)):
            graph = self._sliced(plan, graph)
        if graph.program.sequences != _form(plan):
            graph = self._in_blocks(plan, graph)
        _check_same_program(plan, graph.program)
        if plan.remat is not None:
            graph = self._rematerialised(plan, graph)
        if plan.offload is not None:
            graph = _offloaded(plan, graph)
        _check_same_groups(plan, graph)
        if plan.decided is None:
            bound = graph, plan.topology, plan.configurations, plan.repeated
            return dataclasses.replace(plan, graph=graph, decided=Once(lambda: decide_lowering(*bound)))
        _check_same_lowering(plan, graph)
        return dataclasses.replace(plan, graph=graph)

    def _sliced(self, plan: Plan, graph: StepGraph) -> StepGraph:
        """The step with its batch in the slices of the plan, and its loops as they are there."""
        key = (plan.donate_argnums, repr(_rewritten(plan)))
        if key not in self._graphs:
            unknown = set(plan.microbatches.dims if plan.microbatches else ()) - set(graph.program.in_paths)
            if not unknown:
                graph = loop_recomputed_graph(graph, plan.recomputed_loops)
                if graph.program.sort_blocks != plan.sort_blocks:
                    graph = sorted_graph(graph, plan.sort_blocks)
                if graph.program.microbatches != plan.microbatches:
                    graph = sliced_graph(graph, plan.microbatches)
            self._graphs[key] = graph
        return self._graphs[key]

    def _in_blocks(self, plan: Plan, graph: StepGraph) -> StepGraph:
        """The step with its attention in blocks of keys, as the plan has it."""
        key = (plan.donate_argnums, repr(_rewritten(plan)), _form(plan))
        if key not in self._graphs:
            assert plan.sequences is not None
            self._graphs[key] = attention_graph(graph, plan.sequences.form)
        return self._graphs[key]

    def _rematerialised(self, plan: Plan, graph: StepGraph) -> StepGraph:
        key = (plan.donate_argnums, plan.remat, repr(_rewritten(plan)), _form(plan))
        if key not in self._graphs:
            assert plan.remat is not None
            blocks = recomputable_blocks(graph)
            if len(blocks) != plan.remat.of:
                raise PlanMismatchError(_OTHER_BLOCKS_MSG.format(of=plan.remat.of, found=len(blocks)))
            self._graphs[key] = rematerialise(graph, plan.remat, blocks).graph
        return self._graphs[key]

    def _analyse(self, plan: Plan) -> StepGraph:
        step = self._step
        if not (self._args or self._kwargs):
            if self._graph is not None:
                return self._graph.traced or self._graph
            raise PlanMismatchError(
                "load was given a step but no arguments to trace it with; "
                "give example arguments: jaxplan.load(path, step, *args)"
            )
        check_call(step, self._args, self._kwargs, entry="jaxplan.load", before="path, ")
        return analyse_step(
            step,
            self._args,
            self._kwargs,
            donate_argnums=plan.donate_argnums,
            static_argnums=self._static,
            static_argnames=self._static_names,
            topology=plan.topology,
        )


def _rewritten(of: Plan | Program) -> tuple[MicroBatches | None, LoopRemat | None, SortBlocks | None]:
    """How a step is traced for a plan."""
    return of.microbatches, of.recomputed_loops, of.sort_blocks


def _form(plan: Plan) -> str | None:
    return None if plan.sequences is None else plan.sequences.form


def _bound_to(plan: Plan, graph: StepGraph) -> Plan:
    """A plan bound to a program that was traced before."""
    return Binder(step=graph, args=(), kwargs={}, graph=graph).bind(plan)


def _offloaded(plan: Plan, graph: StepGraph) -> StepGraph:
    """The step with the arguments on the host that the plan keeps there."""
    assert plan.offload is not None
    could, paths = offloadable_arguments(graph), graph.program.in_paths
    of = plan.offload
    wanted = dict.fromkeys(of.parameters) | dict(zip(of.inputs, of.outputs, strict=True))
    if astray := [i for i, o in wanted.items() if i not in could or could[i] != o]:
        names = [paths[i] if i < len(paths) else f"input {i}" for i in astray]
        raise PlanMismatchError(_NOT_OFFLOADABLE_MSG.format(names=_few(names)))
    if plan.offload.regions and plan.offload.regions_of != len(graph.waiting):
        raise PlanMismatchError(_OTHER_BLOCKS_MSG.format(of=plan.offload.regions_of, found=len(graph.waiting)))
    return dataclasses.replace(graph, offload=plan.offload)


def _check_same_groups(plan: Plan, graph: StepGraph) -> None:
    """The program can be the same and its groups others: they belong to the jaxplan that made the plan."""
    sizes = [axis.size for axis in plan.topology.axes]
    fits = len(plan.configurations) == len(graph.spaces) and all(
        len(config) == len(space.classes)
        and all(
            cls.divisible_by(math.prod(sizes[a] for a in axes)) for cls, axes in zip(space.classes, config)
        )
        for space, config in zip(graph.spaces, plan.configurations, strict=True)
    )
    tensors = graph.program.tensors
    leaves = all(
        len(shardings) == len(places)
        and all(sharding.divides(tensors[t].shape, plan.topology.axes) for sharding, t in zip(shardings, places))
        for shardings, places in (
            (plan.input_shardings, graph.program.inputs),
            (plan.output_shardings, graph.program.outputs),
        )
    )
    if not (fits and leaves):
        raise PlanMismatchError(
            f"the plan lays out {len(plan.configurations)} groups of operators otherwise than this jaxplan forms them "
            f"({len(graph.spaces)} groups).\n"
            "  likely cause: another version of jaxplan wrote the file, or it was edited\n"
            "  fix: plan again with jaxplan.plan"
        )


def _check_same_lowering(plan: Plan, graph: StepGraph) -> None:
    """The lowering decisions are of the program's own tensors and equations."""
    lowering, program = plan.lowering, graph.program
    homes = lowering.homes
    fits = len(homes) == len(program.tensors) and all(e < len(program.equations) for e in lowering.reads)
    if not fits or any(homes[t] not in (None, layout) for t, layout in zip(program.inputs, plan.input_shardings)):
        raise PlanMismatchError(_OTHER_LOWERING_MSG.format(given=len(homes), found=len(program.tensors)))


def _check_same_program(plan: Plan, program: Program) -> None:
    if program.fingerprint == plan.fingerprint:
        return
    raise PlanMismatchError(
        "the plan was made for another program.\n"
        f"  plan:     {plan.fingerprint[:16]} ({len(plan.in_paths)} input leaves)\n"
        f"  step:     {program.fingerprint[:16]} ({len(program.in_paths)} input leaves)\n"
        "  expected: the step and arguments that the plan was made for, in the same settings of JAX\n"
        f"  differs:  {_difference(plan, program)}\n"
        "  likely cause: the step, its batch or its optimizer has changed since the plan was saved\n"
        "  fix: plan again with jaxplan.plan, or give load the step and arguments the plan was made for"
    )


def _difference(plan: Plan, program: Program) -> str:
    """Which input differs, or that it is the step."""
    ours, theirs = dict(zip(program.in_paths, program.in_avals)), dict(zip(plan.in_paths, plan.in_avals))

    def named(paths: Iterable[str]) -> list[str]:
        return [readable_path(path, program.argument_names) for path in paths]

    missing, added = named(p for p in theirs if p not in ours), named(p for p in ours if p not in theirs)
    if missing or added:
        return f"arguments only in the plan: {_few(missing)}; only in the step: {_few(added)}"
    changed = [path for path in ours if ours[path] != theirs[path]]
    if changed:
        pairs = zip(named(changed), changed, strict=True)
        return _few([f"{name} is {ours[path]}, and {theirs[path]} in the plan" for name, path in pairs])
    return (
        "the arguments are the same; the step's own code does (or its static arguments, or settings or another "
        "version of JAX, which trace it otherwise)"
    )


def _few(items: Sequence[str]) -> str:
    more = f", and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return (", ".join(items[:_MOST_NAMED]) or "none") + more
