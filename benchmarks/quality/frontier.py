"""The compiler as referee of a frontier: every shown point compiled without its devices, beside the baselines.

    python -m benchmarks.quality.frontier --model gpt-1.3b --topology a100-pcie:8 --cache .aot
    python -m benchmarks.quality.frontier --model gpt2-small --topology h100:8 --separate 2 --cache .aot

Checks, each printed with its figures: points pairwise 3 % apart in memory and 1 % in time, as predicted, and so in
compiled memory, which is in the order of the prediction and spans the requested range; collectives of fastest, knee and
leanest equal to the plan's; the fastest not slower (priced from the compiled program) and the leanest not fatter than
the baselines annotated at the jit boundary.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

import jaxplan
from benchmarks._options import add_overrides
from benchmarks.models import MODELS, build
from benchmarks.quality._pricing import Price, price
from benchmarks.quality.baselines import compile_baseline
from jaxplan.audit import Audit, CompiledReport, audit_plan
from jaxplan.mesh import Topology

GIB = 2**30
MEMORY_APART = 0.03
TIME_APART = 0.01
BASELINE_NAMES = ("data", "fsdp")
ROLES = ("leanest", "knee", "fastest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One compiled program: name, prediction (None for a baseline) and the figures of the compiler."""

    name: str
    plan: jaxplan.Plan | None
    report: CompiledReport
    price: Price
    audit: Audit | None = None

    def text(self) -> str:
        predicted = (
            "        -         -"
            if self.plan is None
            else (f"{self.plan.time_seconds * 1e3:>9.2f} {self.plan.memory_bytes / GIB:>9.3f}")
        )
        collectives = "" if self.audit is None else ("agree" if self.audit.collectives_ok else "DIFFER")
        flags = " rematerialised" if self.report.rematerialised else ""
        return (
            f"{self.name:<24} {predicted} {self.report.memory_bytes / GIB:>9.3f} {self.report.flops / 1e12:>8.3f} "
            f"{(self.price.contraction_seconds + self.price.communication_seconds) * 1e3:>10.2f} "
            f"{self.price.total_seconds * 1e3:>9.2f}  {collectives}{flags}"
        )


HEADER = (
    f"{'program':<24} {'pred. ms':>9} {'pred. GiB':>9} {'GiB':>9} {'TFLOP':>8} "
    f"{'flop+comm':>10} {'priced':>9}  collectives"
)


def separated(points: Sequence[jaxplan.Plan]) -> list[jaxplan.Plan]:
    """The longest chain of points, both ends kept, with neighbours far enough apart in memory and in time."""
    best: list[list[jaxplan.Plan]] = []
    for plan in points:
        chains = [chain for j, chain in enumerate(best) if _apart(points[j], plan)]
        best.append([*max(chains, key=len, default=[]), plan])
    return max(best, key=lambda chain: (len(chain), chain[-1] is points[-1]))


def _apart(lean: jaxplan.Plan, fast: jaxplan.Plan) -> bool:
    return (
        fast.memory_bytes >= (1 + MEMORY_APART) * lean.memory_bytes
        and lean.time_seconds >= (1 + TIME_APART) * fast.time_seconds
    )


def compile_row(plan: jaxplan.Plan, name: str, cache: Path | None) -> Row:
    """Compile one plan and audit it."""
    report = plan.compile_report(cache_dir=cache)
    return Row(
        name=name,
        plan=plan,
        report=report,
        price=price(report, plan.topology),
        audit=audit_plan(plan, report=report),
    )


def baseline_row(
    model: str, topology: Topology, name: str, cache: Path | None, overrides: dict[str, Any]
) -> Row:
    """Compile one baseline annotated at the jit boundary."""
    report = compile_baseline(model, topology, name, cache_dir=cache, **overrides)
    return Row(name=f"jit boundary: {name}", plan=None, report=report, price=price(report, topology))


