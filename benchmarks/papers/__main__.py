"""Experiments of four papers, repeated: each prints our table beside the published figures, and a verdict per claim.

    python -m benchmarks.papers                          # list them, with the verdicts on record
    python -m benchmarks.papers tensoropt-figure6 ...    # run some
    python -m benchmarks.papers all --save               # run all, keep the rows and write docs/papers.md
    python -m benchmarks.papers --recorded NAME ...      # the tables and verdicts on record, nothing run
    python -m benchmarks.papers --causes NAME ...        # the rows on record, reasons of disagreements measured again

Nothing is compiled or run on an accelerator: networks are traced on abstract arrays, and times are predictions for
presets from data sheets. Seconds of searches are those of the processor.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence

import jax

from benchmarks.papers._page import PAGE, page
from benchmarks.papers._records import Record, read, save
from benchmarks.papers._registry import EXPERIMENTS
from benchmarks.papers._report import report, tally


def run(name: str) -> Record:
    """The rows of an experiment, and those for causes, run now."""
    start = time.process_time()
    rows = EXPERIMENTS[name].run()
    seconds = round(time.process_time() - start, 1)
    return with_causes(Record(experiment=name, seconds=seconds, rows=tuple(rows)))


def with_causes(record: Record) -> Record:
    """The record, the figures of its causes measured now."""
    measure, start = EXPERIMENTS[record.experiment].measure_causes, time.process_time()
    causes = tuple(measure()) if measure else ()
    spent = round(time.process_time() - start, 1)
    seconds = round(record.seconds - record.cause_seconds + spent, 1)
    return dataclasses.replace(record, seconds=seconds, causes=causes, cause_seconds=spent)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers", description="The four papers, repeated."
    )
    parser.add_argument("experiments", nargs="*", metavar="NAME", help=f"all, or of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--recorded", action="store_true", help="print what is on record instead of running")
    parser.add_argument(
        "--causes", action="store_true", help="take the rows on record, and measure the causes alone"
    )
    parser.add_argument(
        "--save", action="store_true", help="keep the rows, and write docs/papers.md from all on record"
    )
    parser.add_argument("--page", action="store_true", help="write docs/papers.md from the records")
    options = parser.parse_args(arguments)
    unknown = set(options.experiments) - {*EXPERIMENTS, "all"}
    if unknown:
        parser.error(
            f"no experiment is called {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}"
        )
    names = list(EXPERIMENTS) if "all" in options.experiments else options.experiments
    jax.config.update("jax_platforms", "cpu")
    recorded = read()
    if not names and not options.page:
        print("\n".join(f"{name:<20} {tally(name, recorded.get(name))}" for name in EXPERIMENTS))
        return 0
    for name in names:
        record = recorded.get(name)
        if not options.recorded:
            record = with_causes(record) if options.causes and record else run(name)
        print(report(EXPERIMENTS[name], record), flush=True)
        if options.save and record:
            save(record)
    if options.save or options.page:
        PAGE.write_text(page(read()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
