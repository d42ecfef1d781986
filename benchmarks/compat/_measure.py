"""One model through the whole pipeline: traced, planned, compiled; and small ones run beside one device."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxplan
from benchmarks.compat._registry import MODELS, build
from benchmarks.compat._work import work_of
from benchmarks.quality._pricing import price
from jaxplan.audit import audit_plan, compile_plan
from jaxplan.core._progress import Progress
from jaxplan.mesh import Topology

RUN_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPoint:
    """One compiled plan; bytes per device, seconds as `benchmarks.quality._pricing` prices the compiled program.

    Attributes:
      unexpected: collectives that the plan did not ask for, with operator and line.
      disagreeing: rows of the audit that disagree: (kind, predicted bytes, compiled bytes).
    """

    point: str
    predicted_memory: int
    compiled_memory: int
    predicted_flops: int
    compiled_flops: int
    predicted_seconds: float
    priced_seconds: float
    unexpected: tuple[str, ...]
    disagreeing: tuple[tuple[str, int, int], ...]
    rematerialised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The outcome of one model.

    Attributes:
      parameters: numbers that are trained.
      trace_seconds, planning_seconds: of the processor; planning is from ClosedJaxpr to frontier.
      without_rule, unsplit: shares of the step's work (`benchmarks.compat._work.Work`).
      split: the dimensions that the fastest plan splits.
      failure: stage and message, where it went no further.
    """

    model: str
    package: str
    version: str
    topology: str
    parameters: int = 0
    operators: int = 0
    groups: int = 0
    trace_seconds: float = 0.0
    planning_seconds: float = 0.0
    unknown: tuple[tuple[str, int], ...] = ()
    without_rule: float = 0.0
    unsplit: float = 0.0
    unsplit_because: tuple[tuple[float, str, str], ...] = ()
    num_plans: int = 0
    fastest_seconds: float = 0.0
    data_seconds: float = 0.0
    split: str = ""
    points: tuple[CompiledPoint, ...] = ()
    failure: str = ""
    notes: tuple[str, ...] = ()


def measure(
    name: str, topology: Topology, *, points: tuple[str, ...], cache: Path | None, memory: str | None = None
) -> Record:
    """Trace, plan and compile ``points`` (such as ``fastest``) of one model; a failure is part of the record."""
    known: dict[str, Any] = {
        "model": name,
        "package": MODELS[name].package,
        "version": MODELS[name].version,
        "topology": topology.name,
    }
    stage = "build"
    try:
        case = build(name)
        args = case.abstract_args()
        known["parameters"] = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(args[0]["params"]))
        stage = "trace"
        start = time.process_time()
        jax.jit(case.step).trace(*args)
        known["trace_seconds"] = round(time.process_time() - start, 2)
        stage = "plan"
        stages = Progress(False, clock=time.process_time)
        frontier = jaxplan.plan(
            case.step, *args, topology=topology, memory=memory, donate_argnums=(0,), progress=stages
        )
        stages("end", 1.0)
        planning = sum(seconds for part, seconds in stages.seconds.items() if part not in ("trace", "end"))
        known |= {"planning_seconds": round(planning, 2), **_planned(frontier)}
        stage = "compile"
        chosen = {point: frontier.choose(point) for point in points}
        compiled = tuple(_compile(point, plan, cache) for point, plan in chosen.items())
        return Record(**known, points=compiled)
    except Exception as error:  # the record says so, and the other models go on
        traceback.print_exc()
        return Record(**known, failure=f"{stage}: {type(error).__name__}: {str(error)[:400]}")


def _planned(frontier: jaxplan.Frontier) -> dict[str, Any]:
    fastest = frontier.fastest()
    graph = fastest.require_program()
    work = work_of(graph)
    data = frontier.references.get("data")
    return {
        "operators": len(graph.program.equations),
        "groups": len(graph.grouping.groups),
        "unknown": work.unknown,
        "without_rule": work.share_without_rule,
        "unsplit": work.share_unsplit,
        "unsplit_because": tuple((round(share, 4), name[:160], line) for share, name, line in work.reasons),
        "num_plans": len(frontier),
        "fastest_seconds": fastest.time_seconds,
        "data_seconds": data.time_seconds if data else 0.0,
        "split": fastest.summary,
        "notes": tuple(note[:200] for note in frontier.notes),
    }


def _compile(point: str, plan: jaxplan.Plan, cache: Path | None) -> CompiledPoint:
    report = compile_plan(plan, cache_dir=cache)
    audit = audit_plan(plan, report=report)
    return CompiledPoint(
        point=point,
        predicted_memory=plan.memory_bytes,
        compiled_memory=audit.compiled_memory_bytes,
        predicted_flops=audit.predicted_flops,
        compiled_flops=audit.compiled_flops,
        predicted_seconds=plan.time_seconds,
        priced_seconds=price(report, plan.topology).total_seconds,
        unexpected=tuple(f"{c.kind} {c.total_bytes} B, {c.op_name} ({c.source})" for c in audit.unexpected),
        disagreeing=tuple(
            (row.kind, row.predicted_bytes, row.compiled_bytes) for row in audit.rows if not row.ok
        ),
        rematerialised=audit.rematerialised,
    )


def run_beside_one_device(name: str, points: tuple[str, ...] = ("fastest", "leanest")) -> dict[str, float]:
    """Largest relative difference of the losses of a small step, planned on 8 CPU devices, from those on one.

    Needs eight devices: ``XLA_FLAGS=--xla_force_host_platform_device_count=8``.
    """
    case = build(name, small=True)
    frontier = jaxplan.plan(
        case.step, *case.abstract_args(), topology="cpu:8", memory="4GiB", donate_argnums=(0,), progress=False
    )
    alone = _losses(case, jax.jit(case.step))
    found = {}
    for point in points:
        losses = _losses(case, frontier.choose(point).jit())
        found[point] = float(np.max(np.abs(losses - alone) / np.maximum(np.abs(alone), 1e-6)))
    return found


def _losses(case: Any, run: Any) -> np.ndarray:
    state = jax.jit(case.make_state)(jax.random.key(0))
    losses = []
    for step in range(RUN_STEPS):
        batch = jax.jit(case.batch)(jax.random.key(step))
        state, loss = run(state, batch)
        losses.append(float(loss))
    return np.array(losses)
