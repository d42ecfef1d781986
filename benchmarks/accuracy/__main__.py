"""How true the numbers of a frontier are: plans of many models, compiled without their devices, beside the prediction.

    python -m benchmarks.accuracy --cache .aot                       # every model on every topology
    python -m benchmarks.accuracy --cache .aot --model gpt --topology h100:8 --points 6 --save gpt.jsonl
    python -m benchmarks.accuracy --read gpt.jsonl lstm.jsonl        # report saved records
    python -m benchmarks.accuracy --read all.jsonl --topology v5e:2x4 --gaps 0   # as if heaps had no gaps

For each model and topology: the reference strategies and points of the frontier, at least 2 % apart in memory. Compiled
programs are kept in the cache, so that an interrupted run goes on where it was. The models of `HELD_OUT` were never
looked at while the cost model was made. Exit status 1 when a bar is missed; the bars are `BARS`.
"""

from __future__ import annotations

import argparse
import dataclasses
import traceback
from collections.abc import Sequence
from pathlib import Path

import jax

import jaxplan
from benchmarks.accuracy._measure import MOST_POINTS, run_pair
from benchmarks.accuracy._models import HELD_OUT, MODELS, TOPOLOGIES
from benchmarks.accuracy._record import Record, read_records, write_records
from benchmarks.accuracy._report import report
from jaxplan.xla import COUNTED_GAPS, GAPS


def _with_gaps(record: Record, share: float) -> Record:
    """As it would be predicted with gaps of another share of the live bytes."""
    other = record.predicted_parts.get(GAPS, 0) * (share / COUNTED_GAPS - 1)
    return dataclasses.replace(record, predicted_memory=record.predicted_memory + int(other))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.accuracy", description="Predictions beside compiled plans."
    )
    parser.add_argument("--model", choices=list(MODELS), action="append", help="default: all")
    parser.add_argument("--topology", choices=list(TOPOLOGIES), action="append", help="default: all")
    parser.add_argument("--points", type=int, default=MOST_POINTS, help="most plans of a model and topology")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time")
    parser.add_argument("--cache", type=Path, default=None, help="folder to keep compiled programs in")
    parser.add_argument("--save", type=Path, default=None, help="write the records as JSON lines")
    parser.add_argument("--read", type=Path, nargs="+", help="compile nothing: report these saved records")
    parser.add_argument("--gaps", type=float, help="with --read: gaps in heaps of this share of what is alive")
    options = parser.parse_args(arguments)
    if options.gaps is not None and not options.read:
        parser.error("--gaps is about records: name them with --read")
    if options.read:
        saved = read_records(options.read)
        if options.gaps is not None:
            saved = [_with_gaps(record, options.gaps) for record in saved]
        models, topologies = options.model or MODELS, options.topology or TOPOLOGIES
        return report([r for r in saved if r.model in models and r.topology in topologies], HELD_OUT)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    records: list[Record] = []
    for topology in options.topology or TOPOLOGIES:
        for model in options.model or MODELS:
            try:
                records += run_pair(model, topology, options.points, options.cache, options.jobs)
            except jaxplan.JaxplanError:
                traceback.print_exc()
    if options.save:
        write_records(options.save, records)
    return report(records, HELD_OUT)


if __name__ == "__main__":
    raise SystemExit(main())
