"""Planning time of one step beside the time of JAX itself for it, in a cold process.

    python -m benchmarks.time.planning_time --model gpt2-small --topology h100:8

    python -m benchmarks.time.planning_time --model gpt-30b --set remat=True --topology h100:4x8 --no-compile

    python -m benchmarks.time.planning_time --model llama-1b --topology h100:8 --layers 12 24 48 96
    python -m benchmarks.time.planning_time --model llama3-8b --topology h100:8x8 --layers 12 96 \\
        --set "ffn_widths=(8192,4096)" --most 3

With `--layers` the same step is planned with so many layers each, in a cold process of its own: how the time grows.
Where layers are equal it may take 1.5 of JAX's time at most, where they are not, 3 (`--most`).

Planning is from ClosedJaxpr to frontier; the total is with planning's own trace. Trace and lower are those of the
unplanned step, before planning; compile is that of the step as data parallelism annotated at the jit boundary, without
its devices, in a process of its own, never from a cache. Processor seconds are for machines where other programs run.
Resident memory is the process's largest, and the part that planning adds to that of JAX tracing and lowering the step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

import jaxplan
from benchmarks._options import add_overrides
from benchmarks.models import MODELS, build
from benchmarks.quality.baselines import compile_baseline
from jaxplan.core._progress import Progress
from jaxplan.mesh import Topology

MOST_RATIO = 1.5
"""The limit for planning of 12 to 96 equal layers, for one of tracing and lowering."""


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
    parser.add_argument("--layers", type=int, nargs="+", help="numbers of layers, one cold process each")
    parser.add_argument("--most", type=float, default=MOST_RATIO, help="what --layers may take of trace and lower")
    options = parser.parse_args(arguments)
    overrides = dict(options.set)
    if options.layers:
        of = (options.model, options.topology, options.memory, overrides)
        return _growth(*of, sorted(options.layers), options.most)
    found = measure(options.model, options.topology, options.memory, overrides)
    print(f"{options.model} on {options.topology}: {found}")
    if options.no_compile:
        return 0
    report = compile_baseline(options.model, Topology.parse(options.topology), "data", **overrides)
    print(f"compile   {report.compile_seconds:8.2f} s")
    share = found.planning_seconds / report.compile_seconds
    print(f"{'ok  ' if share < 1 else 'MISS'} planning takes {share:.2f} of compiling")
    return 0 if share < 1 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of planning one step and of the work of JAX on it, wall clock unless `processor` is in the name.

    Attributes:
      processor_planning, processor_trace, processor_lower: seconds of the processor.
      stages, processor_stages: planning's, for people.
      resident_gib, planning_gib: the most memory, and how much of it planning added.
    """

    num_plans: int
    total_seconds: float
    planning_seconds: float
    trace_seconds: float
    lower_seconds: float
    processor_planning: float
    processor_trace: float
    processor_lower: float
    stages: str
    processor_stages: str
    resident_gib: float
    planning_gib: float

    @property
    def ratio(self) -> float:
        """Processor seconds of planning for one of tracing and lowering."""
        return self.processor_planning / (self.processor_trace + self.processor_lower)

    def __str__(self) -> str:
        return (
            f"{self.num_plans} plans\n"
            f"resident  {self.resident_gib:8.2f} GiB at most, {self.planning_gib:.2f} GiB more than before planning\n"
            f"total     {self.total_seconds:8.2f} s\n"
            f"planning  {self.planning_seconds:8.2f} s   ({self.stages})\n"
            f"trace     {self.trace_seconds:8.2f} s\n"
            f"lower     {self.lower_seconds:8.2f} s\n"
            f"processor {self.processor_planning:8.2f} s for planning ({self.processor_stages}), "
            f"{self.processor_trace:.2f} s for trace, {self.processor_lower:.2f} s for lower: "
            f"{self.ratio:.2f} of these together"
        )


def measure(model: str, topology: str, memory: str | None, overrides: Mapping[str, Any]) -> Measured:
    """Trace, lower and plan a model's step in this process, which has planned nothing before."""
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    step, args = build(model, **overrides)
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

    frontier = jaxplan.plan(step, *args, topology=topology, memory=memory, progress=report)
    planned_at = time.perf_counter()
    report("end", 1.0)
    left_out = ("trace", "end")
    return Measured(
        num_plans=len(frontier),
        total_seconds=planned_at - lowered_at,
        planning_seconds=frontier.search_seconds or 0.0,
        trace_seconds=traced_at - start,
        lower_seconds=lowered_at - traced_at,
        processor_planning=sum(s for stage, s in cpu_stages.seconds.items() if stage not in left_out),
        processor_trace=cpu_traced - cpu_start,
        processor_lower=cpu_lowered - cpu_traced,
        stages=str(stages),
        processor_stages=str(cpu_stages),
        resident_gib=_resident_gib(),
        planning_gib=_resident_gib() - resident_before,
    )


def _growth(
    model: str,
    topology: str,
    memory: str | None,
    overrides: Mapping[str, Any],
    layers: Sequence[int],
    most: float,
) -> int:
    """Plan with so many layers each, a process per number; whether all ratios are within the bar."""
    print(f"{model} on {topology}, processor seconds")
    print(f"{'layers':>6} {'trace':>8} {'lower':>8} {'planning':>8} {'ratio':>8} {'growth':>8} {'GiB':>8}")
    first = None
    worst = 0.0
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for number in layers:
            found = pool.apply(measure, (model, topology, memory, {**overrides, "num_layers": number}))
            first = first or found
            worst = max(worst, found.ratio)
            print(
                f"{number:6d} {found.processor_trace:8.2f} {found.processor_lower:8.2f} "
                f"{found.processor_planning:8.2f} {found.ratio:8.2f} "
                f"{found.processor_planning / first.processor_planning:8.2f} {found.resident_gib:8.2f}",
                flush=True,
            )
    met = worst <= most
    print(f"{'ok  ' if met else 'MISS'} planning takes at most {worst:.2f} of trace and lower")
    return 0 if met else 1


def _resident_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    raise SystemExit(main())