def run(
    model: str,
    topology: Topology,
    cache: Path | None,
    most_points: int,
    least_separate: int,
    least_span: float,
    overrides: dict[str, Any],
) -> bool:
    """Plan, compile, print; whether every check holds."""
    step, args = build(model, **overrides)
    start = time.perf_counter()
    frontier = jaxplan.plan(step, *args, topology=topology, progress=False)
    print(frontier.table(width=150))
    print(f"planned in {time.perf_counter() - start:.1f} s, tracing included\n\n{HEADER}", flush=True)
    roles = {role: frontier.choose(role) for role in ROLES}
    shown = separated(frontier.points)
    wanted = {id(p): p for p in [*shown[:most_points], *roles.values()]}
    rows = []
    for plan in sorted(wanted.values(), key=lambda p: p.memory_bytes):
        marks = "/".join(role for role, chosen in roles.items() if chosen is plan)
        rows.append(compile_row(plan, f"#{frontier.points.index(plan)} {marks}", cache))
        print(rows[-1].text(), flush=True)
    baselines = [baseline_row(model, topology, name, cache, overrides) for name in BASELINE_NAMES]
    for row in baselines:
        print(row.text(), flush=True)
    return _check(rows, baselines, shown, roles, least_separate, least_span)


def _check(
    rows: list[Row],
    baselines: list[Row],
    shown: list[jaxplan.Plan],
    roles: dict[str, jaxplan.Plan],
    least_separate: int,
    least_span: float,
) -> bool:
    of_plan = {id(row.plan): row for row in rows}
    separate = [of_plan[id(plan)] for plan in shown if id(plan) in of_plan]
    sizes = [row.report.memory_bytes for row in separate]
    named = {role: of_plan[id(plan)] for role, plan in roles.items()}
    fastest, leanest = named["fastest"], named["leanest"]
    best_time = min(row.price.total_seconds for row in baselines)
    best_exchange = min(row.price.contraction_seconds + row.price.communication_seconds for row in baselines)
    exchange = fastest.price.contraction_seconds + fastest.price.communication_seconds
    least = min(row.report.memory_bytes for row in baselines)
    checks = {
        f"at least {least_separate} points 3 % apart in memory and 1 % in time: {len(shown)}": (
            len(shown) >= least_separate
        ),
        f"at least {least_separate} points 3 % apart in compiled memory: {_num_apart(sizes)}": (
            _num_apart(sizes) >= least_separate
        ),
        f"compiled memory spans at least {least_span:g} times: {sizes[-1] / sizes[0]:.2f}": (
            sizes[-1] >= least_span * sizes[0]
        ),
        f"compiled memory keeps their order: {', '.join(f'{s / GIB:.2f}' for s in sizes)} GiB": sizes
        == sorted(sizes),
        "collectives of fastest, knee and leanest are the plan's": all(
            row.audit is not None and row.audit.collectives_ok for row in named.values()
        ),
        f"fastest {fastest.price.total_seconds * 1e3:.1f} ms, baselines' best {best_time * 1e3:.1f} ms": (
            fastest.price.total_seconds <= best_time
        ),
        f"fastest, FLOPs and collectives {exchange * 1e3:.2f} ms, baselines' best {best_exchange * 1e3:.2f} ms": (
            exchange <= best_exchange
        ),
        f"leanest {leanest.report.memory_bytes / GIB:.2f} GiB, baselines' least {least / GIB:.2f} GiB": (
            leanest.report.memory_bytes <= least
        ),
        "no program was rematerialised by the compiler": not any(row.report.rematerialised for row in rows),
    }
    print()
    for text, holds in checks.items():
        print(f"{'ok  ' if holds else 'MISS'} {text}")
    for role, row in named.items():
        if row.audit is not None:
            print(f"\n{role}\n{row.audit.table()}")
    return all(checks.values())


def _num_apart(sizes: Sequence[int]) -> int:
    """The most of these that are pairwise `MEMORY_APART`."""
    kept: list[int] = []
    for size in sorted(sizes):
        if not kept or size >= (1 + MEMORY_APART) * kept[-1]:
            kept.append(size)
    return len(kept)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.frontier", description="Compile a frontier and its baselines."
    )
    parser.add_argument("--model", choices=list(MODELS), default="gpt2-small")
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--cache", type=Path, default=None, help="folder to keep compiled reports in")
    parser.add_argument(
        "--points", type=int, default=12, help="most points compiled besides fastest, knee, leanest"
    )
    parser.add_argument(
        "--separate", type=int, default=4, help="points that must lie apart in memory and time"
    )
    parser.add_argument(
        "--span", type=float, default=1.0, help="how many times its leanest point the fastest must take"
    )
    add_overrides(parser)
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    holds = run(
        options.model,
        Topology.parse(options.topology),
        options.cache,
        options.points,
        options.separate,
        options.span,
        dict(options.set),
    )
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
