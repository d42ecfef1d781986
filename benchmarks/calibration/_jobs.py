"""The processes of `benchmarks.calibration`: each measures operators, or one step, and takes turns on the device."""

from __future__ import annotations

import fcntl
import multiprocessing
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.calibration._operators import (
    cases,
    compile_case,
    is_too_long,
    measure_operator,
    measure_sustained,
    sustained_cases,
)
from benchmarks.calibration._record import Operator, Origin, RecordFile
from benchmarks.calibration._steps import (
    MODELS,
    ON_CPU,
    drawn,
    measure_points,
    priced_topology,
    sized,
    topology_of,
)
from jaxplan import InfeasibleError, JaxplanError
from jaxplan.mesh.profile import Settings

PARTS = ("operators", "steps")
SUSTAINED_SECONDS = 8.0
_TURNS: dict[Path, Any] = {}
"""Locks that this process holds until it ends, by their file."""
_TOO_FEW_MSG = (
    "{wanted} devices are asked for, and {present} are there.\n"
    "  fix: --mock lets one GPU stand for all of them, with collectives that take no time"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The measurements of one process: operators, or a model or the random step of a seed on so many devices."""

    part: str
    num_devices: int = 1
    model: str = ""
    seed: int | None = None


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
    origin = Origin.of(devices[0])
    if job.part == "operators":
        take_turn(options.records)
        with RecordFile(options.records, origin) as file:
            measure_operators(file, devices, options)
    else:
        measure_steps(origin, devices, job, options, is_mocked)


def take_turn(records: Path) -> None:
    """Wait until no other process measures for this file; the turn ends with this process and its memory."""
    path = records.with_name(f"{records.name}.lock")
    if path not in _TURNS:
        lock = open(path, "w")  # noqa: SIM115
        fcntl.flock(lock, fcntl.LOCK_EX)
        _TURNS[path] = lock


def measure_operators(file: RecordFile, devices: Sequence[Any], options: Namespace) -> None:
    topology = topology_of(devices, 1)
    priced = priced_topology(topology, options.profile, is_mocked=False) if options.profile else None
    settings, device = Settings(), devices[0]
    if device.platform != "cpu":
        for case in sustained_cases():
            if not any(r.operator.startswith(f"{case.operator}, ") and r.dtype == case.dtype for r in _known(file)):
                _add(file, measure_sustained(compile_case(case, device), topology, SUSTAINED_SECONDS))
    wanted = []
    for case in cases():
        same = [
            r for r in _known(file) if (r.operator, r.dtype, r.shape) == (case.operator, case.dtype, case.shape)
        ]
        if not same or (priced and not same[0].profile_seconds):
            wanted.append(case)
    at_once = 4 * options.prepare
    for first in range(0, len(wanted), at_once):
        some = [case for case in wanted[first : first + at_once] if not is_too_long(case, _known(file), settings)]
        with ThreadPoolExecutor(options.prepare) as pool:
            ready = list(pool.map(lambda case: compile_case(case, device), some))
        for compiled in ready:
            if not is_too_long(compiled.case, _known(file), settings):
                _add(file, measure_operator(compiled, topology, priced, settings))


def _known(file: RecordFile) -> list[Operator]:
    return [record for record in file.records.values() if isinstance(record, Operator)]


def _add(file: RecordFile, record: Operator) -> None:
    file.add(record)
    print(f"{record.operator} {record.dtype} {record.shape}: {record.seconds:.3g} s", flush=True)


def measure_steps(
    origin: Origin, devices: Sequence[Any], job: Job, options: Namespace, is_mocked: bool
) -> None:
    topology = topology_of(devices, job.num_devices)
    topology = priced_topology(topology, options.profile, is_mocked=is_mocked)
    if job.seed is None:
        these = sized(job.model, topology, dict(options.set), options.points)
    else:
        these = drawn(job.seed, topology, options.points)
    priced_by = "data sheet" if topology.profile is None else "profile"
    take_turn(options.records)
    with RecordFile(options.records, origin) as file:
        missing = {
            name: plan
            for name, plan in these.points.items()
            if ("step", job.model, these.size, topology.name, name, priced_by, is_mocked) not in file.records
        }
        if not missing:
            return
        for record in measure_points(
            job.model,
            replace(these, points=missing),
            devices,
            options.samples,
            is_mocked=is_mocked,
            kernels=options.kernels,
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
    parts = options.part or (("steps",) if options.drawn else PARTS)
    models = options.model
    if "steps" in parts and not models and not options.drawn:
        models = list(ON_CPU if in_fresh_process(jax.default_backend) == "cpu" else MODELS)
    jobs = [Job(part="operators")] if "operators" in parts else []
    if "steps" in parts:
        first, count = options.drawn or (0, 0)
        for n in options.devices or [1]:
            jobs += [Job(part="steps", num_devices=n, model=m) for m in models or ()]
            jobs += [Job(part="steps", num_devices=n, model="drawn", seed=first + i) for i in range(count)]
    return jobs


def done(job: Job, options: Namespace) -> bool:
    """Take the measurements of a job; False, and the reason on stderr, where that failed.

    A random step of which no plan fits is left out; a model has a batch for which plans fit, so that it fails.
    """
    try:
        in_fresh_process(run_job, job, options)
    except InfeasibleError as error:
        is_drawn = job.seed is not None
        print(f"{job}: {'left out, ' if is_drawn else ''}no plan fits: {str(error).splitlines()[0]}", file=sys.stderr)
        return is_drawn
    except JaxplanError as error:
        print(f"{job}: {error}", file=sys.stderr)
        return False
    except (RuntimeError, BrokenProcessPool):  # out of memory, or the process was ended for it
        traceback.print_exc()
        return False
    return True
