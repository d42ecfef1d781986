"""The iteration space of a group: its factor classes, and every tensor's dimensions in terms of them.

Within a group, two factors are one *class* when they meet on a dimension of a tensor that both equations hold. A
configuration of the group says which atomic axes split which class (PaSE section II: an iteration-space
configuration), and that fixes the sharding of every operand and result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxplan.ir._dimensions import NamedDimensions
from jaxplan.ir._grouping import Group
from jaxplan.ir._program import Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._union import UnionFind
from jaxplan.ir._user_mesh import UserAxes
from jaxplan.ir._values import VIEW_PRIMITIVES

WHOLE = -1
ClassDims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorClass:
    """Factors of a group that are always split alike.

    Attributes:
      sizes: the distinct sizes of its members; a split must divide each.
      named_dimension: index of its named dimension, -1 when it has none.
      user_axes: how the step itself splits it, None where that is open.
      most_parts: the largest number of parts, where windows would reach beyond the neighbour in more; None without.
    """

    sizes: tuple[int, ...]
    named_dimension: int
    user_axes: UserAxes | None = None
    most_parts: int | None = None

    def divisible_by(self, splits: int) -> bool:
        if self.most_parts is not None and splits > self.most_parts:
            return False
        return all(size % splits == 0 for size in self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpace:
    """Classes of one group and their meaning for its equations and tensors.

    Attributes:
      classes: splittable classes, in the order in which axes are dealt (named dimension order).
      factor_class: equation index -> class of each factor of its rule (`WHOLE` when never split).
      tensor_dims: tensor index -> per dimension the classes that split it, major to minor.
      tensor_partial: result tensor index -> classes that leave it a partial sum when they are split.
      operand_partial: classes over which the group reads partial sums: the one class without a dimension that a sum
        group has, else none.
    """

    classes: tuple[FactorClass, ...]
    factor_class: dict[int, tuple[int, ...]]
    tensor_dims: dict[int, ClassDims]
    tensor_partial: dict[int, tuple[int, ...]]
    operand_partial: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFacts:
    """The facts that determine the spaces of a program's groups.

    Attributes:
      rules: one operator rule per equation.
      named: the named dimensions.
      primal_of: cotangent tensor -> its primal; the two are split alike.
      number: value number of each tensor; equal values (a recomputed activation and the original) are split alike.
    """

    program: Program
    rules: Sequence[OperatorRule]
    named: NamedDimensions
    primal_of: Mapping[int, int]
    number: Sequence[int]


def group_space(group: Group, facts: SpaceFacts) -> GroupSpace:
    """Build the space of ``group``."""
    return _SpaceBuilder(group, facts).build()


class _SpaceBuilder:
    def __init__(self, group: Group, facts: SpaceFacts) -> None:
        self.group, self.program, self.rules, self.named = group, facts.program, facts.rules, facts.named
        self.primal_of, self.number = facts.primal_of, facts.number
        self.union = UnionFind(0)
        self.sizes: list[int] = []
        self.base: dict[int, int] = {}
        self.whole: set[int] = set()
        self.user_axes: dict[int, UserAxes] = {}
        self.most_parts: dict[int, int] = {}
        self.tensor_factors: dict[int, tuple[tuple[int, ...], ...]] = {}

    def build(self) -> GroupSpace:
        equations = [self.program.equations[e] for e in self.group.equations]
        for t in self.group.inputs:
            tensor = self.program.tensors[t]
            self.tensor_factors[t] = tuple((self._new(n),) if n > 1 else () for n in tensor.shape)
            self._keep_empty_whole(t, self.tensor_factors[t])
        for eqn in equations:
            self._add_equation(eqn)
        if self.group.kind != "user":  # one equation, with given shardings
            self._tie_equal_values()
            self._tie_cotangents()
            self._forbid_repeats(equations)
        return self._finish(equations)

    def _new(self, size: int, splittable: bool = True) -> int:
        node = self.union.add()
        self.sizes.append(size)
        if not splittable:
            self.whole.add(node)
        return node

    def _add_equation(self, eqn: Equation) -> None:
        rule = self.rules[eqn.index]
        self.base[eqn.index] = len(self.sizes)
        rows = frozenset(() if self.group.kind == "contraction" else (f for f, _ in rule.indexed))
        windows = {split.factor: split for split in rule.windows}
        for f, factor in enumerate(rule.factors):
            may_split = factor.kind in ("map", "reduce", "fixed") or f in windows
            node = self._new(factor.size, may_split and f not in rows)
            if f in windows:
                self.most_parts[node] = windows[f].most_parts
            if factor.user_axes is not None:
                self.user_axes[node] = factor.user_axes
        for t, dims in (
            *zip(eqn.operands, rule.operands, strict=True),
            *zip(eqn.results, rule.results, strict=True),
        ):
            if not dims or self.program.tensors[t].kind == "literal":
                continue
            nodes = tuple(tuple(self.base[eqn.index] + f for f in factors) for factors in dims)
            if t in eqn.operands and t not in eqn.results and rule.family == "shape":
                nodes = self._without_led(nodes, rule, self.base[eqn.index])
            self._keep_empty_whole(t, nodes)
            self._meet(t, nodes)

    def _keep_empty_whole(self, t: int, nodes: ClassDims) -> None:
        """An argument or result without elements is never split: a program that only returns a constant gives each
        device all of it, whatever sharding is asked for. Inside a step one (an empty half of a prefix sum) splits
        like any other: its other dimensions are those of its neighbours."""
        if not self.program.tensors[t].num_elements and t in (*self.program.inputs, *self.program.outputs):
            self.whole.update(node for dim in nodes for node in dim)

    @staticmethod
    def _without_led(nodes: ClassDims, rule: OperatorRule, base: int) -> ClassDims:
        """Of an operand's dimension that is taken apart, the minor parts that lead a dimension of the result: they may
        be split, the operand then being read whole in them (micro-batches of a batch, say)."""
        led = {base + dim[0] for result in rule.results for dim in result if len(dim) == 1}
        return tuple(dim[:1] + tuple(n for n in dim[1:] if n not in led) for dim in nodes)

    def _meet(self, t: int, nodes: tuple[tuple[int, ...], ...]) -> None:
        known = self.tensor_factors.setdefault(t, nodes)
        for ours, theirs in zip(known, nodes, strict=True):
            for minor in (*ours[1:], *theirs[1:]):
                self.whole.add(minor)
            if ours and theirs:
                self.union.join(ours[0], theirs[0])

    def _tie_equal_values(self) -> None:
        first: dict[int, int] = {}
        for t in list(self.tensor_factors):
            twin = first.setdefault(self.number[t], t)
            if twin != t:
                self._meet(twin, self.tensor_factors[t])

    def _tie_cotangents(self) -> None:
        for t, nodes in list(self.tensor_factors.items()):
            primal = self.tensor_factors.get(self.primal_of.get(t, -1))
            shapes = self.program.tensors
            if primal is None or shapes[t].shape != shapes[self.primal_of[t]].shape:
                continue
            if self._is_permuted(primal, nodes):
                continue
            for ours, theirs in zip(primal, nodes, strict=True):
                if ours and theirs:
                    self.union.join(ours[0], theirs[0])

    def _is_permuted(self, primal: tuple[tuple[int, ...], ...], nodes: tuple[tuple[int, ...], ...]) -> bool:
        """Whether the factors already say that a cotangent holds the dimensions of its primal in another order: the
        gradient of a square weight comes out transposed, and tying it by position would tie rows to columns."""
        ours = [self.union.find(dim[0]) if dim else -1 for dim in primal]
        theirs = [self.union.find(dim[0]) if dim else -2 for dim in nodes]
        return any(a == b for i, a in enumerate(ours) for j, b in enumerate(theirs) if i != j)

    def _forbid_repeats(self, equations: Sequence[Equation]) -> None:
        """A class that an equation holds twice (queries and keys of one sequence) cannot be split: two dimensions
        of one tensor would need the same axes."""
        for eqn in equations:
            base, roots = self.base[eqn.index], set()
            for f in range(len(self.rules[eqn.index].factors)):
                root = self.union.find(base + f)
                if root in roots:
                    self.whole.add(root)
                roots.add(root)

    def _finish(self, equations: Sequence[Equation]) -> GroupSpace:
        whole_roots = {self.union.find(node) for node in self.whole}
        sizes: dict[int, set[int]] = {}
        for node, size in enumerate(self.sizes):
            sizes.setdefault(self.union.find(node), set()).add(size)
        named_of: dict[int, int] = {}
        for t, dims in self.tensor_factors.items():
            for d, nodes in enumerate(dims):
                if nodes:
                    named_of.setdefault(
                        self.union.find(nodes[0]), self.named.of.get((t, d), len(self.named.dimensions))
                    )
        roots = [r for r in sizes if r not in whole_roots and max(sizes[r]) > 1 and r in named_of]
        roots.sort(key=lambda r: (named_of[r], r))
        index = {root: k for k, root in enumerate(roots)}
        last = len(self.named.dimensions)
        fixed = {self.union.find(node): axes for node, axes in self.user_axes.items()}
        most: dict[int, int] = {}
        for node, parts in self.most_parts.items():
            root = self.union.find(node)
            most[root] = min(parts, most.get(root, parts))
        classes = [
            FactorClass(
                sizes=tuple(sorted(sizes[r])),
                named_dimension=named_of[r] if named_of[r] < last else -1,
                user_axes=fixed.get(r),
                most_parts=most.get(r),
            )
            for r in roots
        ]
        operand_partial: tuple[int, ...] = ()
        if self.group.kind == "sum":
            operand_partial = (len(classes),)
            classes.append(FactorClass(sizes=(), named_dimension=-1))
        return GroupSpace(
            classes=tuple(classes),
            factor_class={
                eqn.index: tuple(
                    index.get(self.union.find(self.base[eqn.index] + f), WHOLE)
                    for f in range(len(self.rules[eqn.index].factors))
                )
                for eqn in equations
            },
            tensor_dims={
                t: tuple(
                    (index[self.union.find(nodes[0])],)
                    if nodes and self.union.find(nodes[0]) in index
                    else ()
                    for nodes in dims
                )
                for t, dims in self.tensor_factors.items()
            },
            tensor_partial=self._partials(equations, index, operand_partial),
            operand_partial=operand_partial,
        )

    def _partials(
        self, equations: Sequence[Equation], index: dict[int, int], operand_partial: tuple[int, ...]
    ) -> dict[int, tuple[int, ...]]:
        if operand_partial:
            return {t: operand_partial for eqn in equations for t in eqn.results}
        partial: dict[int, tuple[int, ...]] = {}
        for eqn in equations:
            rule, base = self.rules[eqn.index], self.base[eqn.index]
            classes = {
                index[self.union.find(base + f)]
                for f, factor in enumerate(rule.factors)
                if factor.reducer == "sum" and self.union.find(base + f) in index
            }
            if eqn.name in VIEW_PRIMITIVES and self.group.kind == "contraction":
                classes |= set(partial.get(eqn.operands[0], ()))
            if classes:
                for t in eqn.results:
                    partial[t] = tuple(sorted(classes))
        return partial
