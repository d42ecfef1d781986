"""Groups of state: optimizer slots, the equations of their update, and parameters."""

from __future__ import annotations

from collections import defaultdict

from jaxplan.ir._coarsening import GroupPass
from jaxplan.ir._grouping import STORED_KINDS
from jaxplan.ir._program import REGION_IN, REGION_OUT, Equation
from jaxplan.ir._union import UnionFind
from jaxplan.ir._values import VIEW_PRIMITIVES

_STORAGE_VIEW_PRIMITIVES = VIEW_PRIMITIVES | {"broadcast_in_dim", "optimization_barrier"}
_GRADIENT_CHAIN_PRIMITIVES = frozenset({"convert_element_type", "add_any", "neg", "copy"})


class StateGroups(GroupPass):
    """Ways into a group of kind ``state`` or ``parameter``."""

    def run(self) -> None:
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
            eqn = self.producer(t)
            if eqn is None or not self._in_update(eqn):
                continue
            if eqn.index in self.kind:
                if self.kind[eqn.index] == "state":
                    found.add(eqn.index)
                continue
            self.set_kind(eqn.index, "state")
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

    def _in_update(self, eqn: Equation) -> bool:
        if eqn.name in (REGION_IN, REGION_OUT):
            return eqn.params["role"] not in ("x", "const")
        if self.rules[eqn.index].family != "elementwise":
            return False
        return eqn.phase != "backward" or eqn.name in _GRADIENT_CHAIN_PRIMITIVES
