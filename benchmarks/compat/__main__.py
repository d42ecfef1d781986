"""Models from other people's packages through the whole pipeline.

    python -m benchmarks.compat --cache .aot --save compat.jsonl      # every model of an installed package
    python -m benchmarks.compat --model haiku-mlp --no-compile
    python -m benchmarks.compat --read compat.jsonl                   # report saved records, and go no further
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks.compat --run --model haiku-mlp

Each step is traced, planned, and the chosen points are compiled without their devices. Records are saved one by one; a
model that the file already has is not done again. `--run` runs small steps on eight virtual CPU devices and compares
their losses with those of one. Exit status 1 when a model fails or a bar is missed (`benchmarks.compat._report`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax

from benchmarks._record import read_records, write_lines
from benchmarks.compat._measure import Record, measure, run_beside_one_device
from benchmarks.compat._registry import MODELS
from benchmarks.compat._report import report, row
from jaxplan.mesh import Topology

RUN_TOLERANCE = 1e-3
"""Largest relative difference of a loss after three steps in float32, sums taken in another order."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.compat", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", choices=list(MODELS), action="append", help="default: all that are installed"
    )
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--points", default="fastest", help="plans to compile, such as fastest,leanest,data")
    parser.add_argument("--no-compile", action="store_true", help="trace and plan only")
    parser.add_argument(
        "--run", action="store_true", help="run small steps on eight virtual CPU devices instead"
    )
    parser.add_argument("--cache", type=Path, default=None, help="folder to keep compiled programs in")
    parser.add_argument("--save", type=Path, default=None, help="append the records as JSON lines")
    parser.add_argument("--read", type=Path, nargs="+", help="do nothing: report these saved records")
    options = parser.parse_args(arguments)
    if options.read:
        return report(read_records(Record, *options.read))
    jax.config.update("jax_platforms", "cpu")  # nothing runs on an accelerator here
    names = options.model or list(MODELS)
    if options.run:
        return _run(names)
    points = () if options.no_compile else tuple(options.points.split(","))
    records = read_records(Record, options.save) if options.save else []
    topology = Topology.parse(options.topology)
    for name in names:
        if any(r.model == name and r.topology == topology.name and not r.failure for r in records):
            continue
        if not MODELS[name].version:
            print(f"{name:<28} {MODELS[name].missing}", flush=True)
            continue
        record = measure(name, topology, points=points, cache=options.cache)
        print(row(record), flush=True)
        before = read_records(Record, options.save) if options.save else records  # another process may have added to it
        records = [r for r in before if (r.model, r.topology) != (name, topology.name)] + [record]
        if options.save:
            write_lines(options.save, records)
    return report(records)


def _run(names: Sequence[str]) -> int:
    worst = 0.0
    for name in names:
        if not MODELS[name].version:
            print(f"{name:<28} {MODELS[name].missing}", flush=True)
            continue
        differences = run_beside_one_device(name)
        worst = max(worst, *differences.values())
        found = ", ".join(f"{point} {value:.1e}" for point, value in differences.items())
        print(f"{name:<28} losses differ from one device's by {found}", flush=True)
    return 0 if worst <= RUN_TOLERANCE else 1


if __name__ == "__main__":
    raise SystemExit(main())
