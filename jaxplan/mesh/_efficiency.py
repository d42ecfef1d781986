"""Shares of data-sheet figures that programs reach, by chip and kind of kernel, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_LEAST_EXTENT = 64.0
"""Extents below this pay for their traffic, not for half-empty tiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """The share that kernels reach of a chip's peaks.

    Attributes:
      products: share of the dense peak that large matrix products sustain.
      wide_products: the same of operands of more than 16 bits; 0.0: as ``products``.
      half_extent: smallest of m, k and n at which dots reach half of that: edges of the tiles that a kernel fills.
      attention: share of the dense peak that fused attention kernels reach, forward and backward, masked blocks left
        out.
      memory: share of the memory bandwidth that streaming kernels reach.
      row_statistics, row_norms, row_gradients: share of the memory bandwidth of kernels that hold rows: for the
        statistics of a softmax, for its values and for other sums of rows, and for its gradient; 0.0: as streaming.
      narrow_convolutions: share of the dense peak of 16 bits that convolutions reach, in any dtype, over an image whose
        channels are fewer than fill 16 bytes; 1.0: no limit.
      atomic_seconds: an addition to a number that others add to at the same time, as in a scatter: to one of at least
        32 bits, and to one of 16 bits, which is exchanged in a loop until no other came between.
      contention: seconds by which kernels take longer for a second of a collective that runs beside them.
      source: where the figures come from; "assumed" where they are those of a chip like it.
    """

    products: float = 0.65
    wide_products: float = 0.0
    half_extent: float = 128.0
    attention: float = 0.45
    memory: float = 0.85
    row_statistics: float = 0.0
    row_norms: float = 0.0
    row_gradients: float = 0.0
    narrow_convolutions: float = 1.0
    atomic_seconds: tuple[float, float] = (0.0, 0.0)
    contention: float = 0.0
    source: str = "assumed"

    @property
    def rows(self) -> tuple[float, float, float] | None:
        """Seconds of kernels that hold rows over those of streaming ones: for statistics, values and gradients; None
        where all are as fast."""
        shares = (self.row_statistics, self.row_norms, self.row_gradients)
        if not any(shares):
            return None
        statistics, norms, gradients = (self.memory / share if share else 1.0 for share in shares)
        return statistics, norms, gradients

    def products_at(self, smallest: float | npt.NDArray[np.floating]) -> float | npt.NDArray[np.floating]:
        """Share of the peak of dots with a given smallest extent.

        Example:
          >>> float(Efficiency(products=0.6, half_extent=128.0).products_at(128.0))
          0.3
        """
        return self.products / (1.0 + self.half_extent / np.maximum(smallest, _LEAST_EXTENT))


_MAMF = (
    "https://github.com/stas00/ml-engineering/tree/master/compute/accelerator (largest rate of bf16 dots found: "
    "A100 0.869 of the peak, H100 0.803, B200 0.776, GB200 0.729, MI300X 0.514)"
)
_SUSTAINED = 0.75
"""Part of the largest rate that steps of 7B to 13B transformers sustain at the power limit: Fitted on the runs of
llm-foundry on A100 and H100 (benchmarks/published)."""
# https://arxiv.org/abs/2507.03114 : kernels beside collectives are 18.9 % slower on average over four kinds of GPUs.
_BESIDE_NCCL = 0.19
# FlashAttention-2, https://arxiv.org/abs/2307.08691 , figures 4 to 6, and FlashAttention-3,
# https://arxiv.org/abs/2407.08608 , figures 5 and 6: causal, head size 128, 2,048 to 4,096 tokens, both passes.
_ATTENTION_A100, _ATTENTION_H100 = 0.5, 0.42


# On an H200 (benchmarks/records/calibration_h200.jsonl): 8,192 rows added to 2 of a table, in float32 49 us and
# in bfloat16 42.8 ms; in bfloat16 4,096 added to 2, 14.3 ms, and 32,768 to 512, 0.43 ms.
_ATOMIC_SECONDS = (1.2e-8, 7e-6)


# There too, by images of 3 channels: patches of 16, 23 (bfloat16) and 26 TFLOP/s; windows of 7, 31 in both dtypes.
_NARROW_CONVOLUTIONS = 0.03


# There too, of 15 models: the median kernel over bfloat16 scores; of float32 0.48, 0.78 and 0.41. Sums of rows: 0.72.
_ROWS = {"row_statistics": 0.39, "row_norms": 0.68, "row_gradients": 0.34}


# There too: dots of bfloat16 in decoders' steps of 15 to 50 ms take 0.83 to 0.87 of the peak, and the step is 6 %
# slower after 14 s, at the power limit; those of float32 take 0.6 to 0.64 in steps of 5 to 125 ms.
_DOTS_H200 = (0.94, 0.62)


def _gpu(
    largest: float, attention: float = _ATTENTION_A100, sustained: float = _SUSTAINED, wide: float = 0.0
) -> Efficiency:
    return Efficiency(
        products=round(largest * sustained, 3), wide_products=wide, attention=attention, contention=_BESIDE_NCCL,
        narrow_convolutions=_NARROW_CONVOLUTIONS, atomic_seconds=_ATOMIC_SECONDS, source=_MAMF,
        **_ROWS,
    )  # fmt: skip


_TPU = Efficiency(
    products=0.93, attention=0.25, source="Fitted on MaxText's runs on v5e (benchmarks/published), for all TPUs alike"
)

EFFICIENCIES: dict[str, Efficiency] = {
    "a100": _gpu(0.869), "a100-40": _gpu(0.869), "a100-pcie": _gpu(0.811),
    "h100": _gpu(0.803, _ATTENTION_H100), "h200": _gpu(0.803, _ATTENTION_H100, *_DOTS_H200),
    "b200": _gpu(0.776, _ATTENTION_H100), "gb200": _gpu(0.729, _ATTENTION_H100), "mi300x": _gpu(0.514, 0.3),
    "cpu": Efficiency(contention=1.0, source="the cores that compute carry out the collectives"),
    "v4": _TPU, "v5e": _TPU, "v5p": _TPU, "v6e": _TPU, "v7x": _TPU,
}  # fmt: skip
"""By chip; every other one has `Efficiency()`."""
