"""Planning time of one step beside what JAX itself takes for it, in a cold process.

    python -m benchmarks.planning_time --model gpt2-small --topology h100:8

    python -m benchmarks.planning_time --model gpt-30b --set remat=True --topology h100:4x8 --no-compile

Planning is from ClosedJaxpr to frontier; the total is with planning's own trace. Trace and lower are those of the
unplanned step, before planning; compile is that of the step as data parallelism annotated at the jit boundary, without
its devices, in a process of its own, never from a cache. Processor seconds are for machines where other programs run.
Resident memory is the process's largest, and what planning adds to that of JAX tracing and lowering the step.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence

import jax

import jaxplan
from benchmarks._options import add_overrides
from benchmarks.baselines import compile_baseline
from benchmarks.models import MODELS, build
from jaxplan._progress import Progress
from jaxplan.mesh import Topology


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.planning_time", description="Planning beside trace, lower, compile."
    )
    trained = [name for name, spec in MODELS.items() if spec.updates == "returned"]
    parser.add_argument("--model", choices=trained, default="gpt2-small")
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument(
        "--memory", default=None, help="limit per device, such as 300GiB; default: the chip's"
    )
    add_overrides(parser)
    parser.add_argument("--no-compile", action="store_true", help="leave the compiler out")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    overrides = dict(options.set)
    step, args = build(options.model, **overrides)
    start, cpu_start = time.perf_counter(), time.process_time()
    traced = jax.jit(step).trace(*args)
    traced_at, cpu_traced = time.perf_counter(), time.process_time()
    traced.lower()
    lowered_at, cpu_lowered = time.perf_counter(), time.process_time()
    resident_before = _resident_gib()
    stages, cpu_stages = Progress(False), Progress(False, clock=time.process_time)

    def report(stage: str, fraction: float) -> None:
        stages(stage, fraction)
        cpu_stages(stage, fraction)

    frontier = jaxplan.plan(step, *args, topology=options.topology, memory=options.memory, progress=report)
    planned_at = time.perf_counter()
    report("end", 1.0)
    cpu_planning = sum(seconds for stage, seconds in cpu_stages.seconds.items() if stage not in ("trace", "end"))
    planning, resident = frontier.search_seconds or 0.0, _resident_gib()
    print(f"{options.model} on {options.topology}: {len(frontier)} plans")
    print(
        f"resident  {resident:8.2f} GiB at most, {resident - resident_before:.2f} GiB more than before planning"
    )
    print(f"total     {planned_at - lowered_at:8.2f} s")
    print(f"planning  {planning:8.2f} s   ({stages})")
    print(f"trace     {traced_at - start:8.2f} s")
    print(f"lower     {lowered_at - traced_at:8.2f} s")
    cpu_jax = cpu_lowered - cpu_start
    print(
        f"processor {cpu_planning:8.2f} s for planning ({cpu_stages}), {cpu_traced - cpu_start:.2f} s for trace, "
        f"{cpu_lowered - cpu_traced:.2f} s for lower: {cpu_planning / cpu_jax:.2f} of these together"
    )
    if options.no_compile:
        return 0
    report = compile_baseline(options.model, Topology.parse(options.topology), "data", **overrides)
    print(f"compile   {report.compile_seconds:8.2f} s")
    share, verdict = (
        planning / report.compile_seconds,
        "ok  " if planning < report.compile_seconds else "MISS",
    )
    print(f"{verdict} planning takes {share:.2f} of compiling")
    return 0 if planning < report.compile_seconds else 1


def _resident_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    raise SystemExit(main())
