"""Measure the entries that a table lacks, one operation after the other, on all devices at once."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxplan.core._files import check_writable
from jaxplan.core._progress import Progress, ProgressFn
from jaxplan.core._units import counted
from jaxplan.errors import ProfileError
from jaxplan.mesh import Topology, other_kinds
from jaxplan.mesh._machine import Machine
from jaxplan.mesh._profile_table import Key, ProfileTable
from jaxplan.mesh.profile._journal import Journal
from jaxplan.mesh.profile._programs import program
from jaxplan.mesh.profile._settings import Settings
from jaxplan.mesh.profile._timing import agreed_array, seconds_per_operation

_STAGES = {"collective": "collectives", "matmul": "matrix products", "memory": "memory"}
# Entries of a key that are no sizes: its kind, and the collective and its groups or the dtype.
_NUM_NAMES = {"collective": 3, "matmul": 2, "memory": 1}
# Longer than something larger by this factor is no noise of the clock.
_CLEARLY = 1.15


def measure(
    path: str | Path | None = None,
    *,
    topology: str | Topology | None = None,
    devices: Sequence[Any] | None = None,
    settings: Settings | None = None,
    progress: bool | ProgressFn | Progress | None = None,
) -> ProfileTable:
    """Measure collectives, matrix products and memory of the devices present.

    Args:
      path: the table's file; every measurement is written as it is made, so that a second run goes on where an
        interrupted one stopped, and measures only missing entries. None: nothing is written.
      topology: of the devices; default: detected.
      devices: default `jax.devices()`; in the order of the topology.
      settings: sizes, dtypes and durations; default `Settings()`.
      progress: as of `jaxplan.plan`.

    Returns:
      The table, for `Topology.with_profile`.

    Raises:
      ProfileError: the file is of another machine (the message says how), or there are too few devices.
      SaveError: the file cannot be written.
    """
    if path is not None and jax.process_index() == 0:
        check_writable(path)
    devices = list(devices) if devices is not None else jax.devices()
    where = Topology.parse(topology) if isinstance(topology, str) else topology or Topology.detect(devices)
    if len(devices) != where.num_devices:
        raise ProfileError(
            f"{where.name} has {counted(where.num_devices, 'device')}, and {len(devices)} "
            f"{'is' if len(devices) == 1 else 'are'} there to measure.\n"
            f"  given:        {_named(devices)}\n"
            f"  expected:     the devices of {where.name}, all of them and no others\n"
            "  likely cause: a part of a machine was named, or this is not the machine\n"
            "  fix:          leave the topology out, which measures the devices present"
        )
    if others := other_kinds(where.chip, devices):
        raise ProfileError(
            f"the devices present are not those of {where.name}: {', '.join(others)}.\n"
            f"  given:        {_named(devices)}\n"
            f"  expected:     {where.num_devices} devices of the chip {where.chip.name!r}\n"
            "  likely cause: this is not the machine to measure\n"
            "  fix:          run it on that machine, or leave the topology out to measure this one"
        )
    settings = settings or Settings()
    mesh = Mesh(
        np.array(devices).reshape([axis.size for axis in where.axes] or [1]),
        [axis.name for axis in where.axes] or ["device"],
    )
    journal = Journal(path, Machine.present(devices), where.name, writes=jax.process_index() == 0)
    with journal, _reporting(progress) as report:
        _fill(journal, settings.keys(where), where, mesh, settings, report)
        return journal.finish()


def _named(devices: Sequence[Any]) -> str:
    kinds = Counter(str(device.device_kind) for device in devices)
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))


def _reporting(progress: bool | ProgressFn | Progress | None) -> Progress:
    return progress if isinstance(progress, Progress) else Progress(progress)


def _fill(
    journal: Journal,
    keys: Sequence[Key],
    topology: Topology,
    mesh: Mesh,
    settings: Settings,
    report: Progress,
) -> None:
    def take(key: Key) -> float:
        compiled, arrays, unroll = program(key, topology, mesh)
        return seconds_per_operation(compiled, arrays, unroll, settings)

    _share(journal, keys)
    is_new = False
    for stage, name in _STAGES.items():
        of_stage = [key for key in keys if key[0] == stage]
        for done, key in enumerate(of_stage):
            report(name, done / len(of_stage))
            if key not in journal.seconds and not _too_long(key, journal.seconds, settings):
                journal.add(key, take(key))
                is_new = True
        report(name, 1.0)
    for _ in range(settings.num_repairs if is_new else 0):
        wrong = disturbed(journal.seconds)
        if not wrong:
            break
        for done, key in enumerate(wrong):
            report("repeats", done / len(wrong))
            journal.add(key, min(journal.seconds[key], take(key)))
        report("repeats", 1.0)


def _share(journal: Journal, keys: Sequence[Key]) -> None:
    """Share the first process's measurements with all: the file may be on its disk alone."""
    known = agreed_array(np.array([journal.seconds.get(key, math.nan) for key in keys]))
    for key, seconds in zip(keys, known.tolist(), strict=True):
        if not math.isnan(seconds):
            journal.seconds[key] = seconds


def disturbed(seconds: Mapping[Key, float]) -> list[Key]:
    """Operations that took clearly longer than a larger one of their kind: another program ran meanwhile."""
    families: dict[Key, list[Key]] = defaultdict(list)
    for key in seconds:
        families[key[: _NUM_NAMES[key[0]]]].append(key)
    found = []
    for family, members in families.items():
        sizes = np.array([key[len(family) :] for key in members], dtype=np.int64)
        taken = np.array([seconds[key] for key in members])
        for key, size, here in zip(members, sizes, taken, strict=True):
            if here > _CLEARLY * taken[(sizes >= size).all(axis=1)].min():
                found.append(key)
    return found


def _too_long(key: Key, seconds: dict[Key, float], settings: Settings) -> bool:
    """Whether a matrix product is expected to take too long, at the rate of the largest one measured so far."""
    if key[0] != "matmul":
        return False
    measured = [(math.prod(k[2:]), s) for k, s in seconds.items() if k[:2] == key[:2]]
    if not measured:
        return False
    largest, its_seconds = max(measured)
    return its_seconds * math.prod(key[2:]) / largest > settings.longest_seconds
