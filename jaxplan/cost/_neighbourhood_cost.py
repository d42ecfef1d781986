"""Cost of one group with its neighbours fixed: for the few configurations that are opened step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxplan.cost._pricing import Pricer
from jaxplan.cost._reads import Read, produced_sharding, required_sharding, sharding_of
from jaxplan.ir import UNGROUPED, Configuration, GroupSpace, StepGraph, Tensor
from jaxplan.mesh import Sharding


class _EqualReads(NamedTuple):
    """Equal reads: a tensor, which of its layouts the group's configuration decides, and how its copy counts.

    Attributes:
      source, target: the layout, or None where the configuration decides it.
      is_output: outputs of the program are whole.
      has_copy, is_wide: whether the copy is held, and beside a float32 value (`Pricer.copy_bytes`).
    """

    shape: tuple[int, ...]
    itemsize: int
    trips: int
    latency_share: float
    source: Sharding | None
    target: Sharding | None
    own_source: object
    own_target: object
    is_output: bool
    has_copy: bool
    is_wide: bool


class _Moved(NamedTuple):
    """So many reads of a tensor from one layout in another."""

    count: int
    tensor: Tensor
    source: Sharding
    target: Sharding
    latency_share: float


class NeighbourhoodCost:
    """The reads of a group's results and operands, with the configurations of all others fixed; equal ones once."""

    def __init__(
        self,
        graph: StepGraph,
        pricer: Pricer,
        v: int,
        reads: Sequence[Read],
        chosen: Sequence[Configuration],
        latency_share: Callable[[int], float],
        how_kept: Callable[[Read], tuple[bool, bool]],
    ) -> None:
        """``how_kept`` says of a read whether its copy lives until the backward pass, and whether it is widened."""
        self._pricer = pricer
        self._space: GroupSpace = graph.spaces[v]
        self._reads: dict[_EqualReads, list[Tensor]] = {}
        for read in reads:
            tensor, t = graph.program.tensors[read.tensor], read.tensor
            kept, is_wide = how_kept(read)
            makes, takes = read.producer == v, read.consumer == v
            dims = self._space.tensor_dims.get(t) if makes or takes else None
            equal = _EqualReads(
                shape=tensor.shape,
                itemsize=tensor.itemsize,
                trips=tensor.trips,
                latency_share=latency_share(t),
                source=None if makes else sharding_of(graph, chosen, read.producer, t, produced=True),
                target=None if takes else sharding_of(graph, chosen, read.consumer, t, produced=False),
                own_source=(dims, self._space.tensor_partial.get(t)) if makes else None,
                own_target=dims if takes else None,
                is_output=read.is_output,
                has_copy=(kept or read.in_both_phases) and UNGROUPED != read.consumer != read.producer,
                is_wide=is_wide,
            )
            self._reads.setdefault(equal, []).append(tensor)

    def cost(
        self, config: Configuration, own: tuple[float, float], slope: float = 0.0, most: float = math.inf
    ) -> tuple[float, float]:
        """Seconds and bytes under one configuration of the group, including its ``own``.

        Copies count as kept. Where seconds + slope x bytes come to ``most`` at least, some are bounded instead of
        priced.
        """
        seconds, num_bytes = own
        if seconds + slope * num_bytes >= most:
            return seconds, num_bytes
        moved, num_bytes = self._moved(config, num_bytes)
        return self._seconds(moved, seconds, most - slope * num_bytes), num_bytes

    def bound(self, config: Configuration, own: tuple[float, float], slope: float) -> float:
        """A lower bound on seconds + slope x bytes of `cost`, found without a long search."""
        moved, num_bytes = self._moved(config, own[1])
        return own[0] + sum(self._least(read) for read in moved) + slope * num_bytes

    def _moved(self, config: Configuration, num_bytes: float) -> tuple[list[_Moved], float]:
        """The reads between different shardings, and so many bytes with those of their copies."""
        moved = []
        for read, tensors in self._reads.items():
            source, target = self._ends(read, tensors[0], config)
            if source != target:
                moved.append(_Moved(len(tensors) * read.trips, tensors[0], source, target, read.latency_share))
                if read.has_copy:
                    num_bytes += len(tensors) * self._pricer.copy_bytes(tensors[0], target, read.is_wide)
        return moved, num_bytes

    def _least(self, read: _Moved) -> float:
        return read.count * self._pricer.least_seconds(*read[1:])

    def _ends(self, read: _EqualReads, tensor: Tensor, config: Configuration) -> tuple[Sharding, Sharding]:
        source, target, rank = read.source, read.target, len(tensor.shape)
        if source is None:
            source = produced_sharding(self._space, config, tensor.index, rank)
        if target is None:
            target = required_sharding(self._space, config, tensor.index, rank)
        return source, Sharding(target.dims) if read.is_output and target.partial else target

    def _seconds(self, moved: Sequence[_Moved], seconds: float, most: float) -> float:
        """Some seconds and those of reads; where a bound of all comes to ``most`` seconds, that bound."""
        least = [self._least(read) for read in moved] if most < math.inf else [0.0] * len(moved)
        rest = sum(least)
        for read, known in zip(moved, least):
            if seconds + rest >= most:
                return seconds + rest
            rest -= known
            seconds += read.count * self._pricer.seconds(*read[1:])
        return seconds
