"""The baselines of Tofu's evaluation (section 6.1) on predicted figures: ideal, small batch, swapping, placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.simulate._simulator import Task, simulate

NUM_GPUS = 8
LIMIT_BYTES = 12 * 2**30
"""Of one K80; GB of the paper's tables are GiB (its weights are: tests/benchmarks/test_paper_models.py)."""
HOST_BYTES_PER_SECOND = 10e9
"""Between the processor and all eight GPUs together (section 6.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneGpu:
    """A step on one GPU: examples of its batch, seconds of its compute, bytes of its peak."""

    batch: int
    seconds: float
    memory_bytes: int

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= LIMIT_BYTES


def ideal(steps: Sequence[OneGpu]) -> float:
    """Examples per second of eight GPUs with any memory, each alone: eight times the best throughput of one."""
    return NUM_GPUS * max(step.batch / step.seconds for step in steps)


def small_batch(steps: Sequence[OneGpu]) -> float | None:
    """The same of batches that fit; None where not even the smallest does."""
    fitting = [step.batch / step.seconds for step in steps if step.fits]
    return NUM_GPUS * max(fitting) if fitting else None


def swapping(steps: Sequence[OneGpu]) -> float:
    """At most so many examples per second where all that does not fit goes to the host and comes back once a step.

    Compute hides transfers as far as it goes; all eight GPUs share the host's link.
    """
    return max(_swapped(step) for step in steps)


def _swapped(step: OneGpu) -> float:
    moved = 2 * max(0, step.memory_bytes - LIMIT_BYTES) * NUM_GPUS
    return NUM_GPUS * step.batch / max(step.seconds, moved / HOST_BYTES_PER_SECOND)


def swapping_recurrent(step: OneGpu, weight_bytes: float, num_steps: int) -> float:
    """The same of an unrolled recurrence.

    It reads all weights at every time step, and in the backward pass adds to all gradients too; the update reads
    weights, gradients and history. Replacement is the best there is: of bytes that are read in turn, those beyond the
    memory are fetched each time, and those that were written go back.
    """

    def fetched(num_bytes: float) -> float:
        return max(0.0, num_bytes - LIMIT_BYTES)

    forward = num_steps * fetched(weight_bytes)
    backward = num_steps * 1.5 * fetched(2 * weight_bytes)  # half of it, the gradients, was written
    update = 2 * fetched(3 * weight_bytes)
    moved = NUM_GPUS * max(forward + backward + update, 2 * fetched(step.memory_bytes))
    return NUM_GPUS * step.batch / max(step.seconds, moved / HOST_BYTES_PER_SECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOnGpu:
    """One LSTM: seconds of one time step forward (backward takes twice that), bytes of weight, gradient and history,
    and of the residuals of all time steps."""

    seconds: float
    state_bytes: float
    residual_bytes: float


def placement(layer: LayerOnGpu, num_layers: int, num_steps: int) -> tuple[float, float]:
    """Seconds of a step and bytes of the fullest GPU, layers dealt to GPUs in turn and time steps pipelined."""
    tasks: dict[int, Task] = {}
    places = [(t, n) for t in range(num_steps) for n in range(num_layers)]
    last = 2 * num_steps * num_layers

    def forward(t: int, n: int) -> int:
        return t * num_layers + n

    def backward(t: int, n: int) -> int:
        return last - forward(t, n)

    for t, n in places:
        before = [forward(t, n - 1)] * (n > 0) + [forward(t - 1, n)] * (t > 0)
        tasks[forward(t, n)] = Task(n % NUM_GPUS, layer.seconds, tuple(before))
        after = [backward(t, n + 1)] * (n + 1 < num_layers) + [backward(t + 1, n)] * (t + 1 < num_steps)
        needs = (forward(t, n), *after) if after else (forward(num_steps - 1, num_layers - 1),)
        tasks[backward(t, n)] = Task(n % NUM_GPUS, 2 * layer.seconds, tuple(needs))
    most = -(-num_layers // NUM_GPUS)
    return simulate(tasks).makespan, most * (layer.state_bytes + layer.residual_bytes)
