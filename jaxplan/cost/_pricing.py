"""Prices of reading one tensor in another layout: tables for the solver, paths for the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.cost._reads import distinct_shardings
from jaxplan.cost._tiles import image_bytes
from jaxplan.ir import Tensor
from jaxplan.mesh import (
    Sharding,
    Topology,
    reshard_bound,
    reshard_seconds,
    reshard_table,
)
from jaxplan.xla._storage import AS_DECLARED, ChannelGroups, Storage

KEEP, REPEAT = 0, 1
"""Choices of a resharded read in both phases (TensorOpt 4.2): keep the copy, or make it again."""
_WIDE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricer:
    """Memoised tables over pairs of layouts for one topology.

    Attributes:
      is_tiled: whether arrays lie in memory in tiles.
      storage: how tensors lie in memory: their copies have the same innermost dimensions and groups of channels.
    """

    topology: Topology
    is_tiled: bool = False
    storage: Mapping[int, Storage] = field(default_factory=dict)
    _tables: Memo = field(default_factory=Memo)

    def read_tables(
        self,
        tensor: Tensor,
        produced: tuple[Sharding, ...],
        required: tuple[Sharding, ...],
        *,
        in_both_phases: bool,
        latency_share: float = 1.0,
        kept: bool = False,
        widened: bool = False,
        wanted: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds and bytes of one read for every pair of configurations.

        Args:
          produced: K_u layouts, one per configuration of the producer; the same object each time.
          required: K_v layouts, one per configuration of the consumer; the same object each time.
          in_both_phases: whether both phases read, so that the copy may be kept or repeated.
          latency_share: fraction of a latency that each collective pays (see `seconds`); a re-gathered copy pays all.
          kept: whether the copy lives until the backward pass though that does not read it by itself: fusions there
            recompute values from it.
          widened: see `copy_bytes`.
          wanted: (K_u, K_v) pairs to price, the same object each time; others may be infinite. None: all.

        Returns:
          Arrays (K_u, K_v), or (K_u, K_v, 2) with the choices `KEEP` and `REPEAT` (infinite time where there is
          nothing to repeat). The memory is that of a copy that lives until the backward pass.
        """
        how = (in_both_phases, latency_share, kept, widened)
        objects = self._tables.numbers((produced, required, wanted))
        key = (tensor.shape, tensor.itemsize, self._held_as(tensor), how, objects)
        if key not in self._tables:
            once = again = self._price(tensor, produced, required, latency_share, wanted)
            if in_both_phases and latency_share < 1:
                again = self._price(tensor, produced, required, 1.0, wanted)
            self._tables[key] = self._build(tensor, produced, required, once, again, in_both_phases, kept, widened)
        return self._tables[key]

    def _build(
        self,
        tensor: Tensor,
        produced: tuple[Sharding, ...],
        required: tuple[Sharding, ...],
        once: np.ndarray,
        again: np.ndarray,
        in_both_phases: bool,
        kept: bool,
        widened: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        sources, rows = distinct_shardings(produced)
        targets, columns = distinct_shardings(required)
        sizes = np.array([self.copy_bytes(tensor, target, widened) for target in targets], dtype=np.int64)
        position = {target: j for j, target in enumerate(targets)}
        copies = np.tile(sizes, (len(sources), 1))
        for i, source in enumerate(sources):
            if source in position:
                copies[i, position[source]] = 0
        pairs = np.ix_(rows, columns)
        seconds, copies = once[pairs], copies[pairs]
        if not in_both_phases:
            return seconds, copies if kept else np.zeros_like(copies)
        twice = np.where(copies > 0, seconds + again[pairs], np.inf)
        return np.stack([seconds, twice], axis=-1), np.stack([copies, np.zeros_like(copies)], axis=-1)

    def _price(
        self,
        tensor: Tensor,
        produced: tuple[Sharding, ...],
        required: tuple[Sharding, ...],
        latency_share: float,
        wanted: np.ndarray | None,
    ) -> np.ndarray:
        """Seconds between the distinct layouts that are made and those that are read; infinite where nobody asks."""
        sources, rows = distinct_shardings(produced)
        targets, columns = distinct_shardings(required)
        asked = None
        if wanted is not None:
            asked = np.zeros((len(sources), len(targets)), dtype=bool)
            made, read = np.nonzero(wanted)
            asked[np.array(rows)[made], np.array(columns)[read]] = True
        shape, itemsize = tensor.shape, tensor.itemsize
        return reshard_table(sources, targets, shape, itemsize, self.topology, latency_share, asked)

    def seconds(self, tensor: Tensor, source: Sharding, target: Sharding, latency_share: float = 1.0) -> float:
        """Seconds of one read of ``tensor``; its collectives pay ``latency_share`` of their latencies, because the
        compiler combines them with others (`jaxplan.cost._combined`)."""
        return reshard_seconds(source, target, tensor.shape, tensor.itemsize, self.topology, latency_share)

    def least_seconds(self, tensor: Tensor, source: Sharding, target: Sharding, latency_share: float) -> float:
        """Seconds that `seconds` is not below, found without a long search."""
        if not latency_share:
            return 0.0
        return latency_share * reshard_bound(source, target, tensor.shape, tensor.itemsize, self.topology)

    def local_bytes(self, tensor: Tensor, sharding: Sharding) -> int:
        """Bytes of a tensor's piece on one device."""
        if self.is_tiled:
            shape = sharding.local_shape(tensor.shape, self.topology.axes) if tensor.shape else ()
            itemsize, inner, groups = self._held_as(tensor)
            return image_bytes(shape, itemsize, inner, groups)
        splits = 1
        for parts in sharding.num_splits(self.topology.axes):
            splits *= parts
        return tensor.num_bytes // splits

    def copy_bytes(self, tensor: Tensor, sharding: Sharding, widened: bool) -> int:
        """Bytes of a resharded copy on one device.

        One of 16 bits that the fusions of both passes cast to float32 was seen to be kept beside a float32 value that
        is computed from it: compiled GPU programs save the difference to the mean of a resharded activation so.
        """
        size = self.local_bytes(tensor, sharding)
        return size + size * _WIDE_BYTES // tensor.itemsize if widened else size

    def _held_as(self, tensor: Tensor) -> tuple[int, tuple[int, ...], ChannelGroups | None]:
        """Bytes of an element, and how the tensor lies in memory."""
        return self.storage.get(tensor.index, AS_DECLARED).of_copies(tensor.itemsize)
