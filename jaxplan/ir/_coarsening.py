"""State and helpers that all ways into a group share (`jaxplan.ir._groups`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxplan.core import _compat
from jaxplan.ir._blocks import turning_point
from jaxplan.ir._contraction_groups import is_contraction, is_free
from jaxplan.ir._grouping import GroupKind
from jaxplan.ir._program import Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._union import UnionFind
from jaxplan.ir._values import Values


class Coarsening:
    """Working state: union-find nodes are equations, then inputs (offset by the number of equations)."""

    def __init__(
        self, program: Program, rules: Sequence[OperatorRule], values: Values, frozen: frozenset[int]
    ) -> None:
        self.program, self.rules, self.values, self.frozen = program, rules, values, frozen
        self.num_equations = len(program.equations)
        self.turning = turning_point(program)
        self.input_node = {t: self.num_equations + i for i, t in enumerate(program.inputs)}
        self.union = UnionFind(self.num_equations + len(program.inputs))
        self.kind: dict[int, GroupKind] = {}
        self.mirror: dict[int, int] = {}
        self.partner: dict[int, int] = {}
        self.given: set[int] = set()  # batch inputs, and values computed from them alone


class GroupPass:
    """One way into a group; it reads and extends the state that it shares with the others."""

    def __init__(self, work: Coarsening) -> None:
        self.program, self.rules, self.values, self.frozen = work.program, work.rules, work.values, work.frozen
        self.num_equations, self.turning, self.input_node = work.num_equations, work.turning, work.input_node
        self.union, self.kind, self.mirror = work.union, work.kind, work.mirror
        self.partner, self.given = work.partner, work.given

    def is_zero(self, t: int) -> bool:
        """Whether a value is zero everywhere, by how it is made."""
        tensor = self.program.tensors[t]
        if tensor.kind in ("literal", "constant"):
            return not _compat.is_key_dtype(tensor.dtype) and not np.any(np.asarray(tensor.value))
        producer = self.producer(t)
        return (
            producer is not None
            and producer.name == "broadcast_in_dim"
            and self.is_zero(producer.operands[0])
        )

    def hands_on(self, eqn: Equation) -> bool:
        """Whether a view keeps its bytes and may be taken of each part of a sum (a cast to integers may not)."""
        tensors = self.program.tensors
        keeps_bytes = tensors[eqn.results[0]].itemsize == tensors[eqn.operands[0]].itemsize
        return keeps_bytes and bool(self.rules[eqn.index].linear)

    def set_kind(self, node: int, kind: GroupKind) -> None:
        self.kind[node] = kind
        if node in self.partner:
            self.kind[self.partner[node]] = kind

    def is_contraction(self, eqn: Equation) -> bool:
        return is_contraction(self.program, self.rules, self.values, eqn)

    def is_free(self, eqn: Equation) -> bool:
        return is_free(self.program, self.values, eqn)

    def join(self, eqn: Equation, node: int) -> None:
        self.set_kind(eqn.index, self.kind[node])
        self.union.join(node, eqn.index)

    def producer(self, t: int) -> Equation | None:
        index = self.values.producer[t]
        return None if index < 0 else self.program.equations[index]
