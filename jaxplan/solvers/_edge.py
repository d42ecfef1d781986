"""Where two nodes of a problem meet: a matrix of costs, with a few choices in each cell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_NO_MEMORY = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edge:
    """Costs that depend on the configurations of two nodes.

    Letters: `Ku`, `Kv` configurations of source and target, `C` choices of the edge.

    Attributes:
      source: index of the node of the first axis.
      target: index of the node of the second axis.
      time: (Ku, Kv) or (Ku, Kv, C) seconds; infinite where a choice does not exist.
      memory: bytes, of the shape of `time`, or None where the edge takes none.
    """

    source: int
    target: int
    time: np.ndarray
    memory: np.ndarray | None = None

    @property
    def num_choices(self) -> int:
        return 1 if self.time.ndim == 2 else self.time.shape[2]

    def costs_at(self, sources: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the choices' (..., C) seconds and bytes for pairs of configurations of shape (...)."""
        time = self.time[sources, targets]
        memory = np.zeros(time.shape, np.int64) if self.memory is None else self.memory[sources, targets]
        return (time, memory) if self.time.ndim == 3 else (time[..., None], memory[..., None])

    def scalarised(self, time_weight: float, memory_weight: float) -> np.ndarray:
        """Return the (Ku, Kv) least weighted cost over the choices."""
        table = weighted(self.time, self.memory, time_weight, memory_weight)
        return table if table.ndim == 2 else table.min(axis=2)


def weighted(
    time: np.ndarray, memory: np.ndarray | None, time_weight: float, memory_weight: float
) -> np.ndarray:
    """Return `time_weight * time + memory_weight * memory`, infinite wherever `time` is."""
    if time_weight == 0.0:
        table = np.where(np.isinf(time), np.inf, 0.0)
    else:
        table = time_weight * time
    if memory is not None and memory_weight != 0.0:
        table += memory_weight * memory
    return table


def fastest_choice(time: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Return for (..., C) costs the fastest choice; ties go to less memory, then to the lower index."""
    tied = time == time.min(axis=-1, keepdims=True)
    return np.argmin(np.where(tied, memory, _NO_MEMORY), axis=-1)


def cheapest_choice(
    time: np.ndarray, memory: np.ndarray, time_weight: float, memory_weight: float
) -> np.ndarray:
    """Return for (..., C) costs the choice of least weighted cost; ties go to the lower index."""
    return np.argmin(weighted(time, memory, time_weight, memory_weight), axis=-1)


def at_choice(costs: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """Return for (..., C) costs those at the choices (...).

    `np.take_along_axis` takes three times as long on arrays of one edge, of which a frontier reads 100,000.
    """
    rows = costs.reshape(-1, costs.shape[-1])
    return rows[np.arange(len(rows)), choices.reshape(-1)].reshape(choices.shape)
