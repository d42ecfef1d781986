"""The compiler that a step is compiled by, built once from the chip: nothing else asks which chip it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import jax

from jaxplan.mesh import ChipSpec

Backend = Literal["gpu", "tpu", "cpu"]
Arithmetic = Literal["bf16", "f32"]

_PADDED_FORMATS = {"bf16": "bfloat16", "f16": "float16"}
"""Formats of the data sheet that tensor cores multiply -> dtypes of matrices that XLA pads for them."""
_UNTUNED_WORKSPACE_SINCE, _UNTUNED_WORKSPACE = (0, 12), 4 << 20
"""Version of JAX from which dots that are not tuned on a device have this many bytes of scratch at most, on every GPU:
https://github.com/openxla/xla/blob/main/xla/backends/gpu/autotuner/cublaslt.cc (GetDefaultConfig)."""
_SINCE_SWAPPED = _SINCE_WHOLE_PADDING = (0, 11)
"""Version of JAX from which operands of batched dots are exchanged, and images wholly padded for kernel gradients: seen
in programs compiled for H100 with 0.10.2, 0.11.2 and 0.12.0.1 (`test_transposed.py`, `test_work.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How a backend of XLA treats a program.

    Attributes:
      backend: ``"gpu"``, ``"tpu"``, or ``"cpu"`` (rules of both others alone).
      arithmetic: whether element-wise arithmetic on bfloat16 runs in it, or in float32.
      padded_dtypes: names of dtypes of matrices that a GPU's library multiplies in whole multiples of eight.
      multiprocessors: of a GPU; 0 for others.
      workspace_bytes: scratch memory of one dot.
      fuses_operands: a dot computes its operands inside of its kernel, instead of passing buffers to a library.
      on_chip_bytes: memory beside the cores of a TPU that the compiler uses for buffers.
      swaps_operands: a batched dot of two free dimensions has its operands exchanged where its result is only read
        transposed.
      pads_images_wholly: where the sides differ, all padding of an image without holes is written for the gradient of
        a kernel, in place of the excess of one side.
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
    fuses_operands: bool = False
    on_chip_bytes: int = 0
    swaps_operands: bool = False
    pads_images_wholly: bool = False
    num_devices: int | None = None
    without: frozenset[str] = frozenset()

    @property
    def launches_kernels(self) -> bool:
        """Whether a program is a sequence of kernels that are launched, also to copy results where a trip ends."""
        return self.backend == "gpu"

    @classmethod
    def of(
        cls,
        chip: ChipSpec,
        num_devices: int | None = None,
        without: Iterable[str] = (),
        jax_version: tuple[int, ...] = jax.__version_info__,
    ) -> Target:
        """The target of a chip, by the compiler that comes with a version of JAX (that which is installed).

        >>> from jaxplan.mesh import Topology
        >>> h100 = Topology.parse("h100:8").chip
        >>> [Target.of(h100, jax_version=version).workspace_bytes >> 20 for version in ((0, 10), (0, 12))]
        [32, 4]
        """
        backend: Backend = "gpu" if chip.is_gpu else "tpu" if chip.is_tiled else "cpu"
        formats = dict(chip.flops_per_second) if backend == "gpu" else {}
        return cls(
            backend=backend,
            arithmetic="bf16" if chip.elementwise_16bit else "f32",
            padded_dtypes=frozenset(_PADDED_FORMATS[f] for f in formats if f in _PADDED_FORMATS),
            multiprocessors=chip.multiprocessors,
            workspace_bytes=_workspace_bytes(chip, jax_version),
            fuses_operands=chip.fuses_products,
            on_chip_bytes=chip.on_chip_bytes,
            swaps_operands=jax_version >= _SINCE_SWAPPED,
            pads_images_wholly=jax_version >= _SINCE_WHOLE_PADDING,
            num_devices=num_devices,
            without=frozenset(without),
        )

    @property
    def tiles_arrays(self) -> bool:
        """Whether matrices lie in memory in tiles, so that their last two dimensions are padded."""
        return self.backend == "tpu"

    @property
    def merges_dots(self) -> bool:
        """Whether dots that share an operand become one dot, whose result is one buffer."""
        return self.backend == "gpu"

    @property
    def repeats_look_ups(self) -> bool:
        """Whether rows are looked up again in the backward pass, and a gathered table is kept for that."""
        return self.backend == "gpu"

    @property
    def scatters_pooling_gradients(self) -> bool:
        """Whether the gradient of max pooling is a scatter into zeros at recomputed indices."""
        return self.backend == "gpu"

    @property
    def reorders_after_all_to_all(self) -> bool:
        """Whether the result of an all-to-all is put in order at once, and not in the kernels that read it."""
        return self.backend == "gpu"


def _workspace_bytes(chip: ChipSpec, jax_version: tuple[int, ...]) -> int:
    """Scratch memory of a dot; a library that is tuned on a device may take up to the chip's own."""
    if jax_version < _UNTUNED_WORKSPACE_SINCE:
        return chip.matmul_workspace_bytes
    return min(chip.matmul_workspace_bytes, _UNTUNED_WORKSPACE)


def is_gpu(platform: str | None) -> bool:
    """Whether a platform of JAX (``cuda``, ``gpu``, ``tpu``, ``cpu``) is compiled for by XLA's backend for GPUs.

    >>> is_gpu("cuda"), is_gpu("tpu")
    (True, False)
    """
    return platform in ("cuda", "gpu")


def is_host(platform: str | None) -> bool:
    """Whether programs for a platform run on the host itself, in its memory.

    >>> is_host("cpu"), is_host("cuda")
    (True, False)
    """
    return platform == "cpu"
