"""Element-wise groups: every other equation follows one of its operands."""

from __future__ import annotations

from jaxplan.ir._coarsening import Coarsening, GroupPass
from jaxplan.ir._program import Equation
from jaxplan.ir._values import VIEW_PRIMITIVES


class FollowGroups(GroupPass):
    """Ways into a group for equations that no other pass has placed."""

    def __init__(self, work: Coarsening) -> None:
        super().__init__(work)
        self._look_ups: dict[tuple[int, tuple[int, ...]], Equation] = {}

    def run(self) -> None:
        self._follow()
        self._late_join()

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
            if eqn.index in self.kind or self.is_free(eqn):
                continue
            if twin != eqn.index and twin in self.kind:
                self.join(eqn, self._held_for(eqn, twin))
                continue
            if self._joins_contraction(eqn) or self._joins_look_up(eqn):
                continue
            if eqn.phase == "update" and self._joins_state(eqn):
                continue
            candidates = self._candidates(eqn)
            if candidates:
                pick = min if eqn.phase == "backward" else max
                self.join(eqn, pick(candidates, key=self._order))
            else:
                self.set_kind(eqn.index, "elementwise")
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

    def _order(self, node: int) -> int:
        """Program position of the first equation of a group; inputs come before everything."""
        root = self.union.find(node)
        return -1 if root >= self.num_equations else root

    def _joins_contraction(self, eqn: Equation) -> bool:
        """Views of a contraction's result that keep its bytes ride along: the partial sum passes through them."""
        if eqn.name not in VIEW_PRIMITIVES:
            return False
        producer = self.producer(eqn.operands[0])
        if producer is None or self.kind.get(producer.index) != "contraction" or not self.hands_on(eqn):
            return False
        self.join(eqn, producer.index)
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
        primal = self._look_ups.get(key)
        if rule.family == "gather" and self._is_stored(eqn.operands[0]):
            self._look_ups.setdefault(key, eqn)
        elif primal is None:
            return False
        self.set_kind(eqn.index, "contraction")
        if primal is not None:
            self.union.join(primal.index, eqn.index)
        if primal is not None and rule.family == "scatter":
            self.mirror.setdefault(self.values.number[eqn.operands[2]], primal.results[0])
            self.mirror.setdefault(eqn.results[0], primal.operands[0])
        return True

    def _is_stored(self, t: int) -> bool:
        """Whether a tensor is an input, or a view of one."""
        while t not in self.input_node:
            eqn = self.producer(t)
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
        producer = self.producer(largest)
        if producer is not None and self.kind.get(producer.index) == "state":
            self.join(eqn, producer.index)
            return True
        for c in self.values.consumers[largest]:
            if self.kind.get(c) == "state" and c != eqn.index:
                self.join(eqn, c)
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
        tensors, producer = self.program.tensors, self.producer(t)
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
            eqn = self.producer(t)
            if eqn is None or eqn.index not in self.kind:
                return None
            if self.kind[eqn.index] not in ("contraction", "sum"):
                return eqn.index
            mirrored = self.mirror.get(t)
            if mirrored is None:
                return None
            t = mirrored
        return None

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
                self.join(eqn, roots.pop())
