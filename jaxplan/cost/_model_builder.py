"""Builds cost models: prices the nodes and edges of `jaxplan.cost.CostModel`; equal layers share their tables."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.core._interner import ByIdentity, Memo
from jaxplan.cost._combined import combined_bytes, evenly_split_peak, latency_shares
from jaxplan.cost._configuration_table import ConfigurationTable
from jaxplan.cost._inner import may_communicate
from jaxplan.cost._model import CostModel
from jaxplan.cost._neighbourhood_cost import NeighbourhoodCost
from jaxplan.cost._node_tables import NodeTables
from jaxplan.cost._offload import offloaded_model
from jaxplan.cost._priced_pairs import PricedPairs
from jaxplan.cost._pricing import Pricer
from jaxplan.cost._reads import Read, find_reads, produced_sharding, required_sharding
from jaxplan.cost._user_meshes import check_user_meshes
from jaxplan.ir import (
    MAX_CONFIGURATIONS,
    UNGROUPED,
    ClassLimit,
    Configuration,
    StepGraph,
    Tensor,
)
from jaxplan.mesh import Sharding, Topology
from jaxplan.solvers import Problem
from jaxplan.xla._buffers import Buffers, analyse_buffers
from jaxplan.xla._target import Target


def build_cost_model(
    graph: StepGraph,
    topology: Topology,
    progress: Callable[[float], None] = lambda fraction: None,
    configurations: Sequence[tuple[Configuration, ...]] | None = None,
    *,
    always: Sequence[frozenset[Configuration]] = (),
) -> CostModel:
    """Price nodes and edges; equal layers share their tables.

    Args:
      configurations: of each group; default: those that `enumerate_configurations` gives, and `always`.
      always: per group, configurations that the cap on their number never leaves out.
    """
    builder = ModelBuilder(graph, topology, always)
    return builder.build(configurations if configurations is not None else builder.configurations(), progress)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    """What the builders of one step on one topology have in common, whatever their configurations and limits.

    Attributes:
      combined_bytes: collectives are combined up to so many bytes.
    """

    pricer: Pricer
    reads: tuple[Read, ...]
    memo: Memo
    nodes: NodeTables
    combined_bytes: int

    @classmethod
    def of(cls, graph: StepGraph, topology: Topology, buffers: Buffers) -> _Known:
        """Found once for each step: a step that is planned again under other pins has its prices."""

        def find() -> _Known:
            memo = Memo()
            return cls(
                pricer=Pricer(topology=topology, is_tiled=buffers.is_tiled, storage=buffers.storage),
                reads=find_reads(graph),
                memo=memo,
                nodes=NodeTables(graph, topology, buffers, memo),
                combined_bytes=combined_bytes(evenly_split_peak(graph, buffers, topology.num_devices)),
            )

        return graph.derive("prices", (topology, ByIdentity(buffers, None)), find)


class ModelBuilder:
    """Builds cost models of one step on one topology, for different configurations; prices are kept between them."""

    def __init__(
        self,
        graph: StepGraph,
        topology: Topology,
        always: Sequence[frozenset[Configuration]] = (),
        overlap: bool = False,
        limits: Sequence[Sequence[ClassLimit]] = (),
        target: Target | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        check_user_meshes(graph, topology)
        target = target or Target.of(topology.chip, topology.num_devices)
        self.graph, self.topology, self.overlap = graph, topology, overlap
        self.buffers = buffers = buffers or analyse_buffers(graph, target)
        known = _Known.of(graph, topology, buffers)
        self.pricer, self.reads, self.memo, self._nodes = known.pricer, known.reads, known.memo, known.nodes
        self.table = ConfigurationTable(graph, topology, self.reads, always, limits, self.memo)
        self.configs: tuple[tuple[Configuration, ...], ...] = ()
        self._priced_pairs: PricedPairs | None = None
        self.latency_shares = latency_shares(
            graph, self.reads, buffers.found, self.table.is_splittable, known.combined_bytes
        )

    def configurations(self, most: int = MAX_CONFIGURATIONS) -> tuple[tuple[Configuration, ...], ...]:
        """Of each group at most so many, those that are always there on top; one object for equal groups."""
        return tuple(self.memo.setdefault(configs, configs) for configs, _ in self.table.of(most))

    def with_more(
        self, configurations: Sequence[tuple[Configuration, ...]], more: Mapping[int, Iterable[Configuration]]
    ) -> tuple[tuple[Configuration, ...], ...]:
        """Configurations of all groups and ``more`` of some, those that limits rule out left out."""
        return self.table.with_more(configurations, more)

    def has_all(self) -> bool:
        """Whether `configurations` leaves no way to split out."""
        return self.table.has_all()

    def own_costs(self, v: int, configs: tuple[Configuration, ...]) -> list[tuple[float, float]]:
        """Seconds and bytes of a group alone under each of some configurations."""
        return self._nodes.own_costs(v, configs)

    def priced_pairs(self, most: int, strategies: Sequence[Sequence[Configuration]]) -> PricedPairs:
        """The pairs that strategies alone need beside `configurations` of the same number."""
        return PricedPairs.of(strategies, [added for _, added in self.table.of(most)])

    def neighbourhood_cost(self, v: int, chosen: Sequence[Configuration]) -> NeighbourhoodCost:
        """The cost of a group with its results and operands, the others configured as in `chosen`."""
        return NeighbourhoodCost(
            self.graph,
            self.pricer,
            v,
            self._reads_at[v],
            chosen,
            lambda t: self.latency_shares.get(t, 1.0),
            self._how_kept,
        )

    @functools.cached_property
    def _reads_at(self) -> tuple[tuple[Read, ...], ...]:
        """Per group, the reads that it makes or reads."""
        found: list[list[Read]] = [[] for _ in self.graph.grouping.groups]
        for read in self.reads:
            for v in {read.producer, read.consumer} - {UNGROUPED}:
                found[v].append(read)
        return tuple(map(tuple, found))

    def num_pairs(self, configurations: Sequence[tuple[Configuration, ...]]) -> int:
        """About how many pairs of layouts a model of these configurations prices; those of equal layers count once."""
        tensors, tables = self.graph.program.tensors, set()
        for read in self.reads:
            if UNGROUPED not in (read.producer, read.consumer) and read.producer != read.consumer:
                ends = (configurations[read.producer], configurations[read.consumer])
                tables.add((*self.memo.numbers(ends), *map(len, ends), tensors[read.tensor].shape))
        return sum(table[2] * table[3] for table in tables)

    def build(
        self,
        configurations: Sequence[tuple[Configuration, ...]],
        progress: Callable[[float], None] = lambda fraction: None,
        priced_pairs: PricedPairs | None = None,
    ) -> CostModel:
        """The model of these configurations of each group, all pairs of them priced but for those that are tied."""
        self._priced_pairs = priced_pairs
        self.configs = tuple(self.memo.setdefault(configs, configs) for configs in configurations)
        times, memories, computes, flops = [], [], [], []
        inner = defaultdict(list)
        for read in self.reads:
            if read.producer == read.consumer or read.consumer == UNGROUPED:
                inner[read.producer].append(read)
        for v in range(len(self.graph.grouping.groups)):
            compute, node_flops, memory = self._nodes.of(v, self.configs[v])
            extra = [self._inner_seconds(read) for read in inner[v]]
            if may_communicate(self.graph, v):
                extra.append(self._nodes.operator_seconds(v, self.configs[v]))
            times.append(self._sum((compute, *extra)))
            memories.append(memory)
            computes.append(compute)
            flops.append(node_flops)
            progress(0.5 * v / len(self.graph.grouping.groups))
        edges, edge_reads = self._edges(progress)
        names = [f"group {g.index} ({g.kind})" for g in self.graph.grouping.groups]
        if not names:  # scalars only, which are replicated: a problem with one assignment
            times, memories, names = [np.zeros(1)], [np.zeros(1, np.int64)], ["no group"]
        model = CostModel(
            graph=self.graph,
            topology=self.topology,
            buffers=self.buffers,
            pricer=self.pricer,
            configurations=self.configs,
            reads=self.reads,
            problem=Problem(time=times, memory=memories, edges=edges, names=names),
            edge_reads=edge_reads,
            latency_shares=self.latency_shares,
            compute=tuple(computes),
            flops=tuple(flops),
            equation_seconds=functools.partial(self._nodes.by_equation, self.configs),
            overlapped=self.overlap,
        )
        return model if self.graph.offload is None else offloaded_model(model, self.graph.offload)

    def _shardings(self, v: int, t: int, produced: bool) -> tuple[Sharding, ...]:
        """One layout per configuration of group ``v``; the tuple is shared by equal groups."""
        rank = len(self.graph.program.tensors[t].shape)
        if v == UNGROUPED:
            return self.memo.setdefault(("replicated", rank), (Sharding.replicated(rank),))
        space = self.graph.spaces[v]
        partial = space.tensor_partial.get(t, ()) if produced else space.operand_partial
        key = ("layouts", self.memo.number(self.configs[v]), space.tensor_dims.get(t), partial, rank)
        if key not in self.memo:
            make = produced_sharding if produced else required_sharding
            shardings = tuple(make(space, config, t, rank) for config in self.configs[v])
            self.memo[key] = self.memo.setdefault(shardings, shardings)
        return self.memo[key]

    def _inner_seconds(self, read: Read) -> np.ndarray:
        """Reshardings that one group's configuration fixes: partial sums resolved inside, scalars summed."""
        tensor = self.graph.program.tensors[read.tensor]
        produced = self._shardings(read.producer, read.tensor, True)
        required = self._shardings(read.consumer, read.tensor, False)
        if read.is_output:  # outputs of the program are whole
            required = tuple(Sharding(sharding.dims) for sharding in required)
        if len(required) == 1:
            required = required * len(produced)
        share = self.latency_shares.get(read.tensor, 1.0)
        key = ("inner", produced, required, tensor.shape, tensor.itemsize, tensor.trips, share)
        if key not in self.memo:
            pairs = zip(produced, required, strict=True)
            self.memo[key] = np.array(
                [
                    0.0 if a == b else tensor.trips * self.pricer.seconds(tensor, a, b, share)
                    for a, b in pairs
                ]
            )
        return self.memo[key]

    def _edges(self, progress: Callable[[float], None]):
        pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, read in enumerate(self.reads):
            if read.producer != read.consumer and read.consumer != UNGROUPED:
                pairs[read.producer, read.consumer].append(index)
        edges, edge_reads = [], []
        merged: dict[tuple[int, int], list[int]] = defaultdict(list)
        for done, ((u, v), indices) in enumerate(sorted(pairs.items())):
            for index in indices:
                if self.reads[index].in_both_phases:
                    edges.append((u, v, *self._tables(index)))
                    edge_reads.append((index,))
                else:
                    merged[min(u, v), max(u, v)].append(index)
            progress(0.5 + 0.5 * done / len(pairs))
        for (u, v), indices in sorted(merged.items()):
            tables = [self._tables(index) for index in indices]
            oriented = [
                tuple(self._transposed(a) for a in table) if self.reads[i].producer == v else table
                for i, table in zip(indices, tables, strict=True)
            ]
            edges.append((u, v, self._sum([t for t, _ in oriented]), self._sum([m for _, m in oriented])))
            edge_reads.append(tuple(indices))
        return edges, tuple(edge_reads)

    def _tables(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        read = self.reads[index]
        tensor = self._travelling(index)
        kept, widened = self._how_kept(read)
        produced = self._shardings(read.producer, read.tensor, True)
        required = self._shardings(read.consumer, read.tensor, False)
        seconds, copies = self.pricer.read_tables(
            tensor,
            produced,
            required,
            in_both_phases=read.in_both_phases,
            latency_share=self.latency_shares.get(read.tensor, 1.0),
            kept=kept,
            widened=widened,
            wanted=self._wanted(read, produced, required),
        )
        return (seconds if tensor.trips == 1 else self._times(seconds, tensor.trips)), copies

    def _wanted(
        self, read: Read, produced: tuple[Sharding, ...], required: tuple[Sharding, ...]
    ) -> np.ndarray | None:
        """The pairs of configurations to price, None for all: not those that strategies alone need, and of a parameter
        and its update those where each device updates its own part of the stored array."""
        ends = read.producer, read.consumer
        wanted = self._priced_pairs.wanted(*ends, *(self.configs[v] for v in ends)) if self._priced_pairs else None
        has_choice = any(len(self.configs[v]) > 1 for v in ends)
        if not has_choice or (ends not in self.table.updates and ends[::-1] not in self.table.updates):
            return wanted
        whole, parts = (required, produced) if ends in self.table.updates else (produced, required)
        key = ("parts", *self.memo.numbers((whole, parts, wanted)), ends in self.table.updates)
        if key not in self.memo:
            pairs = np.array([[_is_part(part, of) for of in whole] for part in parts])
            pairs = pairs if ends in self.table.updates else np.ascontiguousarray(pairs.T)
            self.memo[key] = pairs if wanted is None else pairs & wanted
        return self.memo[key]

    def _travelling(self, index: int) -> Tensor:
        """The tensor of a read as it travels; no configuration changes that."""
        key = ("travelling", index)
        if key not in self.memo:
            read = self.reads[index]
            program = self.graph.program
            travels = self.buffers.dtypes.tensor(program.tensors, read.tensor, read.equations, len(program.equations))
            self.memo[key] = travels
        return self.memo[key]

    def _how_kept(self, read: Read) -> tuple[bool, bool]:
        """Whether a copy for this read lives until the backward pass, and then is widened."""
        key = ("kept", self.memo.number(read))
        if key not in self.memo:
            latest = max(read.equations, key=self.buffers.read_end.__getitem__)
            kept = self.buffers.is_kept(read.equations[0], latest)
            self.memo[key] = kept, kept and self.buffers.dtypes.source(read.tensor) in self.buffers.widened
        return self.memo[key]

    def _times(self, seconds: np.ndarray, trips: int) -> np.ndarray:
        key = ("times", self.memo.number(seconds), trips)
        if key not in self.memo:
            self.memo[key] = seconds * trips
        return self.memo[key]

    def _transposed(self, array: np.ndarray) -> np.ndarray:
        key = ("T", self.memo.number(array))
        if key not in self.memo:
            self.memo[key] = np.ascontiguousarray(array.T)
        return self.memo[key]

    def _sum(self, arrays) -> np.ndarray:
        """Sum of arrays; the same arrays give the same object, so that solvers fold equal layers."""
        arrays = sorted(arrays, key=self.memo.number)
        key = ("sum", self.memo.numbers(arrays))
        if key not in self.memo:
            total = arrays[0] if len(arrays) == 1 else np.sum(np.stack(arrays), axis=0)
            self.memo[key] = total
        return self.memo[key]


def _is_part(part: Sharding, whole: Sharding) -> bool:
    """Whether a device's piece in one layout lies within its piece in another."""
    return all(one[: len(other)] == other for one, other in zip(part.dims, whole.dims, strict=True))
