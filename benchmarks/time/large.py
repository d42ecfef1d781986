"""A 30-billion-parameter step on 32 devices: planned in a minute, and the leanest plan as compiled.

    python -m benchmarks.large                   # plans only
    python -m benchmarks.large --compile --cache .aot

Twice: the step as it is, and with `jax.checkpoint` around each block in the model's own code. A program that does not
fit is compiled all the same, after the compiler's own rematerialisation: both its memory before and after that are
shown. The baseline is FSDP annotated at the jit boundary of the same step.
"""

from __future__ import annotations

import argparse
import re
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import jax

import jaxplan
from benchmarks.models import build
from benchmarks.quality.baselines import compile_baseline
from jaxplan.audit import compile_plan
from jaxplan.audit._aot import CompiledReport
from jaxplan.mesh import Topology

MODEL, TOPOLOGY = "gpt-30b", "h100:4x8"
NO_LIMIT = "1000GiB"
MAX_SECONDS, MAX_RESIDENT_GB, DEVICE_GB = 60.0, 2.0, 80.0
GIB, GB = 2**30, 10**9
_ORIGINALLY = re.compile(r"down from [\d.]+\w+ \((\d+) bytes\) originally")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.large", description="Plan and compile a 30B GPT step.")
    parser.add_argument("--compile", action="store_true", help="compile the leanest plans and the baseline")
    parser.add_argument("--cache", type=Path, default=None, help="folder to keep compiled reports in")
    parser.add_argument("--set", choices=["remat", "plain"], action="append", help="only this step")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    passed = [
        variant(name == "remat", options.compile, options.cache) for name in options.set or ("plain", "remat")
    ]
    return 0 if all(passed) else 1


def variant(remat: bool, compiles: bool, cache: Path | None) -> bool:
    """Plan one step and, if asked, compile its leanest plan; prints figures and returns whether all bars are met."""
    step, args = build(MODEL, remat=remat)
    jax.jit(step).trace(*args).lower()
    before = _resident_gb()
    start = time.perf_counter()
    frontier = jaxplan.plan(step, *args, topology=TOPOLOGY, memory=NO_LIMIT, progress=False)
    seconds, resident = time.perf_counter() - start, _resident_gb() - before
    leanest = frontier.leanest()
    print(f"{MODEL} on {TOPOLOGY}, {'checkpointed blocks' if remat else 'as it is'}: {len(frontier)} plans")
    print(f"     leanest predicted {leanest.memory_bytes / GIB:.2f} GiB; {leanest.summary}", flush=True)
    passed = _bar(f"planned in {seconds:.1f} s, its trace included", seconds < MAX_SECONDS)
    passed &= _bar(f"{resident:.2f} GB resident above tracing and lowering", resident < MAX_RESIDENT_GB)
    return passed & (_compiled(leanest, remat, cache) if compiles else True)


def _compiled(leanest: jaxplan.Plan, remat: bool, cache: Path | None) -> bool:
    report = compile_plan(leanest, cache_dir=cache)
    print(f"     leanest compiled {_memory(report)}", flush=True)
    if remat:
        return _bar(
            f"fits {DEVICE_GB:.0f} GB: {report.memory_bytes / GB:.1f} GB",
            report.memory_bytes <= DEVICE_GB * GB,
        )
    baseline = compile_baseline(MODEL, Topology.parse(TOPOLOGY), "fsdp", cache_dir=cache, remat=remat)
    print(f"     FSDP at the jit boundary {_memory(baseline)}", flush=True)
    return _bar(
        "no more than FSDP, before the compiler's rematerialisation", _before(report) <= _before(baseline)
    ) & (_bar("... and after it", report.memory_bytes <= baseline.memory_bytes))


def _memory(report: CompiledReport) -> str:
    again = (
        f", {_before(report) / GIB:.2f} GiB before its own rematerialisation" if report.rematerialised else ""
    )
    return f"{report.memory_bytes / GIB:.2f} GiB{again}"


def _before(report: CompiledReport) -> int:
    """Bytes before the compiler rematerialised: the figure of its warning, or the reported one where there is none."""
    found = _ORIGINALLY.search("\n".join(report.warnings))
    return int(found[1]) if found else report.memory_bytes


def _bar(text: str, met: bool) -> bool:
    print(f"{'ok  ' if met else 'MISS'} {text}", flush=True)
    return met


def _resident_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB


if __name__ == "__main__":
    raise SystemExit(main())
