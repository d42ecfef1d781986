"""How near predicted seconds and bytes are to real ones, on the device present: operators, steps, per-device programs.

    jaxplan profile --output h100.json
    python -m benchmarks.calibration --records FILE --profile h100.json            # all that is below, on one device
    python -m benchmarks.calibration --records FILE --part operators
    python -m benchmarks.calibration --records FILE --part steps --model gpt --model vit --points 2
    python -m benchmarks.calibration --records FILE --part steps --devices 8       # 8 real or virtual devices
    python -m benchmarks.calibration --records FILE --part steps --devices 8 --mock   # one GPU stands for all 8
    python -m benchmarks.calibration --records FILE --drawn 7000 60    # random steps: seeds 7000 to 7059
    python -m benchmarks.calibration --read FILE ...                               # report the measurements
    python -m benchmarks.calibration --read FILE --again            # and write predictions of today into the file
    python -m benchmarks.calibration --read FILE --kernels ARCHIVE  # predicted and measured by kind of kernel

Operators are timed as `jaxplan profile` times products. Steps are planned for the devices (with `--profile`, repeated
for tables of other topologies, at measured prices) and run: points of a frontier in turns, median and quartiles.
Batches are as large as a device holds. With `--mock` collectives take no time and the program of one device
runs, so it is compared with predicted compute, and the record says so.

Each step runs in a process of its own, because devices remember the peak of a process. With `--prepare N` so many
processes trace and plan at a time, and take turns on the device. With `--kernels FOLDER` each is run once more under
the profiler: a file there holds the seconds of its kernels and its program (an archive of such files is read again with
`--read`). Steps in FILE are not measured
again; a file of another machine or other versions is refused. Exit status 1 when the bar (10 %, median error
of step time on one device) is missed on an accelerator.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks._options import add_overrides
from benchmarks.calibration._again import predicted_again, seconds_by_kind
from benchmarks.calibration._jobs import PARTS, done, jobs_of
from benchmarks.calibration._record import Step, read_records, write_records
from benchmarks.calibration._report import print_kinds, report
from benchmarks.calibration._steps import MODELS

# Compiling for several processes, XLA shares its search for kernels among them, and there is one.
_MOCK_FLAGS = "--xla_gpu_shard_autotuning=false"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks.calibration", description="Predicted against real operators, steps and memory."
    )
    parser.add_argument("--records", type=Path, help="file for what is measured; continued where it is there")
    parser.add_argument("--read", type=Path, nargs="+", help="measure nothing: report these files")
    parser.add_argument("--part", choices=PARTS, action="append", help="default: both")
    parser.add_argument(
        "--model", choices=list(MODELS), action="append", help="default: all that there are here"
    )
    parser.add_argument("--devices", type=int, action="append", help="plan for so many; default: 1")
    parser.add_argument("--mock", action="store_true", help="one GPU stands for all devices")
    parser.add_argument(
        "--profile",
        type=Path,
        action="append",
        default=[],
        help="table of `jaxplan profile`; without, data sheets",
    )
    parser.add_argument("--points", type=int, default=2, help="most plans of a model that take turns")
    parser.add_argument("--samples", type=int, default=9, help="samples of each plan")
    parser.add_argument(
        "--drawn", type=int, nargs=2, metavar=("FIRST", "COUNT"), help="random steps, of seeds from FIRST on"
    )
    parser.add_argument("--prepare", type=int, default=1, help="processes that trace and plan at a time")
    parser.add_argument("--kernels", type=Path, help="folder for seconds of kernels; with --read: archive")
    parser.add_argument("--again", action="store_true", help="with --read: write predictions of today into the file")
    add_overrides(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.read:
        for path in options.read if options.again else ():
            origin, records = read_records(path)
            write_records(path, origin, [predicted_again(record, origin.chip) for record in records])
        if options.kernels:
            steps = [r for path in options.read for r in read_records(path)[1] if isinstance(r, Step)]
            print_kinds(seconds_by_kind(iter(steps), options.kernels))
            return 0
        return report(options.read)
    if options.records is None:
        parser.error("name a file: --records to measure, --read to report")
    if options.mock:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_MOCK_FLAGS}".strip()
    if options.prepare > 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes hold the device
    with ThreadPoolExecutor(options.prepare) as pool:
        failed = not all(list(pool.map(partial(done, options=options), jobs_of(options))))
    return max(int(failed), report([options.records]))


if __name__ == "__main__":
    raise SystemExit(main())
