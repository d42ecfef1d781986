"""Coarsening: which equations share one configuration (Tofu 4.2.1).

A *group* is a set of equations with one iteration space. There are six ways into a group:

1. state: optimizer slots, and the element-wise equations of their update, found by walking back from the outputs
   that replace them; laid out apart from the forward use, so that ZeRO and FSDP can emerge. The parameter that the
   forward pass reads is with them where the update has no slots, else a group of its own (kind ``parameter``, with
   its casts and views): ZeRO-1 splits the slots and keeps it whole. So is a parameter that no output replaces;
2. contraction: a contraction, its input gradient and its weight gradient, which share operands pairwise;
3. sum: the sum of several contractions' results (the gradient of the operand of queries, keys and values) is a group of
   its own, with a sharding that may be partial: add first, reduce once;
4. follow: everything else joins the element-wise group of its operands: the latest one in the forward pass, the
   earliest in the backward pass, which makes forward and backward of a residual block one group;
5. source: a batch input (and values computed from it alone) seeds a group of its own, which ends where a dimension
   is whole (tokens but the first) or a larger value is computed (a mask of all pairs). No value that depends on a
   parameter follows it: a mask that all layers read would tie them;
6. user: equations that the step itself shards (sharding constraints, `jax.shard_map`) are groups of their own.

Equations on free values and on scalars are in no group: they exist in every sharding at no cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from jaxplan.core import _compat
from jaxplan.ir._blocks import turning_point
from jaxplan.ir._contraction_groups import ContractionGroups, is_contraction, is_free
from jaxplan.ir._grouping import STORED_KINDS, Grouping, GroupKind, grouping_of
from jaxplan.ir._program import REGION_IN, REGION_OUT, Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._union import UnionFind
from jaxplan.ir._values import VIEW_PRIMITIVES, Values

_STORAGE_VIEW_PRIMITIVES = VIEW_PRIMITIVES | {"broadcast_in_dim", "optimization_barrier"}
_GRADIENT_CHAIN_PRIMITIVES = frozenset({"convert_element_type", "add_any", "neg", "copy"})
_LINEAR_CHAIN_PRIMITIVES = VIEW_PRIMITIVES | {"slice", "neg"}


def coarsen(
    program: Program,
    rules: Sequence[OperatorRule],
    values: Values,
    frozen: frozenset[int] = frozenset(),
    *,
    gradients_apart: bool = False,
) -> tuple[Grouping, dict[int, int]]:
    """Assign every equation to a group, deterministic in program order.

    ``frozen``: parameters that no output replaces. With ``gradients_apart`` gradients of a contraction are groups
    of their own, to measure the cost of sharing.

    Returns:
      The grouping, and for each tensor found to be a cotangent its primal.
    """
    work = _Coarsening(program, rules, values, frozen, gradients_apart)
    return work.run(), work.mirror


class _Coarsening:
    """Working state: union-find nodes are equations, then inputs (offset by the number of equations)."""

    def __init__(
        self,
        program: Program,
        rules: Sequence[OperatorRule],
        values: Values,
        frozen: frozenset[int],
        apart: bool,
    ) -> None:
        self.program, self.rules, self.values, self.apart = program, rules, values, apart
        self.frozen = frozen
        self.num_equations = len(program.equations)
        self.turning = turning_point(program)
        self.input_node = {t: self.num_equations + i for i, t in enumerate(program.inputs)}
        self.union = UnionFind(self.num_equations + len(program.inputs))
        self.kind: dict[int, GroupKind] = {}
        self.mirror: dict[int, int] = {}
        self.look_ups: dict[tuple[int, tuple[int, ...]], Equation] = {}
        self.partner: dict[int, int] = {}
        self.given: set[int] = set()  # batch inputs, and values computed from them alone

    def run(self) -> Grouping:
        self._user_groups()
        self._carries()
        self._linear_splits()
        self._sum_groups()
        self._state_groups()
        self._input_groups()
        ContractionGroups(
            self.program, self.rules, self.values, self.union, self.kind, self.mirror, apart=self.apart
        ).run()
        self._follow()
        self._late_join()
        return grouping_of(self.program, self.kind, self.union)

    def _user_groups(self) -> None:
        """Each equation that the step itself shards is a group: its neighbours need not agree, resharding is priced."""
        for eqn in self.program.equations:
            if self.rules[eqn.index].family == "user":
                self.kind[eqn.index] = "user"

    def _carries(self) -> None:
        """A carry enters and leaves a loop in one sharding; one that only accumulates may be a partial sum in it."""
        for eqn in self.program.equations:
            if eqn.name != REGION_OUT or eqn.params["role"] != "carry":
                continue
            entry = self._producer(eqn.operands[0])
            assert entry is not None
            self.union.join(entry.index, eqn.index)
            self.partner[entry.index], self.partner[eqn.index] = eqn.index, entry.index
            added = self._accumulation(entry, eqn)
            for part in (entry, eqn, *added) if added else ():
                self.kind[part.index] = "sum"
                self.union.join(entry.index, part.index)

    def _accumulation(self, entry: Equation, leave: Equation) -> list[Equation]:
        """The additions by which a carry that starts at zero takes up values in each trip, and the equations before."""
        return self._taken_up(entry, leave) if self._is_zero(entry.operands[0]) else []

    def _taken_up(self, entry: Equation, leave: Equation) -> list[Equation]:
        """The same of a carry that starts at any value."""
        carry, out = leave.operands
        added = self._added(carry, out) if self.program.tensors[carry].shape else []
        readers = {e.index for e in added if carry in e.operands}
        if set(self.values.consumers[carry]) != {*readers, leave.index} or len(readers) != 1:
            return []
        return added if self.values.consumers[out] == (leave.index,) else []

    def _added(self, carry: int, out: int) -> list[Equation]:
        """The additions from a carry to its successor, those of loops on the way too, and the equations before."""
        eqn = self._producer(out)
        if eqn is None or (out != carry and len(self.values.consumers[out]) != 1):
            return []
        if eqn.name == REGION_OUT and eqn.params["role"] == "carry":
            entry = self._producer(eqn.operands[0])
            assert entry is not None
            inner, (start,) = self._taken_up(entry, eqn), entry.operands
            before = [] if start == carry else self._added(carry, start)
            return [entry, eqn, *inner, *before] if inner and (before or start == carry) else []
        if eqn.name not in ("add", "add_any") or eqn.operands[0] == eqn.operands[1]:
            return []
        for first, summand in (eqn.operands, eqn.operands[::-1]):
            before = [] if first == carry else self._added(carry, first)
            if before or first == carry:
                return [eqn, *self._linear_chain(summand), *before]
        return []

    def _linear_chain(self, t: int) -> list[Equation]:
        """The casts, slices and views between a contraction and the sum that alone takes them up: they may hold partial
        sums too. Views of the contraction itself stay with it."""
        chain: list[Equation] = []
        while len(self.values.consumers[t]) == 1:
            eqn = self._producer(t)
            if eqn is None or eqn.name not in _LINEAR_CHAIN_PRIMITIVES or not self.rules[eqn.index].linear:
                break
            chain.append(eqn)
            t = eqn.operands[0]
        source = self._producer(t)
        if source is not None and self._is_contraction(source):
            while chain and chain[-1].name in VIEW_PRIMITIVES and self._hands_on(chain[-1]):
                chain.pop()
        return chain

    def _linear_splits(self) -> None:
        """Values taken apart only to be added up piece by piece (gates of a recurrent cell) may be partial sums."""
        for eqn in self.program.equations:
            readers = [c for t in eqn.results for c in self.values.consumers[t]]
            is_linear = eqn.name == "split" and self.rules[eqn.index].linear
            if is_linear and readers and all(self.kind.get(c) == "sum" for c in readers):
                for part in (eqn, *self._linear_chain(eqn.operands[0])):
                    self.kind[part.index] = "sum"
                    self.union.join(eqn.index, part.index)

    def _is_zero(self, t: int) -> bool:
        """Whether a value is zero everywhere, by how it is made."""
        tensor = self.program.tensors[t]
        if tensor.kind in ("literal", "constant"):
            return not _compat.is_key_dtype(tensor.dtype) and not np.any(np.asarray(tensor.value))
        producer = self._producer(t)
        return (
            producer is not None
            and producer.name == "broadcast_in_dim"
            and self._is_zero(producer.operands[0])
        )

    def _sum_groups(self) -> None:
        """Chains of additions behind the forward pass with results of contractions as their only summands.

        Those of the update add up gradients of micro-batches.
        """
        summands: set[int] = set()
        firsts: set[int] = set()  # a gradient added to zeros: by itself it is that gradient
        for eqn in self.program.equations:
            result = eqn.results[0] if eqn.results else -1
            is_view = eqn.name in VIEW_PRIMITIVES and eqn.operands[0] in summands and self._hands_on(eqn)
            if is_view or (self._is_contraction(eqn) and not self.values.free[result]):
                summands.add(result)
            elif self._adds_gradients(eqn) and all(t in summands or self._is_zero(t) for t in eqn.operands):
                summands.add(result)
                if any(map(self._is_zero, eqn.operands)):
                    firsts.add(eqn.index)
                    continue
                self.kind[eqn.index] = "sum"
                for t in eqn.operands:
                    producer = self._producer(t)
                    if producer is not None and (producer.index in firsts or self.kind.get(producer.index) == "sum"):
                        self.kind[producer.index] = "sum"
                        self.union.join(producer.index, eqn.index)

    def _adds_gradients(self, eqn: Equation) -> bool:
        if eqn.name == "add_any":
            return True
        return eqn.name == "add" and eqn.phase == "update" and bool(self.program.tensors[eqn.results[0]].shape)

    def _hands_on(self, eqn: Equation) -> bool:
        """Whether a view keeps its bytes and may be taken of each part of a sum (a cast to integers may not)."""
        tensors = self.program.tensors
        keeps_bytes = tensors[eqn.results[0]].itemsize == tensors[eqn.operands[0]].itemsize
        return keeps_bytes and bool(self.rules[eqn.index].linear)

    def _state_groups(self) -> None:
        """Walk back from each replaced state leaf over element-wise equations of its own shape."""
        updates: dict[int, set[int]] = defaultdict(set)  # leaf -> nodes that are laid out with its update
        state = [pair for pair in self.program.pairs if pair.is_state]
        for pair in sorted(state, key=lambda pair: pair.output):
            leaf = self.program.inputs[pair.input]
            if self.program.tensors[leaf].shape:
                updates[self.input_node[leaf]] = self._update_of(leaf, self.program.outputs[pair.output])
        leaves = {n for n in self.input_node.values() if self.kind.get(n) == "state"}
        used = {n for n in leaves if self._is_used(self.program.inputs[n - self.num_equations])}
        together = UnionFind(self.num_equations + len(self.program.inputs))
        for leaf, nodes in updates.items():
            for node in nodes:
                together.join(leaf, node)
        slots = {together.find(n) for n in leaves - used}
        for leaf, nodes in updates.items():
            has_slots = together.find(leaf) in slots
            rest = sorted(nodes - used) if has_slots else sorted({leaf, *nodes})
            for node in rest[1:]:
                self.union.join(rest[0], node)
            for node in used & {leaf, *nodes} if has_slots else ():
                self.kind[node] = "parameter"
        for t in self.frozen:
            self.kind.setdefault(self.input_node[t], "parameter")
        stored = {t: node for t, node in self.input_node.items() if self.kind.get(node) in STORED_KINDS}
        for eqn in self.program.equations:
            if (
                eqn.name in _STORAGE_VIEW_PRIMITIVES
                and eqn.operands[0] in stored
                and eqn.index not in self.kind
            ):
                self._join_storage_view(eqn, stored)

    def _update_of(self, leaf: int, output: int) -> set[int]:
        """The equations behind the output that replaces a leaf, and the leaves they read; all are of kind state now.

        The walk ends at equations that an earlier walk found.
        """
        shape = self.program.tensors[leaf].shape
        self.kind[self.input_node[leaf]] = "state"
        found, seen, stack = {self.input_node[leaf]}, set(), [output]
        while stack:
            t = stack.pop()
            if t in seen or self.program.tensors[t].shape != shape or self.values.free[t]:
                continue
            seen.add(t)
            if t in self.input_node:
                self.kind[self.input_node[t]] = "state"
                found.add(self.input_node[t])
                continue
            eqn = self._producer(t)
            if eqn is None or not self._in_update(eqn):
                continue
            if eqn.index in self.kind:
                if self.kind[eqn.index] == "state":
                    found.add(eqn.index)
                continue
            self._set_kind(eqn.index, "state")
            found.add(eqn.index)
            stack.extend(eqn.operands)
            if eqn.index in self.partner:
                stack.extend(self.program.equations[self.partner[eqn.index]].operands)
        return found

    def _is_used(self, t: int) -> bool:
        """Whether the forward pass reads a leaf: later readers (a norm, for example) go with the update."""
        return any(c < self.turning and self.kind.get(c) != "state" for c in self.values.consumers[t])

    def _join_storage_view(self, eqn: Equation, stored: dict[int, int]) -> None:
        """A cast to no more bytes, or a view, of a stored leaf stays where the leaf is: gather the small copy."""
        operand, result = self.program.tensors[eqn.operands[0]], self.program.tensors[eqn.results[0]]
        if result.num_bytes <= operand.num_bytes and result.num_elements == operand.num_elements:
            self.kind[eqn.index] = self.kind[stored[operand.index]]
            self.union.join(stored[operand.index], eqn.index)
            stored[result.index] = stored[operand.index]

    def _set_kind(self, node: int, kind: GroupKind) -> None:
        self.kind[node] = kind
        if node in self.partner:
            self.kind[self.partner[node]] = kind

    def _in_update(self, eqn: Equation) -> bool:
        if eqn.name in (REGION_IN, REGION_OUT):
            return eqn.params["role"] not in ("x", "const")
        if self.rules[eqn.index].family != "elementwise":
            return False
        return eqn.phase != "backward" or eqn.name in _GRADIENT_CHAIN_PRIMITIVES

    def _input_groups(self) -> None:
        for t, node in self.input_node.items():
            if self.program.tensors[t].shape and node not in self.kind:
                self.kind[node] = "input"
                self.given.add(t)

    def _is_contraction(self, eqn: Equation) -> bool:
        return is_contraction(self.program, self.rules, self.values, eqn)

    def _is_free(self, eqn: Equation) -> bool:
        return is_free(self.program, self.values, eqn)

    def _follow(self) -> None:
        first_with_number: dict[int, int] = {}
        first_reader: dict[tuple[int, str], int] = {}
        for eqn in self.program.equations:
            if self.kind.get(eqn.index) == "user":
                continue
            number = self.values.number[eqn.results[0]] if eqn.results else -1
            twin = first_with_number.setdefault(number, eqn.index)
            if self.kind.get(eqn.index) == "sum":
                self._mirror_sum(eqn)
            if eqn.index in self.kind or self._is_free(eqn):
                continue
            if twin != eqn.index and twin in self.kind:
                self._join(eqn, self._held_for(eqn, twin))
                continue
            if self._joins_contraction(eqn) or self._joins_look_up(eqn):
                continue
            if eqn.phase == "update" and self._joins_state(eqn):
                continue
            candidates = self._candidates(eqn)
            if candidates:
                pick = min if eqn.phase == "backward" else max
                self._join(eqn, pick(candidates, key=self._order))
            else:
                self._set_kind(eqn.index, "elementwise")
                self._join_reader(eqn, first_reader)

    def _join_reader(self, eqn: Equation, first_reader: dict[tuple[int, str], int]) -> None:
        """Element-wise operators that begin at one contraction's result (an activation and its derivative) go together:
        apart, each of them would pay for resharding to the sharding that both want."""
        if self.rules[eqn.index].family != "elementwise" or eqn.index in self.partner:
            return
        for t in eqn.operands:
            if (
                self.program.tensors[t].shape == self.program.tensors[eqn.results[0]].shape
                and not self.values.free[t]
            ):
                self.union.join(first_reader.setdefault((t, eqn.phase), eqn.index), eqn.index)
                return

    def _mirror_sum(self, eqn: Equation) -> None:
        """A sum of cotangents of one value is a cotangent of it."""
        for t in eqn.operands:
            if t in self.mirror:
                self.mirror.setdefault(eqn.results[0], self.mirror[t])

    def _held_for(self, eqn: Equation, twin: int) -> int:
        """The node of the group that an equation joins if it recomputes ``twin``.

        A barrier of the backward pass holds a dot's result in the form that recomputed element-wise operators read: of
        a sum that they read in slices, only these slices are kept.
        """
        if eqn.name != "optimization_barrier" or self.kind[twin] != "contraction":
            return twin
        readers = self.values.consumers[eqn.operands[0]]
        return next((c for c in readers if self.kind.get(c) == "elementwise"), twin)

    def _join(self, eqn: Equation, node: int) -> None:
        self._set_kind(eqn.index, self.kind[node])
        self.union.join(node, eqn.index)

    def _order(self, node: int) -> int:
        """Program position of the first equation of a group; inputs come before everything."""
        root = self.union.find(node)
        return -1 if root >= self.num_equations else root

    def _joins_contraction(self, eqn: Equation) -> bool:
        """Views of a contraction's result that keep its bytes ride along: the partial sum passes through them."""
        if eqn.name not in VIEW_PRIMITIVES:
            return False
        producer = self._producer(eqn.operands[0])
        if producer is None or self.kind.get(producer.index) != "contraction" or not self._hands_on(eqn):
            return False
        self._join(eqn, producer.index)
        if eqn.operands[0] in self.mirror:
            self.mirror.setdefault(eqn.results[0], self.mirror[eqn.operands[0]])
        return True

    def _joins_look_up(self, eqn: Equation) -> bool:
        """A look-up in a stored table is a dot with one-hot rows: it and its gradient are a group by themselves,
        where the rows may be split, and their consumers are not tied to that."""
        rule = self.rules[eqn.index]
        if not rule.indexed or eqn.index in self.kind:
            return False
        key = self.values.root[eqn.operands[1]], self.program.tensors[eqn.operands[0]].shape
        primal = self.look_ups.get(key)
        if rule.family == "gather" and self._is_stored(eqn.operands[0]):
            self.look_ups.setdefault(key, eqn)
        elif primal is None:
            return False
        self._set_kind(eqn.index, "contraction")
        if primal is not None:
            self.union.join(primal.index, eqn.index)
        if primal is not None and rule.family == "scatter":
            self.mirror.setdefault(self.values.number[eqn.operands[2]], primal.results[0])
            self.mirror.setdefault(eqn.results[0], primal.operands[0])
        return True

    def _is_stored(self, t: int) -> bool:
        """Whether a tensor is an input, or a view of one."""
        while t not in self.input_node:
            eqn = self._producer(t)
            if eqn is None or eqn.name not in VIEW_PRIMITIVES:
                return False
            t = eqn.operands[0]
        return True

    def _joins_state(self, eqn: Equation) -> bool:
        """Values that an update computes from a gradient (its norm, say) are computed where the gradient is stored."""
        tensors = self.program.tensors
        sized = [t for t in eqn.operands if tensors[t].shape and not self.values.free[t]]
        if not sized:
            return False
        largest = max(sized, key=lambda t: tensors[t].num_elements)
        producer = self._producer(largest)
        if producer is not None and self.kind.get(producer.index) == "state":
            self._join(eqn, producer.index)
            return True
        for c in self.values.consumers[largest]:
            if self.kind.get(c) == "state" and c != eqn.index:
                self._join(eqn, c)
                return True
        return False

    def _candidates(self, eqn: Equation) -> list[int]:
        tensors, family = self.program.tensors, self.rules[eqn.index].family
        sized = [t for t in eqn.operands if tensors[t].shape and not self.values.free[t]]
        if not sized or eqn.index in self.partner:  # a carry has a sharding of its own
            return []
        largest = max(tensors[t].num_elements for t in sized)
        is_given = all(t in self.given for t in sized)
        if is_given:
            self.given.update(eqn.results)
        result: list[int] = []
        for t in sized:
            if tensors[t].num_elements < largest and family not in ("gather", "scatter"):
                continue
            if not self._leads(eqn, t) or (t in self.given and not is_given):
                continue
            node = self._home(t)
            if node is None or self.kind[node] not in ("elementwise", "input"):
                continue
            if self.kind[node] == "elementwise" or not self._ends_input(eqn, t):
                result.append(node)
        return result

    def _ends_input(self, eqn: Equation, t: int) -> bool:
        """Whether a group seeded by a batch input ends before an equation that enlarges its value, or that reads
        a value that is whole where it is computed."""
        tensors, producer = self.program.tensors, self._producer(t)
        if any(tensors[r].num_elements > tensors[t].num_elements for r in eqn.results):
            return True
        if producer is None:
            return False
        rule = self.rules[producer.index]
        made = rule.results[producer.results.index(t)]
        return any(rule.factors[f].kind == "whole" for factors in made for f in factors)

    def _leads(self, eqn: Equation, t: int) -> bool:
        """Whether a gather or scatter follows this operand: a look-up in a stored table follows its indices, a
        look-up in an activation follows that; a scatter follows its updates."""
        family = self.rules[eqn.index].family
        if family == "scatter":
            return t == eqn.operands[2]
        if family == "gather" and t == eqn.operands[0]:
            node = self._home(t)
            return node is not None and self.kind[node] == "elementwise"
        return True

    def _home(self, t: int) -> int | None:
        """The node of the group that a reader of ``t`` would follow."""
        seen: set[int] = set()
        while t not in seen:
            seen.add(t)
            if t in self.input_node:
                node = self.input_node[t]
                return node if node in self.kind else None
            eqn = self._producer(t)
            if eqn is None or eqn.index not in self.kind:
                return None
            if self.kind[eqn.index] not in ("contraction", "sum"):
                return eqn.index
            mirrored = self.mirror.get(t)
            if mirrored is None:
                return None
            t = mirrored
        return None

    def _producer(self, t: int) -> Equation | None:
        index = self.values.producer[t]
        return None if index < 0 else self.program.equations[index]

    def _late_join(self) -> None:
        """Random bits that only one group reads are computed there: unlike a mask, they cost something.

        Their reductions run whole on every device: where no state or input leads to a value, nothing is moved or
        summed.
        """
        random: set[int] = set()
        for eqn in self.program.equations:
            if self.rules[eqn.index].family == "rng" or any(t in random for t in eqn.operands):
                random.update(eqn.results)
        for eqn in reversed(self.program.equations):
            if (
                eqn.index in self.kind
                or any(factor.reducer for factor in self.rules[eqn.index].factors)
                or not any(self.program.tensors[t].shape and t in random for t in eqn.results)
            ):
                continue
            readers = {c for t in eqn.results for c in self.values.consumers[t]}
            roots = {self.union.find(c) for c in readers if c in self.kind}
            if len(roots) == 1 and all(c in self.kind for c in readers):
                self._join(eqn, roots.pop())
