"""The reshardings that a plan executes: the one list that prediction and lowering share, so that they agree."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.core._interner import Memo
from jaxplan.cost._reads import Read, is_ascending, sharding_of
from jaxplan.ir import STORED_KINDS, Configuration, StepGraph, Tensor
from jaxplan.mesh import COLLECTIVES, Path, Sharding, Topology, reshard_path
from jaxplan.xla._buffers import Buffers
from jaxplan.xla._plan_effects import ReduceAtOnce, ShareSteps

ChangedRead = tuple[int, Sharding, Sharding]
"""Index of a read, the layout in which it is made and the one in which it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One execution of a transfer.

    Attributes:
      first: the copy is made before this equation, the first reader or an earlier one.
      readers: indices of the equations that read the copy, ascending.
    """

    first: int
    readers: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.readers and is_ascending(self.readers), f"readers of a copy are in no order: {self.readers}"
        assert self.first <= self.readers[0], f"a copy made before {self.first} is read by {self.readers[0]}"

    @property
    def last(self) -> int:
        """The equation that reads the copy last."""
        return self.readers[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One tensor brought to one other layout, for all of its readers that want it.

    Attributes:
      tensor: tensor index.
      carried: the tensor that travels: itself, or the narrower one that it was cast from (`Buffers.dtypes`).
      path: the chain of steps.
      spans: its executions in program order, none of which is read after the next begins: one, or where the copy is
        made again one before the first backward equation and one from there on.
      repeated: the copy is not kept between forward and backward pass.
      itemsize: bytes of an element on the way (`Buffers.dtypes`).
      trips: how often each execution runs: the trips of the loops around it.
      shared: how many of the first steps an earlier transfer of the same value has taken: the compiler merges them.
    """

    tensor: int
    carried: int
    path: Path
    spans: tuple[Span, ...]
    repeated: bool
    itemsize: int
    trips: int = 1
    shared: int = 0

    def __post_init__(self) -> None:
        apart = all(one.last < other.first for one, other in itertools.pairwise(self.spans))
        assert self.spans and apart, f"executions of the transfer of tensor {self.tensor} overlap: {self.spans}"

    def execution_at(self, equation: int) -> int:
        """Which execution makes the copy that an equation reads, by its place in ``spans``."""
        found = next((i for i, span in enumerate(self.spans) if equation in span.readers), None)
        assert found is not None, f"equation {equation} reads a copy of tensor {self.tensor} made for {self.spans}"
        return found

    @property
    def target(self) -> Sharding:
        return self.path.shardings[-1]

    @property
    def collectives(self) -> tuple[tuple[str, tuple[int, ...], int], ...]:
        """The collectives of one execution: `Path.collectives` without those of shared steps."""
        if not self.shared:
            return self.path.collectives
        return self.path.collectives[
            sum(step.kind in COLLECTIVES for step in self.path.steps[: self.shared]) :
        ]


_Ordered = tuple[tuple[int, int, tuple[tuple[int, ...], ...]], Transfer]
"""Sort key and transfer: first reader, tensor, dimensions of the target."""


def plan_transfers(
    graph: StepGraph,
    topology: Topology,
    reads: Sequence[Read],
    configurations: Sequence[Configuration],
    repeated: frozenset[int],
    buffers: Buffers,
) -> tuple[Transfer, ...]:
    """All reshardings of a plan, in order of first execution.

    Args:
      reads: from `find_reads`.
      configurations: the configuration of each group.
      repeated: reads (by index) that gather their copy again for the backward pass.
      buffers: decide in which dtypes tensors travel, and which steps they share.
    """
    changed = changed_reads(graph, reads, configurations)
    return make_transfers(graph, topology, reads, changed, repeated, Memo(), buffers)


def changed_reads(
    graph: StepGraph, reads: Sequence[Read], configurations: Sequence[Configuration]
) -> list[ChangedRead]:
    """Reads between a producer and a consumer with different shardings."""
    changed = []
    for index, read in enumerate(reads):
        source = sharding_of(graph, configurations, read.producer, read.tensor, produced=True)
        target = sharding_of(graph, configurations, read.consumer, read.tensor, produced=False)
        if read.is_output and target.partial:  # outputs of the program are whole
            target = Sharding(target.dims)
        if source != target:
            changed.append((index, source, target))
    return changed


def _local_bytes(tensor: Tensor, path: Path, topology: Topology) -> int:
    """Bytes per device of a tensor before its resharding."""
    return tensor.num_bytes // math.prod(path.shardings[0].num_splits(topology.axes))


