"""Recorded measurements with predictions of today, and where the seconds of a step go, predicted and measured."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.calibration._operators import cases, predicted_seconds, sustained_cases
from benchmarks.calibration._record import Operator, Step
from benchmarks.calibration._steps import POINTS, drawn, sized
from jaxplan import Plan, ProfileError
from jaxplan.cost import build_cost_model
from jaxplan.cost._compute import equation_seconds
from jaxplan.mesh import Topology

LONG_SHARE = 0.05
_FAMILIES = {"contraction": "dots", "convolution": "convolutions", "scatter": "scatters"}
# The first that a kernel's name, or the instruction that it belongs to, contains; a scatter's is the compiler's own.
_NAMES = (
    ("convolutions", r"cudnn|conv2d"),
    ("dots", r"nvjet|gemm|cutlass"),
    ("copies", r"(?i)memcpy|memset"),
    ("scatters", r"^(?!.*select).*scatter"),
)
_OTHER_SIZE_MSG = (
    "a record is of {recorded!r}, and this step is now {now!r}.\n"
    "  likely cause: the model, or the batch at which it fits, has changed since\n"
    "  fix: measure it again"
)


def predicted_again(record: Operator | Step, chip: str) -> Operator | Step:
    """A record of such a chip, priced by its data sheet, with the predictions of today.

    Raises:
      ProfileError: the operator or the step of the record does not exist any more.
    """
    if isinstance(record, Operator):
        topology, name = Topology.parse(f"{chip}:1"), record.operator.partition(",")[0]
        for case in (*cases(), *sustained_cases()):
            if (case.operator, case.dtype, case.shape) == (name, record.dtype, record.shape):
                return replace(record, predicted_seconds=predicted_seconds(case, topology))
        raise ProfileError(f"no operator is a {record.operator!r} of {record.dtype} {record.shape} any more")
    plan = _plan(record)
    return replace(
        record,
        compute_seconds=plan.compute_seconds,
        communication_seconds=plan.communication_seconds,
        predicted_bytes=plan.memory_bytes,
    )


def _plan(record: Step) -> Plan:
    jax.clear_caches()
    topology = Topology.parse(record.topology)
    if record.model == "drawn":
        these = drawn(int(record.size.partition(":")[0]), topology, len(POINTS))
    else:
        these = sized(record.model, topology, {}, len(POINTS))
    if these.size != record.size or record.point not in these.points:
        raise ProfileError(_OTHER_SIZE_MSG.format(recorded=record.size, now=these.size))
    return these.points[record.point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of a step by kind: dots, convolutions, scatters, copies, and passes, which are all others."""

    size: str
    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    num_kernels: float
    longest: tuple[tuple[str, float], ...]
    """Kernels that take at least a twentieth of the step, and their seconds, longest first."""


def seconds_by_kind(records: Iterable[Step], archive: Path) -> Iterator[Seconds]:
    """Of each step on one device whose kernels are in an archive of files of `write_kernels`."""
    kernels = _kernels(archive)
    for record in records:
        of = kernels.get(f"{record.size}, {record.point}")
        if of is None or record.num_devices > 1:
            continue
        measured, by_name = defaultdict[str, float](float), defaultdict[str, float](float)
        for name, instruction, seconds, _ in of:
            kind = next((k for k, text in _NAMES if re.search(text, name) or re.search(text, instruction)), "passes")
            measured[kind] += seconds
            by_name[name] += seconds
        total = sum(by_name.values())
        longest = [item for item in by_name.items() if item[1] >= LONG_SHARE * total]
        yield Seconds(
            size=record.size,
            predicted=_predicted(_plan(record)),
            measured=measured,
            num_kernels=sum(count for *_, count in of),
            longest=tuple(sorted(longest, key=lambda item: -item[1])),
        )


def _kernels(archive: Path) -> dict[str, list[tuple[str, str, float, float]]]:
    found = {}
    with tarfile.open(archive) as files:
        for member in files:
            if (file := files.extractfile(member)) is not None:
                body: dict[str, Any] = json.loads(gzip.decompress(file.read()))
                found[body["title"]] = [tuple(kernel) for kernel in body["kernels"]]
    return found


def _predicted(plan: Plan) -> dict[str, float]:
    """On one device, where a plan has nothing to choose."""
    graph, seconds = plan.require_program(), dict[str, float]()
    buffers = build_cost_model(graph, plan.topology).buffers
    for group in graph.grouping.groups:
        space = graph.spaces[group.index]
        whole = np.ones((1, len(space.classes)), dtype=int)
        for e, share in equation_seconds(graph, group, space, whole, buffers, plan.topology).items():
            kind = _FAMILIES.get(graph.rules[e].family, "passes")
            seconds[kind] = seconds.get(kind, 0.0) + float(share[0])
    return seconds
