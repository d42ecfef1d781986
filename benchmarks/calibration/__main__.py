"""How near predicted seconds and bytes are to real ones, on the device present: operators, steps, per-device programs.

    jaxplan profile --output h100.json
    python -m benchmarks.calibration --records FILE --profile h100.json            # all that is below, on one device
    python -m benchmarks.calibration --records FILE --part operators
    python -m benchmarks.calibration --records FILE --part steps --model gpt --model vit --points 2
    python -m benchmarks.calibration --records FILE --part steps --devices 8       # 8 real or virtual devices
    python -m benchmarks.calibration --records FILE --part steps --devices 8 --mock   # one GPU stands for all 8
    python -m benchmarks.calibration --read FILE ...                               # report the measurements

Operators are timed as `jaxplan profile` times products. Steps are planned for the devices (with `--profile`, repeated
for tables of other topologies, at measured prices) and run: points of a frontier in turns, median and quartiles.
Batches are as large as a device holds. With `--mock` collectives take no time and the program of one device
runs, so it is compared with predicted compute, and the record says so.

Each model runs in a process of its own, because devices remember the peak of a process. Those in the file are not
measured again; a file of another machine or other versions is refused. Exit status 1 when the bar (10 %, median error
of step time on one device) is missed on an accelerator.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from benchmarks._options import add_overrides
from benchmarks.calibration._operators import cases, is_too_long, measure_operator
from benchmarks.calibration._record import Operator, Origin, RecordFile
from benchmarks.calibration._report import report
from benchmarks.calibration._steps import MODELS, ON_CPU, measure_points, priced_topology, sized, topology_of
from jaxplan import JaxplanError
from jaxplan.mesh.profile import Settings

PARTS = ("operators", "steps")
# Compiling for several processes, XLA shares its search for kernels among them, and there is one.
_MOCK_FLAGS = "--xla_gpu_shard_autotuning=false"
_TOO_FEW_MSG = (
    "{wanted} devices are asked for, and {present} are there.\n"
    "  fix: --mock lets one GPU stand for all of them, with collectives that take no time"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The measurements of one process: operators, or a model on so many devices."""

    part: str
    num_devices: int = 1
    model: str = ""


def start_devices(num_devices: int, *, is_mocked: bool) -> list[Any]:
    """The devices of this process, which must not have used JAX before."""
    jax.config.update("jax_num_cpu_devices", num_devices)  # virtual ones; of no matter to other platforms
    if is_mocked:
        # Slices x hosts x devices of a host: as many of the last are expected as are really there.
        jax.config.update("jax_mock_gpu_topology", f"1x{num_devices}x1")
        jax.config.update("jax_cuda_visible_devices", "0")
    return jax.devices()


def require_devices(devices: Sequence[Any], num_devices: int, *, is_mocked: bool) -> None:
    """Raise JaxplanError where there are too few, or the device that stands for others is no GPU."""
    if is_mocked and devices[0].platform != "gpu":
        raise JaxplanError(f"--mock is for GPUs, and the devices are of platform {devices[0].platform!r}")
    if len(devices) < num_devices:
        raise JaxplanError(_TOO_FEW_MSG.format(wanted=num_devices, present=len(devices)))


def run_job(job: Job, options: Namespace) -> None:
    """Take the measurements that the file lacks; in a fresh process."""
    is_mocked = options.mock and job.num_devices > 1
    devices = start_devices(job.num_devices, is_mocked=is_mocked)
    require_devices(devices, job.num_devices, is_mocked=is_mocked)
    with RecordFile(options.records, Origin.of(devices[0])) as file:
        measure: Callable[..., None] = measure_operators if job.part == "operators" else measure_steps
        measure(file, devices, job, options, is_mocked)


def measure_operators(
    file: RecordFile, devices: Sequence[Any], job: Job, options: Namespace, is_mocked: bool
) -> None:
    topology = topology_of(devices, 1)
    priced = priced_topology(topology, options.profile, is_mocked=False) if options.profile else None
    settings = Settings()
    for case in cases():
        known = [r for r in file.records.values() if isinstance(r, Operator)]
        same = [r for r in known if (r.operator, r.dtype, r.shape) == (case.operator, case.dtype, case.shape)]
        if is_too_long(case, known, settings) or (same and (same[0].profile_seconds or not priced)):
            continue
        record = measure_operator(case, devices[0], topology, priced, settings)
        file.add(record)
        print(f"{record.operator} {record.dtype} {record.shape}: {record.seconds:.3g} s", flush=True)


def measure_steps(
    file: RecordFile, devices: Sequence[Any], job: Job, options: Namespace, is_mocked: bool
) -> None:
    topology = topology_of(devices, job.num_devices)
    topology = priced_topology(topology, options.profile, is_mocked=is_mocked)
    these = sized(job.model, topology, dict(options.set), options.points)
    priced_by = "data sheet" if topology.profile is None else "profile"
    missing = {
        name: plan
        for name, plan in these.points.items()
        if ("step", job.model, these.size, topology.name, name, priced_by, is_mocked) not in file.records
    }
    if not missing:
        return
    for record in measure_points(
        job.model, replace(these, points=missing), devices, options.samples, is_mocked=is_mocked
    ):
        file.add(record)
        print(
            f"{record.model} on {record.topology}, {record.point}: {record.measured_seconds * 1e3:.2f} ms, "
            f"predicted {record.predicted_seconds * 1e3:.2f} ms",
            flush=True,
        )


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function that is the first to use JAX in its process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def jobs_of(options: Namespace) -> list[Job]:
    parts = options.part or PARTS
    models = options.model
    if "steps" in parts and not models:
        models = list(ON_CPU if in_fresh_process(jax.default_backend) == "cpu" else MODELS)
    jobs = [Job(part="operators")] if "operators" in parts else []
    if "steps" in parts:
        jobs += [Job(part="steps", num_devices=n, model=m) for n in options.devices or [1] for m in models]
    return jobs


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
    add_overrides(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.read:
        return report(options.read)
    if options.records is None:
        parser.error("name a file: --records to measure, --read to report")
    if options.mock:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_MOCK_FLAGS}".strip()
    failed = 0
    for job in jobs_of(options):
        try:
            in_fresh_process(run_job, job, options)
        except JaxplanError as error:
            print(f"{job}: {error}", file=sys.stderr)
            failed = 1
        except (RuntimeError, BrokenProcessPool):  # out of memory, or the process was ended for it
            traceback.print_exc()
            failed = 1
    return max(failed, report([options.records]))


if __name__ == "__main__":
    raise SystemExit(main())