def make_transfers(
    graph: StepGraph,
    topology: Topology,
    reads: Sequence[Read],
    changed: Sequence[ChangedRead],
    repeated: frozenset[int],
    known: Memo,
    buffers: Buffers,
) -> tuple[Transfer, ...]:
    """One transfer for all reads that bring a tensor to one layout (see `plan_transfers`).

    ``known`` holds those of each tensor between calls, as long as they give the same objects in ``changed``: plans of
    one frontier differ in few.
    """
    of_tensor: dict[int, list[ChangedRead]] = defaultdict(list)
    for item in changed:
        of_tensor[reads[item[0]].tensor].append(item)
    ordered: list[_Ordered] = []
    for t, items in of_tensor.items():
        key = (t, known.to_find(items), *[item[0] in repeated for item in items])
        found = known.get(key)
        if found is None:
            known.numbers(items)
            found = known[key] = _of_tensor(graph, topology, buffers, reads, t, items, repeated)
        ordered += found
    ordered.sort(key=operator.itemgetter(0))
    transfers = [transfer for _, transfer in ordered]
    if not buffers.found.has(ShareSteps):
        return tuple(transfers)
    return _with_shared_steps(transfers, graph.values.merged, known)


def _of_tensor(
    graph: StepGraph,
    topology: Topology,
    buffers: Buffers,
    reads: Sequence[Read],
    t: int,
    changed: Sequence[ChangedRead],
    repeated: frozenset[int],
) -> list[_Ordered]:
    """The transfers of one tensor, steps shared with others not yet known."""
    readers: dict[Sharding, list[int]] = defaultdict(list)
    for index, _, target in changed:
        readers[target].append(index)
    source, program = changed[-1][1], graph.program
    at_once = min((effect.num_bytes for effect in buffers.found.of(ReduceAtOnce)), default=math.inf)
    ordered: list[_Ordered] = []
    for target, indices in readers.items():
        forward = sorted({e for i in indices for e in reads[i].forward})
        later = sorted({e for i in indices for e in reads[i].later})
        tensor = buffers.dtypes.tensor(program.tensors, t, forward + later, len(program.equations))
        path = reshard_path(source, target, tensor.shape, tensor.itemsize, topology)
        again = [i in repeated for i in indices if reads[i].in_both_phases]
        repeats = bool(forward and later and path.collectives) and (not again or all(again))
        reading = (forward, later) if repeats else (forward + later,)
        spans = tuple(Span(first=e[0], readers=tuple(e)) for e in reading)
        is_sum = source.partial and len(spans) == 1
        if is_sum and _local_bytes(tensor, path, topology) > at_once:
            spans = (dataclasses.replace(spans[0], first=graph.values.producer[t] + 1),)
        transfer = Transfer(
            tensor=t,
            carried=buffers.dtypes.source(t),
            path=path,
            spans=spans,
            repeated=repeats,
            itemsize=tensor.itemsize,
            trips=tensor.trips,
        )
        ordered.append(((spans[0].first, t, target.dims), transfer))
    return ordered


def _with_shared_steps(
    transfers: Sequence[Transfer], number: Sequence[int], known: Memo
) -> tuple[Transfer, ...]:
    """Transfers of one value (see `Values.merged`) that begin alike; a repeated one stands for itself."""
    result: list[Transfer] = []
    before: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        if len(transfer.spans) == 1:
            others = before[number[transfer.carried]]
            if others:
                shared = max(_common(transfer.path, other.path) for other in others)
                if shared:
                    key = (known.number(transfer), shared)
                    transfer = known.setdefault(key, dataclasses.replace(transfer, shared=shared))
            others.append(transfer)
        result.append(transfer)
    return tuple(result)


def parameter_gathers(graph: StepGraph, transfers: Sequence[Transfer]) -> list[Transfer]:
    """Those that gather a parameter as it is stored, or cast."""
    groups, group_of = graph.grouping.groups, graph.grouping.tensor_group
    return [
        transfer
        for transfer in transfers
        if group_of[transfer.tensor] >= 0
        and groups[group_of[transfer.tensor]].kind in STORED_KINDS
        and any(step.kind == "all-gather" for step in transfer.path.steps)
    ]


def _common(path: Path, other: Path) -> int:
    """Number of first steps that two paths share."""
    pairs = zip(path.steps, other.steps) if path.shardings[0] == other.shardings[0] else ()
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
