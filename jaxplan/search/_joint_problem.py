"""Several steps as one problem of the solvers: the disjoint union of their problems, tied where they share arrays.

    minimise   sum_s weight_s * time_s(x_s)                       seconds, over the steps s
    and        memory_d(x_d) + sum_(s != d) resident_s(x_s)       bytes, of the step d that needs most while it runs
    with       layout_s(x_s, t) = layout_r(x_r, t)                for every array t that two steps share

An edge between the groups that hold a shared array in two steps takes no time where both lay it out alike, and infinite
time elsewhere. ``resident_s`` are the arrays that a step keeps and the running one does not have; each is counted once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxplan.core._interner import Memo
from jaxplan.cost import CostModel, local_bytes, split_counts
from jaxplan.ir import UNGROUPED
from jaxplan.search._shared import Leaf, Shared, are_kept
from jaxplan.solvers import Edge, Problem

Choice = tuple[tuple[int, ...], tuple[int, ...]]
"""The configuration of each group of a step, and the choice of each of its edges."""
Layout = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Member:
    """A step of a joint problem: its name, how much its time counts, and its costs."""

    name: str
    weight: float
    model: CostModel

    def tensor(self, leaf: Leaf) -> int:
        """The tensor that decides its layout: of a result that succeeds an argument, that."""
        program = self.model.graph.program
        if leaf.is_output and leaf.position not in program.aliases:
            return program.outputs[leaf.position]
        return program.inputs[program.aliases[leaf.position] if leaf.is_output else leaf.position]

    def group(self, leaf: Leaf) -> int:
        return self.model.graph.grouping.tensor_group[self.tensor(leaf)]

    def layouts(self, leaf: Leaf) -> tuple[Layout, ...]:
        """Of an array under each configuration of its group: the atomic axes of each dimension."""
        t, v = self.tensor(leaf), self.group(leaf)
        rank = len(self.model.graph.program.tensors[t].shape)
        if v == UNGROUPED:
            return (((),) * rank,)
        dims = self.model.graph.spaces[v].tensor_dims.get(t, ((),) * rank)
        return tuple(
            tuple(tuple(a for c in classes for a in config[c]) for classes in dims)
            for config in self.model.configurations[v]
        )

    def num_bytes(self, leaf: Leaf) -> np.ndarray:
        """Of an argument on one device under each configuration of its group, bytes, shape (K,)."""
        model, t, v = self.model, self.tensor(leaf), self.group(leaf)
        if v == UNGROUPED:
            return np.array([model.graph.program.tensors[t].num_bytes], dtype=np.int64)
        space, splits = model.graph.spaces[v], split_counts(model.configurations[v], model.topology)
        return np.ceil(local_bytes(model.graph, model.buffers, space, splits, t)).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """An array that stays on the devices between calls.

    Attributes:
      owner: the first step that takes it as an argument, and ``leaf``: which one.
      steps: those that have it as an argument or a result.
    """

    owner: int
    leaf: Leaf
    steps: frozenset[int]


class JointProblem:
    """Steps, tied by the arrays that they share.

    Attributes:
      members: the steps, in order.
      shared: the arrays that several of them have.
      stored: all arrays that some step keeps from call to call.
    """

    def __init__(
        self, members: Sequence[Member], shared: Sequence[Shared], leaves: Sequence[Sequence[Leaf]]
    ) -> None:
        """Tie steps; ``leaves`` are the arguments of each."""
        self.members, self.shared = tuple(members), tuple(shared)
        self.stored = _stored(self.members, self.shared, leaves)
        sizes = [member.model.problem.num_nodes for member in self.members]
        self._starts = [0, *itertools.accumulate(sizes)]
        self._memo = Memo()

    def problem(self, dominating: int) -> Problem:
        """The problem whose memory is that of one step while it runs, and of what the others keep."""
        times, memories, edges, names = [], [], [], []
        for s, (member, start) in enumerate(zip(self.members, self._starts)):
            of, is_running = member.model.problem, s == dominating
            times += [self._scaled(array, member.weight) for array in of.time]
            memories += of.memory if is_running else self._resident_memory(s, dominating)
            names += [f"{name} of {member.name}" for name in of.names]
            edges += [
                Edge(
                    source=start + edge.source,
                    target=start + edge.target,
                    time=self._scaled(edge.time, member.weight),
                    memory=edge.memory if is_running else None,
                )
                for edge in of.edges
            ]
        ties, whole = self._ties
        for v, allowed in whole:
            times[v] = times[v] + np.where(allowed, 0.0, np.inf)
        return Problem(time=times, memory=memories, edges=[*edges, *ties], names=names)

    def choices_of(self, assignment: Sequence[int], choices: Sequence[int]) -> tuple[Choice, ...]:
        """Each step's part of a solution."""
        found, first = [], 0
        for member, start in zip(self.members, self._starts):
            num_edges = len(member.model.problem.edges)
            nodes = len(member.model.configurations)
            found.append((tuple(assignment[start : start + nodes]), tuple(choices[first : first + num_edges])))
            first += num_edges
        return tuple(found)

    def labels(self, fixed: Sequence[Sequence[int] | None]) -> list[tuple[int, ...]]:
        """The configurations of every node: those given of some steps, all of the others (None)."""
        found: list[tuple[int, ...]] = []
        for member, of in zip(self.members, fixed, strict=True):
            sizes = member.model.problem.num_configurations
            found += [(k,) for k in of] if of else [tuple(range(size)) for size in sizes]
        return found

    def layout(self, parts: Sequence[Choice]) -> tuple[Layout, ...]:
        """How the shared arrays are laid out, each in the first step that has it."""
        return tuple(self._layout_in(shared.leaves[0], parts) for shared in self.shared)

    def kept_bytes(self, s: int, local_bytes: Callable[[Leaf], int]) -> tuple[int, ...]:
        """Per step, bytes on a device of the arrays that step ``s`` owns and that one does not have.

        Args:
          local_bytes: of an argument of step ``s`` on a device.
        """
        found = [0] * len(self.members)
        for of in self.stored:
            if of.owner == s and len(of.steps) < len(found):
                size = local_bytes(of.leaf)
                for other in range(len(found)):
                    found[other] += 0 if other in of.steps else size
        return tuple(found)

    def chosen_bytes(self, s: int, choice: Choice) -> Callable[[Leaf], int]:
        """Bytes on a device of an argument of a step, as it has chosen."""

        def local_bytes(leaf: Leaf) -> int:
            v = self.members[s].group(leaf)
            return int(self._num_bytes(leaf)[choice[0][v] if v != UNGROUPED else 0])

        return local_bytes

    def labels_of_layout(self, s: int, layout: Sequence[Layout]) -> list[tuple[int, ...]]:
        """Per node of a step, the configurations with a layout of the shared arrays."""
        member = self.members[s]
        found = [set(range(size)) for size in member.model.problem.num_configurations]
        for shared, wanted in zip(self.shared, layout, strict=True):
            for leaf in shared.of(member.name):
                v = member.group(leaf)
                if v != UNGROUPED:
                    found[v] &= {k for k, of in enumerate(self._layouts(leaf)) if of == wanted}
        return [tuple(sorted(of)) for of in found]

    def index(self, step: str) -> int:
        return next(s for s, member in enumerate(self.members) if member.name == step)

    def _layout_in(self, leaf: Leaf, parts: Sequence[Choice]) -> Layout:
        s = self.index(leaf.step)
        v = self.members[s].group(leaf)
        return self._layouts(leaf)[parts[s][0][v] if v != UNGROUPED else 0]

    def _layouts(self, leaf: Leaf) -> tuple[Layout, ...]:
        key = ("layouts", leaf)
        if key not in self._memo:
            self._memo[key] = self.members[self.index(leaf.step)].layouts(leaf)
        return self._memo[key]

    def _num_bytes(self, leaf: Leaf) -> np.ndarray:
        key = ("bytes", leaf)
        if key not in self._memo:
            self._memo[key] = self.members[self.index(leaf.step)].num_bytes(leaf)
        return self._memo[key]

    def _scaled(self, array: np.ndarray, weight: float) -> np.ndarray:
        """Seconds that count; one object for equal layers."""
        if weight == 1.0:
            return array
        key = ("scaled", self._memo.number(array), weight)
        if key not in self._memo:
            self._memo[key] = array * weight
        return self._memo[key]

    def _resident_memory(self, s: int, dominating: int) -> list[np.ndarray]:
        """Per node of a step that waits, bytes of the arrays that it keeps and no step before it counts."""
        member = self.members[s]
        found = [np.zeros(size, np.int64) for size in member.model.problem.num_configurations]
        for of in self.stored:
            v = member.group(of.leaf) if of.owner == s else UNGROUPED
            if v != UNGROUPED and dominating not in of.steps:
                found[v] = found[v] + self._num_bytes(of.leaf)
        return found

    @functools.cached_property
    def _ties(self) -> tuple[list[Edge], list[tuple[int, np.ndarray]]]:
        """Edges between groups that hold one array, and, of arrays that some step has whole, (node, (K,) allowed)."""
        allowed: dict[tuple[int, int], np.ndarray] = {}
        whole: list[tuple[int, np.ndarray]] = []
        for shared in self.shared:
            placed = [
                (v, self._layouts(leaf)) for leaf in shared.leaves if (v := self._node(leaf)) is not None
            ]
            if len(placed) < len(shared.leaves):
                whole += [(v, np.array([not any(dims) for dims in layouts])) for v, layouts in placed]
            for (u, of_u), (v, of_v) in itertools.pairwise(placed):
                (u, of_u), (v, of_v) = sorted([(u, of_u), (v, of_v)], key=lambda end: end[0])
                if u == v:
                    continue
                key = ("alike", of_u, of_v)
                if key not in self._memo:
                    self._memo[key] = np.array([[a == b for b in of_v] for a in of_u])
                alike = self._memo[key]
                allowed[u, v] = allowed[u, v] & alike if (u, v) in allowed else alike
        edges = [
            Edge(source=u, target=v, time=np.where(alike, 0.0, np.inf)) for (u, v), alike in sorted(allowed.items())
        ]
        return edges, whole

    def _node(self, leaf: Leaf) -> int | None:
        """The node that holds an array; None where it is whole whatever is chosen."""
        s = self.index(leaf.step)
        v = self.members[s].group(leaf)
        return None if v == UNGROUPED else self._starts[s] + v


