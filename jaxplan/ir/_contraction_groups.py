"""Which contractions share a configuration: one, its input gradient and its weight gradient (Tofu 4.2.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from jaxplan.ir._grouping import CONTRACTION_FAMILIES, GroupKind
from jaxplan.ir._program import Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._union import UnionFind
from jaxplan.ir._values import Values


def is_free(program: Program, values: Values, eqn: Equation) -> bool:
    """Whether an equation reads and computes only scalars and free values."""
    return all(values.free[t] or not program.tensors[t].shape for t in (*eqn.results, *eqn.operands))


def is_contraction(
    program: Program, rules: Sequence[OperatorRule], values: Values, eqn: Equation
) -> bool:
    """Whether an equation is a dot or a convolution of a value that has a sharding."""
    return rules[eqn.index].family in CONTRACTION_FAMILIES and not is_free(program, values, eqn)


class ContractionGroups:
    """Joins equations in ``union``; ``kind`` and ``mirror`` are those of the grouping under way.

    With ``apart`` a contraction and its gradients are recognised but not joined, to measure the cost of sharing one
    configuration (`benchmarks/quality/grouping.py`).
    """

    def __init__(
        self,
        program: Program,
        rules: Sequence[OperatorRule],
        values: Values,
        union: UnionFind,
        kind: dict[int, GroupKind],
        mirror: dict[int, int],
        *,
        apart: bool = False,
    ) -> None:
        self.program, self.rules, self.values, self.apart = program, rules, values, apart
        self.union, self.kind, self.mirror = union, kind, mirror

    def run(self) -> None:
        """Join each forward contraction with its gradients: they pairwise share an operand (through views)."""
        heavy = [e for e in self.program.equations if is_contraction(self.program, self.rules, self.values, e)]
        forward = [e for e in heavy if e.phase != "backward"]
        backward = [e for e in heavy if e.phase == "backward"]
        for eqn in heavy:
            self.kind[eqn.index] = "contraction"
            self._join_reversal(eqn)
        by_number: dict[int, Equation] = {}
        for eqn in heavy:
            first = by_number.setdefault(self.values.number[eqn.results[0]], eqn)
            if first is not eqn:
                self.union.join(first.index, eqn.index)
        by_operands: dict[frozenset[int], list[Equation]] = defaultdict(list)
        by_operand: dict[int, list[Equation]] = defaultdict(list)
        for eqn in forward:
            roots = self._roots(eqn)
            by_operands[frozenset(roots)].append(eqn)
            for root in set(roots):
                by_operand[root].append(eqn)
        partners: dict[int, list[tuple[Equation, int]]] = defaultdict(list)
        for eqn in backward:
            for position, root in enumerate(self._roots(eqn)):
                partners[root].append((eqn, position))
        for cotangent, uses in sorted(partners.items()):
            self._match_gradients(cotangent, uses, by_operands, by_operand)

    def _join_reversal(self, eqn: Equation) -> None:
        """A kernel that is reversed for one convolution (an input gradient) is reversed on the devices that use it: the
        compiler calls its library only where it sees both together, and multiplies with the holes of a strided
        convolution's gradient otherwise."""
        reversal = self._reversal(eqn, 1)
        if reversal is not None and len(self.values.consumers[eqn.operands[1]]) == 1:
            self.kind[reversal.index] = "contraction"
            self.union.join(eqn.index, reversal.index)

    def _reversal(self, eqn: Equation, position: int) -> Equation | None:
        """The equation that reverses an operand of one factor per dimension (not that of a grouped convolution)."""
        made_by = self.values.producer[eqn.operands[position]]
        producer = self.program.equations[made_by] if made_by >= 0 else None
        is_plain = all(len(dim) <= 1 for dim in self.rules[eqn.index].operands[position])
        return producer if producer is not None and producer.name == "rev" and is_plain else None

    def _match_gradients(self, cotangent: int, uses, by_operands, by_operand) -> None:
        others = frozenset(root for eqn, p in uses for i, root in enumerate(self._roots(eqn)) if i != p)
        candidates = list(by_operands.get(others, ()))
        if not candidates and len(others) == 1 and cotangent not in by_operand:
            candidates = list(by_operand.get(next(iter(others)), ()))
        size = self.program.tensors[cotangent].num_elements
        tensors = self.program.tensors
        candidates = [f for f in candidates if tensors[f.results[0]].num_elements == size]
        if not candidates:
            return
        primal = candidates[0]
        self.mirror.setdefault(self.values.number[cotangent], primal.results[0])
        for eqn, position in uses:
            if not self.apart:
                self.union.join(primal.index, eqn.index)
            self._mirror_result(primal, eqn, position)

    def _mirror_result(self, primal: Equation, gradient: Equation, position: int) -> None:
        """The gradient contraction of one operand yields the cotangent of the other."""
        kept = self._roots(gradient)[1 - position]
        roots = self._roots(primal)
        if kept in roots and len(roots) == 2:
            wanted = primal.operands[1 - roots.index(kept)]
            self.mirror.setdefault(gradient.results[0], wanted)

    def _roots(self, eqn: Equation) -> tuple[int, ...]:
        """The values that the two operands are views of; a reversed kernel is the kernel."""
        makers = [self._reversal(eqn, position) for position in range(len(eqn.operands[:2]))]
        return tuple(
            self.values.root[t if maker is None else maker.operands[0]]
            for t, maker in zip(eqn.operands[:2], makers)
        )
