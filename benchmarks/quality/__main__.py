"""Ours against the strategies that people write, on compiled programs: does any of them beat a frontier?

    python -m benchmarks.quality --cache .aot --save quality.jsonl              # the twelve pairs that gate
    python -m benchmarks.quality --cache .aot --pair gpt2-small@h100:8 --layers 12
    python -m benchmarks.quality --most 0 --layers 100                           # whole models, only predicted
    python -m benchmarks.quality --read benchmarks/records/quality.jsonl        # report saved records

For each model and machine: our fastest, knee and leanest, every reference strategy that is predicted to fit, and
points between that should beat a reference which those three do not. All are compiled without the machine. Memory is
the compiler's; time is priced from the compiled program, kernel by kernel, by `_timeline`, which says which is
assumed: once serial, once overlapped. Layers of a stack are equal, so that `--layers` of them are compiled, with the
real widths and batches.

A pair holds where our fastest is at most 1 % slower than the best reference that fits, serial and overlapped, and every
reference is matched by one point of ours in time and memory, 1 % tolerance. Exit status 1 when one of `GATES` does not.
Compiled programs are kept in the cache, and records after each pair, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax

import jaxplan
from benchmarks.models import MODELS, build
from benchmarks.quality._pricing import collective_seconds, slowest_level
from benchmarks.quality._record import LinkTraffic, Record, read_records, save_pair
from benchmarks.quality._report import HEADER, judge, report, row, sentence, undominated
from benchmarks.quality._timeline import timeline
from jaxplan.audit import CompiledReport, audit_plan, compile_plan
from jaxplan.mesh import Topology

GATES = (
    "gpt2-small@h100:8",
    "gpt2-small@a100-pcie:8",
    "gpt2-medium@h100:2x8",
    "bert-large@a100-pcie:8",
    "vit-l16@h100:8",
    "resnet50@h100:8",
    "wide-resnet50-2@a100-pcie:8",
    "lstm@h100:8",
    "transformer-big@a100:4x8",
    "moe-8x@h100:8",
    "dlrm@h100:8",
    "mlp-huge-last@h100:8",
)
"""Named before the first run."""
DEFAULT_LAYERS = 2
MOST_BETWEEN = 4
"""Points of a pair that are compiled because a reference is not matched yet."""
NEARLY = 1.05
"""A point predicted to be this much slower or larger than a reference may still match it once compiled."""


def layer_overrides(model: str, layers: int) -> tuple[dict[str, Any], str]:
    """Overrides for a model of at most `layers` layers, and their text; all of it where its layers are no stack."""
    config = MODELS[model].config
    if hasattr(config, "stage_sizes"):
        sizes = tuple(min(layers, size) for size in config.stage_sizes)
        return {"stage_sizes": sizes}, f"{sum(sizes)} of {sum(config.stage_sizes)} blocks"
    if hasattr(config, "num_blocks"):
        sizes = tuple(min(layers, size) for size in config.num_blocks)
        return {"num_blocks": sizes}, f"{sum(sizes)} of {sum(config.num_blocks)} mixed blocks"
    if not hasattr(config, "num_layers") or model.startswith("mlp"):
        return {}, "whole"
    count = min(layers, config.num_layers)
    return {"num_layers": count}, f"{count} of {config.num_layers} layers"


@dataclass(slots=True, kw_only=True)
class _Pair:
    """One model on one machine, while its plans are compiled; equal plans are compiled once."""

    model: str
    topology: Topology
    size: str
    frontier: jaxplan.Frontier
    cache: Path | None
    records: dict[Any, Record] = field(default_factory=dict)

    def measure(self, plan: jaxplan.Plan, point: str, role: str) -> None:
        """Compile a plan and keep its record; a plan that has one gets the role as well."""
        key = plan_key(plan)
        known = self.records.get(key)
        if known is not None:
            self.records[key] = replace(known, roles=tuple(dict.fromkeys((*known.roles, role))))
            return
        twins = [name for name, other in self.frontier.references.items() if plan_key(other) == key]
        is_twin = role != "reference" and bool(twins)
        head = {
            "model": self.model,
            "topology": self.topology.name,
            "size": self.size,
            "point": f"{point} {twins[0]}" if is_twin else point,
            "roles": (role, "reference") if is_twin else (role,),
            "predicted_memory": plan.memory_bytes,
            "predicted_seconds": plan.time_seconds,
        }
        self.records[key] = measured(plan, head, self.cache)
        print(row(self.records[key]), flush=True)

    def leave(self, plan: jaxplan.Plan, point: str, role: str) -> None:
        """Keep a record that says that a plan was not compiled."""
        head = {"model": self.model, "topology": self.topology.name, "size": self.size, "roles": (role,)}
        figures = {"predicted_memory": plan.memory_bytes, "predicted_seconds": plan.time_seconds}
        self.records[plan_key(plan)] = Record(**head, **figures, point=point, failure="not compiled yet")

    def compiled(self, plan: jaxplan.Plan) -> bool:
        return plan_key(plan) in self.records


def plan_key(plan: jaxplan.Plan) -> Any:
    """Equal for plans of one step that are one program."""
    return plan.configurations, plan.repeated


def measured(plan: jaxplan.Plan, head: dict[str, Any], cache: Path | None) -> Record:
    """The record of one plan, compiled and priced."""
    try:
        compiled = compile_plan(plan, cache_dir=cache)
    except jaxplan.JaxplanError as error:
        return Record(**head, failure=str(error)[-400:] or type(error).__name__)
    times = timeline(compiled.hlo_text or "", plan.topology)
    return Record(
        **head,
        compiled_memory=compiled.memory_bytes,
        fits=compiled.memory_bytes <= plan.topology.memory_limit_bytes,
        compute_seconds=times.compute_seconds,
        communication_seconds=times.communication_seconds,
        overlapped_seconds=times.overlapped_seconds,
        traffic=link_traffic(compiled, plan.topology),
        rematerialised=compiled.rematerialised,
        collectives_ok=audit_plan(plan, report=compiled).collectives_ok,
        compile_seconds=compiled.compile_seconds,
    )


def link_traffic(compiled: CompiledReport, topology: Topology) -> tuple[LinkTraffic, ...]:
    """The collectives of a program by kind, slowest link that they cross, and size of their groups."""
    totals: dict[tuple[str, str, int], tuple[int, int, float]] = {}
    for c in compiled.collectives:
        key = c.kind, topology.levels[slowest_level(c, topology)].name, c.group_size
        count, num_bytes, seconds = totals.get(key, (0, 0, 0.0))
        priced = c.count * collective_seconds(c, topology)
        totals[key] = count + c.count, num_bytes + c.total_bytes, seconds + priced
    return tuple(
        LinkTraffic(kind=kind, link=link, group_size=size, count=count, num_bytes=num_bytes, seconds=seconds)
        for (kind, link, size), (count, num_bytes, seconds) in sorted(totals.items())
    )


def run_pair(name: str, layers: int, cache: Path | None, most: int | None) -> list[Record]:
    """Plan a pair, compile its plans (`most` of them, the rest is left), print and return their records."""
    jax.clear_caches()  # an earlier trace must not show in the program: its text is the key of the cache
    model, _, where = name.partition("@")
    overrides, size = layer_overrides(model, layers)
    step, args = build(model, **overrides)
    start = time.perf_counter()
    topology = Topology.parse(where)
    frontier = jaxplan.plan(
        step, *args, topology=topology, donate_argnums=MODELS[model].donate_argnums, progress=False
    )
    pair = _Pair(model=model, topology=topology, size=size, frontier=frontier, cache=cache)
    print(f"\n{name}, {size}: {frontier!r}, planned in {time.perf_counter() - start:.1f} s\n{HEADER}", flush=True)
    for plan, point, role in _in_order(frontier):
        if most is None or len(pair.records) < most or pair.compiled(plan):
            pair.measure(plan, point, role)
        else:
            pair.leave(plan, point, role)
    if most is None:
        _match_references(pair)
    records = list(pair.records.values())
    print(sentence(judge(records), name in GATES), flush=True)
    return records


def _in_order(frontier: jaxplan.Frontier) -> list[tuple[jaxplan.Plan, str, str]]:
    """(plan, name, role) of the compiled plans of a frontier: ends, then references, those nearest to ours first."""

    def lead(reference: jaxplan.Plan) -> float:
        return min(_excess(point, reference) for point in frontier.points)

    limit = frontier.points[0].topology.memory_limit_bytes
    references = {n: p for n, p in frontier.references.items() if p.memory_bytes <= limit}
    ends = {role: frontier.choose(role) for role in ("fastest", "leanest", "knee")}
    named = [(plan, f"#{frontier.points.index(plan)}", role) for role, plan in ends.items()]
    others = [(references[n], n, "reference") for n in sorted(references, key=lambda n: -lead(references[n]))]
    best = min(others, key=lambda item: item[0].time_seconds, default=None)
    return list(dict.fromkeys([named[0], *([best] if best else []), named[1], *others, named[2]]))


def _excess(plan: jaxplan.Plan, reference: jaxplan.Plan) -> float:
    """How many times slower or larger than a reference a plan is predicted to be, in the worse of both."""
    return max(plan.time_seconds / reference.time_seconds, plan.memory_bytes / reference.memory_bytes)


def _match_references(pair: _Pair) -> None:
    """Compile points that are predicted to match references which nothing of ours matches yet."""
    for _ in range(MOST_BETWEEN):
        left = {r.point for r, _ in undominated(list(pair.records.values()))}
        plan = next(filter(None, (_rival(pair, pair.frontier.references[n]) for n in sorted(left))), None)
        if plan is None:
            return
        pair.measure(plan, f"#{pair.frontier.points.index(plan)}", "between")


def _rival(pair: _Pair, reference: jaxplan.Plan) -> jaxplan.Plan | None:
    """The point, not compiled yet, that should beat a reference by most in the lesser of both ratios."""
    fresh = [plan for plan in pair.frontier.points if not pair.compiled(plan)]
    best = min(fresh, key=lambda plan: _excess(plan, reference), default=None)
    return best if best is not None and _excess(best, reference) <= NEARLY else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.quality", description="Our plans against reference strategies, on compiled programs."
    )
    parser.add_argument("--pair", metavar="MODEL@TOPOLOGY", action="append", help="default: those that gate")
    parser.add_argument("--layers", type=int, default=DEFAULT_LAYERS, help="layers of a stack, or blocks of a stage")
    parser.add_argument("--most", type=int, default=None, help="plans compiled of a pair; what is left fails its gate")
    parser.add_argument("--cache", type=Path, default=None, help="folder to keep compiled programs in")
    parser.add_argument("--save", type=Path, default=None, help="file of records, each pair's replaced when it is done")
    parser.add_argument("--read", type=Path, nargs="+", help="compile nothing: report these saved records")
    options = parser.parse_args(arguments)
    if options.read:
        return report(read_records(options.read), GATES)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    wanted: Iterable[str] = options.pair or GATES
    records: list[Record] = []
    for name in wanted:
        try:
            found = run_pair(name, options.layers, options.cache, options.most)
        except jaxplan.JaxplanError:
            traceback.print_exc()
            continue
        records += found
        if options.save:
            save_pair(options.save, found)
    return report(records, [name for name in GATES if name in wanted])


if __name__ == "__main__":
    raise SystemExit(main())
