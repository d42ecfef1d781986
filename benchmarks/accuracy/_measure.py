"""Plans of a model are chosen, compiled, and set beside their predictions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

import jaxplan
from benchmarks.accuracy._models import MODELS
from benchmarks.accuracy._record import Record
from benchmarks.models import build
from jaxplan.audit import audit_plan, compile_plan
from jaxplan.mesh import Topology

MOST_POINTS = 10
LEAST_APART = 0.02
ROLES = ("leanest", "fastest", "knee")


def chosen_points(frontier: jaxplan.Frontier, most: int) -> list[tuple[str, str, jaxplan.Plan]]:
    """(name, kind, plan): both ends and the knee, the references, and points between, none of the same memory twice."""
    fits = frontier.points[0].topology.memory_limit_bytes
    wanted = [(role, role, frontier.choose(role)) for role in ROLES]
    named = [
        (name, "reference", plan) for name, plan in frontier.references.items() if plan.memory_bytes <= fits
    ]
    inner = frontier.points[1:-1]
    spread = [inner[i] for i in _bisecting(len(inner))]
    between = [(f"#{frontier.points.index(plan)}", "between", plan) for plan in spread]
    for pair in itertools.zip_longest(named, between):
        wanted += [item for item in pair if item is not None]
    chosen: list[tuple[str, str, jaxplan.Plan]] = []
    for name, kind, plan in wanted:
        near = (abs(plan.memory_bytes / p.memory_bytes - 1) for _, _, p in chosen)
        is_new = all(plan.configurations != p.configurations for _, _, p in chosen)
        if is_new and len(chosen) < most and (kind == "reference" or all(d >= LEAST_APART for d in near)):
            chosen.append((name, kind, plan))
    return chosen


def _bisecting(count: int) -> Iterator[int]:
    """0 .. count - 1, the middle first, then the middles of the halves, and so on."""
    halves = [(0, count)]
    while halves:
        low, high = halves.pop(0)
        if low < high:
            middle = (low + high) // 2
            yield middle
            halves += [(low, middle), (middle + 1, high)]


def is_data_parallel(plan: jaxplan.Plan) -> bool:
    sums_only = all(c.kind == "all-reduce" for c in plan.prediction.collectives)
    stored = [i for i, path in enumerate(plan.in_paths) if i not in _batch(plan)]
    return sums_only and all(not any(plan.input_shardings[i].dims) for i in stored)


def _batch(plan: jaxplan.Plan) -> set[int]:
    program = plan.require_program().program
    return set(range(len(program.inputs))) - set(program.aliases.values())


def measure(
    model: str, topology: str, name: str, kind: str, plan: jaxplan.Plan, cache: Path | None
) -> Record:
    """Compile one plan and set it beside its prediction."""
    prediction = plan.prediction
    known: dict[str, Any] = {
        "model": model,
        "topology": topology,
        "point": name,
        "kind": kind,
        "data_parallel": is_data_parallel(plan),
        "predicted_memory": prediction.memory_bytes,
        "predicted_parts": dict(prediction.memory_parts),
        "predicted_flops": int(prediction.flops),
    }
    try:
        compiled = compile_plan(plan, cache_dir=cache)
        audit = audit_plan(plan, report=compiled)
    except jaxplan.JaxplanError as error:
        empty = {"compiled_memory": 0, "compiled_flops": 0, "collectives": (), "unexpected": ()}
        return Record(**known, **empty, rematerialised=False, failure=str(error)[-400:])
    kinds = dict.fromkeys(row.kind for row in audit.rows)
    totals = tuple(
        (
            kind,
            sum(row.predicted_bytes for row in audit.rows if row.kind == kind),
            sum(row.compiled_bytes for row in audit.rows if row.kind == kind),
        )
        for kind in kinds
    )
    return Record(
        **known,
        compiled_memory=audit.compiled_memory_bytes,
        compiled_flops=audit.compiled_flops,
        collectives=totals,
        unexpected=tuple(
            f"{c.kind} {c.total_bytes} bytes, {c.op_name} ({c.source})" for c in audit.unexpected
        ),
        rematerialised=audit.rematerialised,
    )


def run_pair(model: str, topology: str, most: int, cache: Path | None, jobs: int) -> list[Record]:
    """Plan a model and compile the chosen points."""
    jax.clear_caches()  # an earlier trace must not show in the program: its text is the key of the cache
    base, overrides = MODELS[model]
    step, args = build(base, **overrides)
    frontier = jaxplan.plan(step, *args, topology=Topology.parse(topology), progress=False)
    points = chosen_points(frontier, most)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(measure, model, topology, *point, cache) for point in points]
        records = []
        for future in waiting:
            records.append(future.result())
            print(line_of(records[-1]), flush=True)
    return records


def line_of(record: Record) -> str:
    head = f"{record.model:<12} {record.topology:<8} {record.point:<16}"
    if record.failure:
        return f"{head} FAILED: {record.failure.splitlines()[-1] if record.failure else ''}"
    ratio = record.predicted_memory / record.compiled_memory
    moved = ", ".join(f"{k} {p / max(c, 1):.3f}" for k, p, c in record.collectives if max(p, c) > 64 * 1024)
    flags = (" REMATERIALISED" if record.rematerialised else "") + (
        f" {len(record.unexpected)} UNEXPECTED" if record.unexpected else ""
    )
    return (
        f"{head} {record.compiled_memory / 2**30:8.3f} GiB, predicted {ratio:6.3f} of it; FLOPs "
        f"{record.predicted_flops / max(record.compiled_flops, 1):6.3f}; {moved}{flags}"
    )
