"""State: which arguments a step returns updated, by structure and by data flow (docs/state.md).

An input is paired with the output that succeeds it: the caller passes that output to the next call in its place, so the
two have one sharding. Subtrees are paired before leaves, the largest first, and of several candidates of one signature
(key paths, shapes, dtypes) those into which most of the subtree flows, by the shortest paths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.core import _compat
from jaxplan.ir._assign import Score, assign, largest_matching
from jaxplan.ir._dependence import Dependence
from jaxplan.ir._past_values import is_window, with_past_values, without_past_values
from jaxplan.ir._program import PairFlow, StatePair
from jaxplan.ir._state_leaves import (
    Keys,
    Leaf,
    Subtree,
    differ_by_name,
    ends_alike,
    is_named,
    subtrees_below,
    subtrees_of_arguments,
)
from jaxplan.ir._successors import Flow, Successors


@dataclass(frozen=True, slots=True)
class _Place:
    """A prefix of the results under which a subtree's leaves are found, as output positions in their order."""

    prefix: Keys
    leaves: tuple[int, ...]


def pair_state(
    inputs: Sequence[Leaf],
    outputs: Sequence[Leaf],
    successors: Successors,
    dependence: Dependence,
    donated: Sequence[bool],
) -> tuple[StatePair, ...]:
    """Pair inputs and outputs one to one.

    Args:
      inputs, outputs: leaves in flattened order.
      successors: flows of the program; consulted for outputs that have the shape and dtype of an input.
      dependence: inputs that values depend on.
      donated: per input, whether its argument is donated by name.
    """
    return _Pairing(inputs, outputs, successors, dependence, donated).run()


