"""The compiler that a step is compiled by, built once from the chip: nothing else asks which chip it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from jaxplan.mesh import ChipSpec

Backend = Literal["gpu", "tpu", "cpu"]
Arithmetic = Literal["bf16", "f32"]

_PADDED_FORMATS = {"bf16": "bfloat16", "f16": "float16"}
"""Formats of the data sheet that tensor cores multiply -> dtypes of matrices that XLA pads for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How a backend of XLA treats a program.

    Attributes:
      backend: ``"gpu"``, ``"tpu"``, or ``"cpu"`` (rules of both others alone).
      arithmetic: whether element-wise arithmetic on bfloat16 runs in it, or in float32.
      padded_dtypes: names of dtypes of matrices that a GPU's library multiplies in whole multiples of eight.
      multiprocessors: of a GPU; 0 for others.
      workspace_bytes: scratch memory of one dot.
      on_chip_bytes: memory beside the cores of a TPU that the compiler uses for buffers.
      num_devices: how many devices share the step; None where that is not known.
      without: names of compiler rules that are left out (`benchmarks.accuracy.ablation`).

    >>> from jaxplan.mesh import Topology
    >>> Target.of(Topology.parse("h100:8").chip).backend
    'gpu'
    """

    backend: Backend
    arithmetic: Arithmetic
    padded_dtypes: frozenset[str] = frozenset()
    multiprocessors: int = 0
    workspace_bytes: int = 0
    on_chip_bytes: int = 0
    num_devices: int | None = None
    without: frozenset[str] = frozenset()

    @classmethod
    def of(cls, chip: ChipSpec, num_devices: int | None = None, without: Iterable[str] = ()) -> Target:
        """The target of a chip."""
        backend: Backend = "gpu" if chip.is_gpu else "tpu" if chip.is_tiled else "cpu"
        formats = dict(chip.flops_per_second) if backend == "gpu" else {}
        return cls(
            backend=backend,
            arithmetic="bf16" if chip.elementwise_16bit else "f32",
            padded_dtypes=frozenset(_PADDED_FORMATS[f] for f in formats if f in _PADDED_FORMATS),
            multiprocessors=chip.multiprocessors,
            workspace_bytes=chip.matmul_workspace_bytes,
            on_chip_bytes=chip.on_chip_bytes,
            num_devices=num_devices,
            without=frozenset(without),
        )

    @property
    def is_gpu(self) -> bool:
        """Whether XLA compiles for a GPU."""
        return self.backend == "gpu"

    @property
    def is_tpu(self) -> bool:
        """Whether XLA compiles for a TPU: arrays lie in tiles, and dots recompute operands inside of them."""
        return self.backend == "tpu"
