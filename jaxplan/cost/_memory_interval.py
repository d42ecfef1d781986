"""How far compiled memory lies from predicted memory, by kind of plan: nine of ten compiled plans lie inside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInterval:
    """The 5th and 95th percentile of compiled over predicted memory.

    Attributes:
      low, high: of the ratio.
      num_plans: compiled plans that they are of.
      source: the record that they are computed from, and by which steps.
    """

    low: float
    high: float
    num_plans: int
    source: str

    def of(self, predicted_bytes: int) -> tuple[int, int]:
        """Bytes between which nine of ten compiled plans of this prediction lie."""
        return int(predicted_bytes * self.low), int(predicted_bytes * self.high)


_FRESH = "steps drawn at random from seeds that no rule was made after: benchmarks/records/population.jsonl, h100:8"
_ZOO = "models that rules were made after too: benchmarks/records/accuracy.jsonl, v5e:2x4"
_INTERVALS = {
    ("cuda", True): MemoryInterval(low=0.922, high=1.062, num_plans=114, source=_FRESH),
    ("cuda", False): MemoryInterval(low=0.868, high=1.096, num_plans=183, source=_FRESH),
    ("tpu", True): MemoryInterval(low=0.887, high=1.048, num_plans=109, source=_ZOO),
    ("tpu", False): MemoryInterval(low=0.885, high=1.070, num_plans=183, source=_ZOO),
}


def memory_interval(platform: str | None, *, searched: bool) -> MemoryInterval | None:
    """The interval of a kind of plan; None where no compiled plan of its platform was recorded.

    Args:
      platform: as `jaxplan.mesh.Chip.aot_platform`; chips that are planned like GPUs and have no compiler count as
        ``"cuda"``.
      searched: whether the search found the plan; else it is a reference strategy.

    >>> low, high = memory_interval("cuda", searched=True).of(1000)
    >>> low < 1000 < high
    True
    """
    return _INTERVALS.get(("cuda" if platform is None else platform, searched))