def _stored(
    members: Sequence[Member], shared: Sequence[Shared], leaves: Sequence[Sequence[Leaf]]
) -> tuple[Stored, ...]:
    """All arrays that some step keeps from call to call, each once."""
    number = {member.name: s for s, member in enumerate(members)}
    several = {leaf: of for of in shared for leaf in of.leaves}
    found: dict[Leaf, Stored] = {}
    for s, of in enumerate(leaves):
        for leaf in of:
            together = several[leaf].leaves if leaf in several else (leaf,)
            is_first = not any(other in found for other in together)
            if not leaf.is_output and is_first and are_kept(together):
                steps = frozenset(number[other.step] for other in together)
                found[leaf] = Stored(owner=s, leaf=leaf, steps=steps)
    return tuple(found.values())


def mirrored(member: Member, leaf: Leaf, wanted: Layout) -> tuple[tuple[int, ...], ...] | None:
    """The configuration of an array's group that lays it out so, nothing else split; None where it cannot."""
    v, t, topology = member.group(leaf), member.tensor(leaf), member.model.topology
    if v == UNGROUPED:
        return None
    space = member.model.graph.spaces[v]
    chosen: list[tuple[int, ...]] = [()] * len(space.classes)
    for classes, axes in zip(space.tensor_dims.get(t, ()), wanted, strict=False):
        rest = list(axes)
        for c in classes:
            taken: list[int] = []
            while rest and space.classes[c].divisible_by(
                int(np.prod([topology.axes[a].size for a in (*taken, rest[0])]))
            ):
                taken.append(rest.pop(0))
            chosen[c] = tuple(taken)
        if rest:
            return None
    config = tuple(chosen)
    made = tuple(tuple(a for c in classes for a in config[c]) for classes in space.tensor_dims.get(t, ()))
    return config if made == wanted else None


