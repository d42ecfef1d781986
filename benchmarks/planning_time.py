"""Planning time of one step beside what JAX itself takes for it, in a cold process.

    python -m benchmarks.planning_time --model gpt2-small --topology h100:8

Planning is from ClosedJaxpr to frontier. Trace and lower are those of the unplanned step; compile is that of the step
as data parallelism annotated at the jit boundary, without its devices, in a process of its own, never from a cache.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence

import jax

import jaxplan
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
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    step, args = build(options.model)
    stages = Progress(False)
    frontier = jaxplan.plan(step, *args, topology=options.topology, progress=stages)
    planning = frontier.search_seconds or 0.0
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    start = time.perf_counter()
    traced = jax.jit(step).trace(*args)
    traced_at = time.perf_counter()
    traced.lower()
    lowered_at = time.perf_counter()
    report = compile_baseline(options.model, Topology.parse(options.topology), "data")
    print(
        f"{options.model} on {options.topology}: {len(frontier)} plans, {resident:.2f} GiB resident at most"
    )
    print(f"planning  {planning:8.2f} s   ({stages})")
    print(f"trace     {traced_at - start:8.2f} s   (again: the process traced it for planning before)")
    print(f"lower     {lowered_at - traced_at:8.2f} s")
    print(f"compile   {report.compile_seconds:8.2f} s")
    share, verdict = (
        planning / report.compile_seconds,
        "ok  " if planning < report.compile_seconds else "MISS",
    )
    print(f"{verdict} planning takes {share:.2f} of compiling")
    return 0 if planning < report.compile_seconds else 1


if __name__ == "__main__":
    raise SystemExit(main())
