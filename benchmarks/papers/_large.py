"""Tofu, Figures 9 and 10, Table 2: which Wide ResNets and RNNs fit eight K80, and their throughput beside baselines.

python -m benchmarks.papers tofu-figure9 tofu-figure10
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from benchmarks.models import PAPER_MODELS
from benchmarks.papers._baselines import (
    HOST_BYTES_PER_SECOND,
    LIMIT_BYTES,
    NUM_GPUS,
    LayerOnGpu,
    OneGpu,
    ideal,
    placement,
    small_batch,
    swapping,
)
from benchmarks.papers._steps import partitioned, traced
from benchmarks.papers._swap import swapped_bytes
from jaxplan.cost import build_cost_model
from jaxplan.mesh import Topology
from jaxplan.simulate import predictor_of

MACHINE = f"k80:{NUM_GPUS}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Seconds of compute and of communication, and bytes of a step, each on a line through two batches."""

    batches: tuple[int, int]
    compute: tuple[float, float]
    communication: tuple[float, float]
    memory: tuple[float, float]

    def at(self, batch: int, of: str) -> float:
        """One of them at another batch."""
        one, other = self.batches
        low, high = getattr(self, of)
        return low + (high - low) * (batch - one) / (other - one)

    def one_gpu(self, batch: int) -> OneGpu:
        return OneGpu(
            batch=batch, seconds=self.at(batch, "compute"), memory_bytes=int(self.at(batch, "memory"))
        )

    def largest(self, batches: Sequence[int]) -> int | None:
        """The largest of the batches that fits."""
        return max((b for b in batches if self.at(b, "memory") <= LIMIT_BYTES), default=None)


def on_one(name: str, batches: tuple[int, int], **overrides: Any) -> Line:
    """The step on one GPU, whatever it takes."""
    found = []
    for batch in batches:
        model = build_cost_model(traced(name, batch_size=batch, **overrides), Topology.parse("k80:1"))
        problem = model.problem
        prediction, _ = predictor_of(model).predict([0] * problem.num_nodes, [0] * len(problem.edges))
        found.append((prediction.compute_seconds, 0.0, prediction.memory_bytes))
    return _line(batches, found)


def on_eight(name: str, batches: tuple[int, int], **overrides: Any) -> tuple[Line, float]:
    """Tofu's partition of the step, and processor seconds of the search at the second batch."""
    found, seconds = [], 0.0
    for batch in batches:
        plan, seconds = partitioned(traced(name, batch_size=batch, **overrides), MACHINE, "tofu")
        found.append((plan.compute_seconds, plan.communication_seconds, plan.memory_bytes))
    return _line(batches, found), seconds


def at_once(name: str, batch: int, **overrides: Any) -> tuple[Line, float]:
    """The same at one batch alone."""
    plan, seconds = partitioned(traced(name, batch_size=batch, **overrides), MACHINE, "tofu")
    figures = (plan.compute_seconds, plan.communication_seconds, float(plan.memory_bytes))
    return _line((0, batch), [(0.0, 0.0, figures[2]), figures]), seconds


def _line(batches: tuple[int, int], found: Sequence[tuple[float, float, float]]) -> Line:
    (a, b, c), (d, e, f) = found
    return Line(batches=batches, compute=(a, d), communication=(b, e), memory=(c, f))


def row_of(
    name: str, single: Line, split: Line, seconds: float, global_batch: int | None, batches: Sequence[int]
) -> dict[str, Any]:
    """Throughputs, in examples per second, and the models that fit."""
    steps = [single.one_gpu(b) for b in batches]
    best, small = ideal(steps), small_batch(steps)
    row: dict[str, Any] = {
        "network": name, "one_gpu_gib": single.at(1, "memory") / 2**30, "ideal": best, "small_batch": small,
        "swapping": swapping(steps), "batch": global_batch, "search_s": seconds,
        "tofu_gib": split.at(global_batch or batches[0], "memory") / 2**30, "fits": global_batch is not None,
    }  # fmt: skip
    if global_batch:
        compute, sent = (split.at(global_batch, of) for of in ("compute", "communication"))
        row |= {"tofu": global_batch / (compute + sent), "tofu_overlapped": global_batch / max(compute, sent)}
        row |= {"share": row["tofu"] / best, "share_overlapped": min(1.0, row["tofu_overlapped"] / best)}
    return row


def swapping_by_use(name: str, single: Line, batches: Sequence[int], **overrides: Any) -> float:
    """Examples per second where arrays go to the host by least recent use; of the best of some batches.

    Bytes of tensors lie on a line through the two batches of `single`; transfers run beside compute.
    """
    small, large = (traced(name, batch_size=b, **overrides) for b in single.batches)
    pairs = [
        (a.num_bytes, b.num_bytes) for a, b in zip(small.program.tensors, large.program.tensors, strict=True)
    ]
    low, high = single.batches

    def at(batch: int) -> float:
        sizes = [a + (b - a) * (batch - low) / (high - low) for a, b in pairs]
        moved = NUM_GPUS * swapped_bytes(small, sizes, LIMIT_BYTES)
        return NUM_GPUS * batch / max(single.at(batch, "compute"), moved / HOST_BYTES_PER_SECOND)

    return max(map(at, batches))


def placed(name: str, single: Line, batch: int) -> dict[str, Any]:
    """Operator placement: throughput, and whether the fullest GPU holds its layers."""
    config = PAPER_MODELS[name].config
    layers, steps, width = config.num_layers, config.num_steps, config.width
    state = 3 * 4 * 8 * width**2  # weight, gradient and history of one layer, float32
    residuals = single.at(batch, "memory") - single.at(0, "memory")
    layer = LayerOnGpu(
        seconds=single.at(batch, "compute") / (3 * layers * steps),
        state_bytes=state,
        residual_bytes=residuals / layers,
    )
    seconds, num_bytes = placement(layer, layers, steps)
    return {
        "placement": batch / seconds if num_bytes <= LIMIT_BYTES else None,
        "placement_gib": num_bytes / 2**30,
    }