class _Pairing:
    """Working state: the inputs and outputs taken so far, and the pairs found."""

    def __init__(
        self,
        inputs: Sequence[Leaf],
        outputs: Sequence[Leaf],
        successors: Successors,
        dependence: Dependence,
        donated: Sequence[bool],
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.successors, self.dependence, self.donated = successors, dependence, donated
        self.partner: dict[int, int] = {}  # input -> output
        self.taken: set[int] = set()
        self.placed: set[int] = set()
        self.data: set[int] = set()  # returned changed, and no state
        self.evolving: set[int] = set()  # returned changed as nothing but each other makes them
        self.recurrent: set[int] = set()
        self.rivals: dict[int, list[int]] = defaultdict(list)  # inputs that fit the partner's place as well
        self.by_keys = {leaf.keys: o for o, leaf in enumerate(outputs)}
        self.by_suffix: dict[tuple[Keys, Any], list[int]] = defaultdict(list)
        avals = {leaf.aval for leaf in inputs}
        for o, leaf in enumerate(outputs):
            if leaf.aval in avals:
                for n in range(len(leaf.keys)):
                    self.by_suffix[leaf.keys[n:], leaf.aval].append(o)

    def run(self) -> tuple[StatePair, ...]:
        self._subtrees()
        self._recurrent_leaves()
        self._leaves()
        self._donated_leaves()
        return tuple(self._pair(i, o) for i, o in sorted(self.partner.items()))

    def flow(self, i: int, o: int) -> Flow | None:
        """The flow from an input to an output of its shape and dtype."""
        if self.inputs[i].aval != self.outputs[o].aval:
            return None
        return self.successors.flows(self.outputs[o].tensor).get(i)

    def _pair(self, i: int, o: int) -> StatePair:
        flow = self.flow(i, o)
        placed = i in self.placed and i not in self.data | self.evolving
        is_update = flow is not None and (flow.is_written or self._phase(o) != "forward")
        is_update = is_update or i in self.recurrent | self.evolving
        return StatePair(
            input=i,
            output=o,
            flow=self._kind(i, o),
            placed=placed and all(rival in self.partner for rival in self.rivals[i]),
            is_state=self.donated[i] or (i not in self.data and (placed or is_update)),
        )

    def _kind(self, i: int, o: int) -> PairFlow:
        flow = self.flow(i, o)
        if flow is not None:
            return flow.kind
        return "moved" if self._is_unchanged(o) else "none"

    def _is_unchanged(self, o: int) -> bool:
        """Whether an output is an input."""
        return any(f.kind == "unchanged" for f in self.successors.flows(self.outputs[o].tensor).values())

    def _phase(self, o: int) -> str:
        return self.successors.phase(self.outputs[o].tensor)

    # subtrees

    def _subtrees(self) -> None:
        """The largest first; those without a place are looked for in parts."""
        pending: dict[int, list[Subtree]] = defaultdict(list)
        for node in subtrees_of_arguments(self.inputs):
            pending[len(node.leaves)].append(node)
        while pending:
            nodes = pending.pop(max(pending))
            left = self._copies(self._place_nodes(nodes))
            for node in left:
                for child in subtrees_below(self.inputs, node):
                    pending[len(child.leaves)].append(child)

    def _place_nodes(self, nodes: Iterable[Subtree]) -> list[Subtree]:
        """Pair subtrees with the places into which they flow; returns those without one."""
        groups: dict[Any, list[Subtree]] = defaultdict(list)
        for node in sorted(nodes, key=lambda node: min(node.leaves)):
            groups[self._signature(node)].append(node)
        left: list[Subtree] = []
        for signature, group in groups.items():
            places = self._places(group[0]) if is_named(signature) else []
            found = self._assign_places(group, places)
            for a, node in enumerate(group):
                if a in found:
                    self._take(zip(node.leaves, places[found[a]].leaves, strict=True), placed=True)
                    if self._is_returned_data(node, places[found[a]]):
                        is_evolving = self._is_coupled(node, places[found[a]])
                        (self.evolving if is_evolving else self.data).update(node.leaves)
                else:
                    left.append(node)
        return left

    def _assign_places(self, nodes: Sequence[Subtree], places: Sequence[_Place]) -> dict[int, int]:
        kinds: dict[tuple[int, int], PairFlow] = {}
        scores: dict[tuple[int, int], Score] = {}
        number = {i: a for a, node in enumerate(nodes) for i in node.leaves}
        for b, place in enumerate(places):
            flows = (self.successors.flows(self.outputs[o].tensor) for o in place.leaves)
            for a in sorted({number[i] for found in flows for i in found if i in number}):
                score = self._score(nodes[a], place)
                if score is not None:
                    scores[a, b] = score
                    kinds[a, b] = "unchanged" if score.is_unchanged else "updated"
        if len(nodes) == len(places) > 1 and is_window(kinds, len(nodes)):
            return {a: a for a in range(len(nodes))}
        found = {a: b for a, b in assign(scores).items() if self._holds(nodes[a], places[b])}
        self._note_rivals(nodes, scores, found)
        return found

    def _note_rivals(
        self, nodes: Sequence[Subtree], scores: dict[tuple[int, int], Score], found: dict[int, int]
    ) -> None:
        """Subtrees that fit a place as well as the one that got it: a mean of a policy and its target may be either."""
        for (a, b), score in scores.items():
            winner = next((other for other, place in found.items() if place == b), a)
            if a not in found and winner != a and scores[winner, b] == score:
                for ours, theirs in zip(nodes[winner].leaves, nodes[a].leaves, strict=True):
                    self.rivals[ours].append(theirs)

    def _copies(self, nodes: Sequence[Subtree]) -> list[Subtree]:
        """Pair subtrees with places that are computed of other state: a cast of master weights, a target that is
        replaced, the gradients of the last step; or that nothing else is computed of, as measurements that are
        overwritten. Returns the others.
        """
        left = []
        for node in nodes:
            places = self._places(node) if is_named(self._signature(node)) else []
            is_small, is_read = len(node.leaves) == 1, self._is_read(node)
            place = next(
                (p for p in places if not is_read or self._is_of_state(p, gradients=not is_small)), None
            )
            if place is None:
                left.append(node)
            else:
                self._take(zip(node.leaves, place.leaves, strict=True), placed=True)
        return left

    def _is_of_state(self, place: _Place, *, gradients: bool) -> bool:
        """Whether the outputs at a place are computed along inputs that have other successors; or of gradients.

        Scalars (a flag, a count) beside arrays need not be.
        """
        arrays = [o for o in place.leaves if self.outputs[o].aval[0]]
        if arrays and all(map(self._is_along_state, arrays)):
            return True
        return gradients and all(self._phase(o) != "forward" for o in arrays or place.leaves)

    def _is_read(self, node: Subtree) -> bool:
        """Whether any result depends on a subtree; a batch is read."""
        own = sum(1 << i for i in node.leaves)
        return any(self.dependence.of(leaf.tensor) & own for leaf in self.outputs)

    def _is_along_state(self, o: int) -> bool:
        shape = self.outputs[o].aval[0]
        flows = self.successors.flows(self.outputs[o].tensor)
        return any(i in self.partner and self.inputs[i].aval[0] == shape for i in flows)

    def _take(self, pairs: Iterable[tuple[int, int]], *, placed: bool) -> None:
        for i, o in pairs:
            self.partner[i] = o
            self.taken.add(o)
            if placed:
                self.placed.add(i)

    def _signature(self, node: Subtree) -> tuple[tuple[Keys, Any], ...]:
        depth = len(node.prefix)
        return tuple((self.inputs[i].keys[depth:], self.inputs[i].aval) for i in node.leaves)

    def _places(self, node: Subtree) -> list[_Place]:
        """Prefixes of the results under which all leaves of a subtree are found and free, in order."""
        (first, aval), *rest = self._signature(node)
        found = []
        for o in self.by_suffix.get((first, aval), ()):
            prefix = self.outputs[o].keys[: len(self.outputs[o].keys) - len(first)]
            leaves = [o, *(self.by_keys.get((*prefix, *keys), -1) for keys, _ in rest)]
            if all(
                leaf >= 0 and leaf not in self.taken and self.outputs[leaf].aval == wanted
                for leaf, (_, wanted) in zip(leaves, ((first, aval), *rest), strict=True)
            ):
                found.append(_Place(prefix, tuple(leaves)))
        return found

    def _score(self, node: Subtree, place: _Place) -> Score | None:
        """None where nothing in the subtree is updated at its place, unless all of it comes back unchanged."""
        flows = [self.flow(i, o) for i, o in zip(node.leaves, place.leaves, strict=True)]
        found = [flow for flow in flows if flow is not None]
        is_updated = any(flow.kind == "updated" for flow in found)
        if not is_updated and not self._comes_back(node, place):
            return None
        return Score(
            share=len(found) / len(flows),
            is_named=ends_alike(node.prefix, place.prefix),
            is_donated=all(self.donated[i] for i in node.leaves),
            is_unchanged=not is_updated,
            steps=sum(flow.steps for flow in found) / max(1, len(found)),
        )

    def _comes_back(self, node: Subtree, place: _Place) -> bool:
        """Whether every leaf at a place is a leaf of the subtree unchanged, its own or another."""
        inside = set(node.leaves)
        for o in place.leaves:
            flows = self.successors.flows(self.outputs[o].tensor)
            if not any(i in inside and flow.kind == "unchanged" for i, flow in flows.items()):
                return False
        return True

    def _holds(self, node: Subtree, place: _Place) -> bool:
        """Whether the leaves of a subtree are at their own places, although some flow to that of another.

        Keys that are names hold a place, and so do positions through which values move unchanged (a window of past
        steps); otherwise the leaves are returned in another order, and are paired one by one.
        """
        size = len(node.leaves)
        own = sum(self.flow(i, o) is not None for i, o in zip(node.leaves, place.leaves, strict=True))
        if own == size:
            return True
        number = {i: a for a, i in enumerate(node.leaves)}
        flows = {
            (number[i], b): flow
            for b, o in enumerate(place.leaves)
            for i in self.successors.flows(self.outputs[o].tensor)
            if i in number and (flow := self.flow(i, o)) is not None
        }
        crossing = largest_matching(without_past_values(flows), size)
        if len(crossing) == own:
            return True
        keys = [keys for keys, _ in self._signature(node)]
        moved = [(a, b) for a, b in crossing if a != b]
        if all(differ_by_name(keys[a], keys[b]) for a, b in moved):
            return True
        return is_window({pair: flow.kind for pair, flow in flows.items()}, size)

    def _is_returned_data(self, node: Subtree, place: _Place) -> bool:
        if self._comes_back(node, place) or self._counts(node, place):
            return False
        placed = [self.outputs[o].tensor for o in place.leaves]
        return self.dependence.is_returned_data(node.leaves, placed, [leaf.tensor for leaf in self.outputs])

    def _counts(self, node: Subtree, place: _Place) -> bool:
        """Whether a subtree has a count, a clock or a random key that comes back advanced: it is passed on and on."""
        for i, o in zip(node.leaves, place.leaves, strict=True):
            shape, dtype = self.inputs[i].aval
            if not shape or _compat.is_key_dtype(dtype):
                flow = self.flow(i, o)
                if flow is not None and flow.kind == "updated":
                    return True
        return False

    def _is_coupled(self, node: Subtree, place: _Place) -> bool:
        placed = [self.outputs[o].tensor for o in place.leaves]
        return self.dependence.is_coupled(node.leaves, placed)

    # leaves

    def _recurrent_leaves(self) -> None:
        """Pair values mixed on their way to the output under their keys that meet data of other arguments there."""
        for i, leaf in enumerate(self.inputs):
            if i in self.partner or not isinstance(leaf.keys[-1], str) or len(leaf.keys) < 2:
                continue
            others = [
                j
                for j, other in enumerate(self.inputs)
                if j not in self.partner and other.keys[0] != leaf.keys[0]
            ]
            for o in self.by_suffix.get((leaf.keys[1:], leaf.aval), ()):
                if o not in self.taken and self.dependence.meets_data(i, self.outputs[o].tensor, others):
                    self._take([(i, o)], placed=False)
                    self.recurrent.add(i)
                    break

    def _leaves(self) -> None:
        """Pair the remaining leaves along flows, as many as possible, those with one key and short paths first."""
        by_aval: dict[Any, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for i, leaf in enumerate(self.inputs):
            if i not in self.partner:
                by_aval[leaf.aval][0].append(i)
        for o, leaf in enumerate(self.outputs):
            if o not in self.taken and leaf.aval in by_aval:
                by_aval[leaf.aval][1].append(o)
        for sources, targets in by_aval.values():
            self._leaves_alike(sources, targets)

    def _leaves_alike(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Pair leaves of one shape and dtype."""
        number = {i: a for a, i in enumerate(sources)}
        kinds: dict[tuple[int, int], PairFlow] = {}
        scores: dict[tuple[int, int], Score] = {}
        for b, o in enumerate(targets):
            for i, flow in self.successors.flows(self.outputs[o].tensor).items():
                if i in number:
                    kinds[number[i], b] = flow.kind
                    scores[number[i], b] = Score(
                        share=1.0,
                        is_named=ends_alike(self.inputs[i].keys, self.outputs[o].keys),
                        is_unchanged=flow.kind == "unchanged",
                        steps=flow.steps,
                    )
        found = with_past_values(assign(scores), scores)
        if len(sources) == len(targets) > 1 and is_window(kinds, len(sources)):
            found = {a: a for a in range(len(sources))}
        for a, b in found.items():
            is_placed = (a, b) in scores and scores[a, b].is_named
            self._take([(sources[a], targets[b])], placed=is_placed)

    def _donated_leaves(self) -> None:
        """Pair inputs donated by name with outputs of their shape and dtype, in order: they take their buffers."""
        free: dict[Any, list[int]] = defaultdict(list)
        for o, leaf in enumerate(self.outputs):
            if o not in self.taken:
                free[leaf.aval].append(o)
        for i, leaf in enumerate(self.inputs):
            if self.donated[i] and i not in self.partner and free.get(leaf.aval):
                self._take([(i, free[leaf.aval].pop(0))], placed=False)


def donated_by_default(inputs: Sequence[Leaf], pairs: Sequence[StatePair]) -> tuple[bool, ...]:
    """Per input, whether its argument is donated without being named: it comes back whole, at its place, and updated.

    An argument that comes back in part, unchanged, or as a bare array that only shape and data flow tell is the
    caller's to keep, and so is one that another argument, not returned itself, equals in all of this. One with all
    leaves computed from other state (low-precision copies of parameters) is updated.
    """
    flows: dict[str | int, set[PairFlow]] = defaultdict(set)
    for pair in pairs:
        if pair.placed:
            flows[inputs[pair.input].keys[0]].add(pair.flow)
    paired = {pair.input for pair in pairs}
    partial = {leaf.keys[0] for i, leaf in enumerate(inputs) if i not in paired}
    updated = {owner for owner, kinds in flows.items() if "updated" in kinds or kinds == {"none"}}
    return tuple(leaf.keys[0] in updated - partial for leaf in inputs)
