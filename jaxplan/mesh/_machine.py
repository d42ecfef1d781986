"""Which machine a measurement was made on, so that it is not believed on another."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

_CPUINFO = "/proc/cpuinfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts about a machine that decide how fast a program runs.

    Attributes:
      device_kind: as JAX names it.
      num_devices, num_processes: of the mesh that was measured.
      processor, num_cores: of the host, as this process may use it.
      jax, jaxlib: versions; a device compiler comes with them.
    """

    device_kind: str
    num_devices: int
    num_processes: int
    processor: str
    num_cores: int
    jax: str
    jaxlib: str

    @classmethod
    def present(cls, devices: Sequence[Any] | None = None) -> Machine:
        """The machine of `jax.devices()`, or of the devices given."""
        import jax

        devices = list(devices) if devices is not None else jax.devices()
        return cls(
            device_kind=str(devices[0].device_kind),
            num_devices=len(devices),
            num_processes=len({device.process_index for device in devices}),
            processor=host_processor(),
            num_cores=host_cores(),
            jax=jax.__version__,
            jaxlib=importlib.metadata.version("jaxlib"),
        )

    def differences(self, other: Machine) -> tuple[str, ...]:
        """One sentence for each attribute that differs, naming it with both values, the other's first."""
        names = [
            field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)
        ]
        return tuple(f"{name} is {getattr(other, name)!r}, not {getattr(self, name)!r}" for name in names)


def host_processor() -> str:
    """The host's processor model."""
    try:
        with open(_CPUINFO, encoding="utf-8") as file:
            models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        models = []
    return models[0] if models else (platform.processor() or platform.machine())


def host_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
