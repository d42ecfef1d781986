"""The batch of a step: the dimension along which its examples are independent, wherever it stands.

In words: an example enters with data, every operator maps it by itself, and examples meet in sums alone, those of the
loss and of gradients; parameters are shared by all examples, so they do not have the dimension. In symbols, of a named
dimension D and the equations ``r = f(a, b, ...)`` of the step::

    r[d] = f(a[d], b)          maps: operands without D are shared
    r    = sum_d f(a[d], b[d]) sums: a loss, a gradient, a statistic

and every other use of D *mixes* examples: a dot of the forward pass that sums over D, unless its result leads to
state alone (features with a kernel, scores with values), windows, slices, sorts, scans, look-ups and scatters along D,
a tensor that has D twice. The traffic between the examples is counted in bytes: results of sums that meet D again (a
batch norm's mean) and the operands of mixing operators. Of the dimensions that much of the step's arithmetic maps, the
batch is the one that no trained state has, that mixes nothing, comes from data, passes least, maps most, and stands in
front, in this order. Sums of the backward pass are gradients and do not count, nor do operators without a rule. Values
that the batch leaves uncovered (a second tower, an environment beside its mini-batches, the slots of experts) may have
batches of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import jax.numpy as jnp

from jaxplan.core import _compat
from jaxplan.ir._dimensions import NamedDimensions
from jaxplan.ir._grouping import CONTRACTION_FAMILIES
from jaxplan.ir._program import Equation, Program, Tensor
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._values import Values

LEAST_COVERED = 1 / 16
"""A batch maps at least this share of the arithmetic that the dimension which maps most does."""
LEAST_COVERED_INSIDE = 1 / 2
"""... where no argument has it."""
LEAST_UNCOVERED = 1 / 20
"""Another batch is looked for where at least this share of the arithmetic has none."""
MOST_PASSED = 1 / 16
"""Where operators mix examples, a dimension is no batch if more than this share of the bytes that carry it passes
between them, if state has it, or if it does not stand in front: full-batch message passing, stencils and the keys of
attention are none, losses that compare all examples, and mixtures of experts that sort all tokens, have one."""
_NEGLIGIBLE = 1 / 1000
_MOVING_FAMILIES = frozenset({"region", "shape", "source"})
_CUTTING_PRIMITIVES = frozenset({"slice", "dynamic_slice", "split"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch dimensions of a step.

    Attributes:
      dimensions: indices of named dimensions, the most important first; several where the tensors of one are not those
        of another. Empty where examples are independent along none.
      parameters: tensor indices of the inputs that all examples share and that they are multiplied with, looked up in
        or shifted by: trained or not.
      reason: why there is none, as the rest of a sentence; empty where there is one.
    """

    dimensions: tuple[int, ...]
    parameters: frozenset[int]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixing:
    """The values that pass between the parts of a dimension.

    Attributes:
      passed, carried: bytes that pass, and bytes of the tensors that hold the dimension.
      mixes: the first equation that mixes, None where none does.
      sums: whether a dot of the forward pass mixes by summing over it.
    """

    passed: float
    carried: float
    mixes: int | None
    sums: bool

    @property
    def share(self) -> float:
        share = self.passed / max(1.0, self.carried)
        return share if share > _NEGLIGIBLE else 0.0


def find_batch(
    program: Program,
    rules: Sequence[OperatorRule],
    values: Values,
    named: NamedDimensions,
    state: frozenset[int],
) -> Batch:
    """The batch of a step; ``state`` are the tensor indices of inputs that an output replaces."""
    facts = _Facts(program=program, rules=rules, values=values, named=named, state=state)
    ranked = facts.ranked(facts.covered(range(len(program.equations))))
    chosen = [k for k in ranked if not facts.objection(k)][:1]
    reason = "" if chosen else facts.reason(ranked)
    while chosen:
        missing = facts.uncovered(chosen)
        rest = facts.covered(missing)
        if sum(facts.points[e] for e in missing) < LEAST_UNCOVERED * sum(facts.points):
            break
        more = [k for k in rest if rest[k] >= LEAST_UNCOVERED * sum(facts.points) and facts.is_another(k)]
        if not more:
            break
        chosen += facts.ranked({k: rest[k] for k in more})[:1]
    chosen += facts.alike(chosen)
    return Batch(dimensions=tuple(chosen), parameters=facts.parameters(chosen), reason=reason)


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """The step by named dimensions; arithmetic is counted in points of iteration spaces, over all trips of loops."""

    program: Program
    rules: Sequence[OperatorRule]
    values: Values
    named: NamedDimensions
    state: frozenset[int]
    _known: dict[int, _Mixing] = field(default_factory=dict)

    @cached_property
    def dims(self) -> list[tuple[int, ...]]:
        """Per tensor, the named dimension of each of its dimensions, -1 where it has none."""
        of = self.named.of
        return [tuple([of.get((t.index, d), -1) for d in range(len(t.shape))]) for t in self.program.tensors]

    @cached_property
    def points(self) -> list[int]:
        """Per equation the points of its iteration space; 0 for pure data movement, and for the update."""
        found = []
        for eqn, rule in zip(self.program.equations, self.rules, strict=True):
            counts = rule.family not in _MOVING_FAMILIES and eqn.phase != "update"
            counts = counts and not all(self.values.free[t] for t in eqn.results)
            found.append(self._points(eqn, rule) * self._trips(eqn) if counts else 0)
        return found

    def _points(self, eqn: Equation, rule: OperatorRule) -> int:
        if rule.family in CONTRACTION_FAMILIES:
            return math.prod(factor.size for factor in rule.factors)
        tensors = [self.program.tensors[t] for t in (*eqn.operands, *eqn.results)]
        return max((tensor.num_elements for tensor in tensors), default=0)

    def _trips(self, eqn: Equation) -> int:
        return self.program.tensors[eqn.results[0]].trips if eqn.results else 1

    @cached_property
    def mapped(self) -> list[frozenset[int]]:
        """Per equation the named dimensions that it can be split by."""
        found = []
        for eqn, rule in zip(self.program.equations, self.rules, strict=True):
            held = {k: f for _, _, k, f in self._holders(eqn, rule)}
            found.append(frozenset(k for k, f in held.items() if rule.factors[f].kind != "whole"))
        return found

    def _holders(self, eqn: Equation, rule: OperatorRule) -> Iterator[tuple[bool, int, int, int]]:
        """(is an operand, tensor, named dimension, leading factor) of each dimension that carries a factor."""
        sides = ((True, eqn.operands, rule.operands), (False, eqn.results, rule.results))
        for is_operand, tensors, held in sides:
            for t, dims in zip(tensors, held, strict=True):
                for d, factors in enumerate(dims):
                    if factors and self.dims[t][d] >= 0:
                        yield is_operand, t, self.dims[t][d], factors[0]

    def covered(self, equations: Iterable[int]) -> dict[int, int]:
        """Named dimension -> arithmetic among ``equations`` that it is mapped by."""
        found: dict[int, int] = defaultdict(int)
        for e in equations:
            if self.points[e]:
                for k in self.mapped[e]:
                    found[k] += self.points[e]
        return found

    def uncovered(self, chosen: Iterable[int]) -> list[int]:
        """Equations that none of some dimensions splits."""
        dims = frozenset(chosen)
        return [e for e, mapped in enumerate(self.mapped) if self.points[e] and not mapped & dims]

    def ranked(self, covered: dict[int, int]) -> list[int]:
        """The dimensions that cover much, those along which examples are most independent first."""
        most = max(covered.values(), default=0)
        least = {True: LEAST_COVERED * most, False: LEAST_COVERED_INSIDE * most}

        def key(k: int) -> tuple[float, ...]:
            mixing = self.mixing(k)
            ranks = self.is_trained(k), mixing.mixes is not None, k not in self.from_data
            return (*ranks, mixing.share, -round(covered[k] / most, 2), self.position[k], k)

        return sorted((k for k in covered if covered[k] >= least[k in self.from_data]), key=key)

    def is_trained(self, k: int) -> bool:
        return any(k in self.dims[t] for t in self.trained)

    @cached_property
    def trained(self) -> frozenset[int]:
        """State that is replaced by a result of the backward pass."""
        behind: set[int] = set()
        for eqn in self.program.equations:
            if eqn.phase == "backward" or not behind.isdisjoint(eqn.operands):
                behind.update(eqn.results)
        return frozenset(t for t, successor in self.program.state.items() if successor in behind)

    @cached_property
    def from_data(self) -> frozenset[int]:
        """Named dimensions of inputs that are no state, with those that are cut from them (micro-batches)."""
        found = {k for t in self.program.inputs if t not in self.state for k in self.dims[t] if k >= 0}
        for whole, part in self.cuts:
            if whole in found:
                found.add(part)
        return frozenset(found)

    @cached_property
    def cuts(self) -> list[tuple[int, int]]:
        """(named dimension, another that is cut from it), in program order: minor factors of it that lead a dimension
        of a result, and slices."""
        found: dict[tuple[int, int], None] = {}
        for eqn, rule in zip(self.program.equations, self.rules, strict=True):
            if rule.family not in ("shape", "gather"):
                continue
            for t, held in zip(eqn.operands, rule.operands, strict=True):
                for d, factors in enumerate(held):
                    for part in self._cut(eqn, rule, d, factors[1:]):
                        found[self.dims[t][d], part] = None
        return list(found)

    def _cut(self, eqn: Equation, rule: OperatorRule, d: int, minor: Sequence[int]) -> Iterator[int]:
        """Dimensions of results that are led by minor factors of an operand's dimension, or are slices of it."""
        for t, held in zip(eqn.results, rule.results, strict=True):
            if eqn.name in _CUTTING_PRIMITIVES:
                yield self.dims[t][d]
            for named, factors in zip(self.dims[t], held, strict=True):
                if factors and factors[0] in minor:
                    yield named

    @cached_property
    def position(self) -> dict[int, float]:
        """Named dimension -> at which place it stands in the tensors that have it, on average."""
        places: dict[int, list[int]] = defaultdict(list)
        for (_, d), k in self.named.of.items():
            places[k].append(d)
        return {k: sum(of) / len(of) for k, of in places.items()}

    def reason(self, ranked: Sequence[int]) -> str:
        """Why there is no batch, as the rest of a sentence: of the nearest dimension to one that no trained state has.

        Args:
          ranked: the dimensions that cover much of the arithmetic.
        """
        if not ranked:
            return "no operator computes with an array"
        if not self.is_trained(ranked[0]):
            return self.objection(ranked[0])
        covered = self.covered(range(len(self.points)))
        others = [k for k in covered if k in self.from_data and not self.is_trained(k)]
        if not others:
            return self.objection(ranked[0])
        k = min(others, key=lambda k: (self.position[k], -covered[k], k))
        most = max(self.uncovered([k]), key=lambda e: self.points[e])
        return self.objection(k) or (
            f"most of the arithmetic, {self._place(most)}, cannot be split along the examples, {self._dimension(k)}"
        )

    def _place(self, e: int) -> str:
        eqn = self.program.equations[e]
        line = _compat.eqn_source_line(eqn.origin)
        return f"{eqn.name!r}" + (f" at {line}" if line else "")

    def _dimension(self, k: int) -> str:
        dimension = self.named.dimensions[k]
        return f"{dimension.name} ({dimension.size})"

    def objection(self, k: int) -> str:
        """Why a dimension is no batch, as the rest of a sentence; empty if it is one."""
        mixing = self.mixing(k)
        if mixing.mixes is None:
            only = "examples are independent along no dimension that parameters do not have"
            return only if self.is_trained(k) else ""
        within = {k}
        for whole, part in reversed(self.cuts):
            if part in within:
                within.add(whole)
        succeeded = (self.program.inputs[i] for i in self.program.aliases.values())
        is_state = any(not within.isdisjoint(self.dims[t]) for t in succeeded)
        if mixing.share <= MOST_PASSED and self.position[k] < 0.5 and not is_state:
            return ""
        return (
            f"examples are independent along no dimension: {self._place(mixing.mixes)} mixes those of the nearest to "
            f"one, {self._dimension(k)}"
        )

    def is_another(self, k: int) -> bool:
        """Whether a dimension may be a batch of the values that others do not cover."""
        mixing, is_inner = self.mixing(k), not any(k in self.dims[t] for t in self.program.inputs)
        if self.is_trained(k) or not (is_inner or self.position[k] < 0.5):
            return False
        return mixing.mixes is None or (mixing.share <= MOST_PASSED and (is_inner or not mixing.sums))

    def mixing(self, k: int) -> _Mixing:
        if k not in self._known:
            self._known[k] = self._mixing(k)
        return self._known[k]

    def _mixing(self, k: int) -> _Mixing:
        tensors, holds = self.program.tensors, [k in dims for dims in self.dims]
        meets = self._leading_to(holds)
        passed = carried = 0.0
        mixes, summed = None, False
        for eqn, rule in zip(self.program.equations, self.rules, strict=True):
            held = {t for t in (*eqn.operands, *eqn.results) if holds[t]}
            if not held:
                continue
            trips = self._trips(eqn)
            carried += trips * sum(tensors[t].num_bytes for t in held if self.dims[t].count(k) == 1)
            sums, moved = self._uses(eqn, rule, k)
            is_dot = rule.family in CONTRACTION_FAMILIES
            sums = sums and not (is_dot and eqn.phase == "backward")  # a gradient
            returned = sum(tensors[t].num_bytes for t in eqn.results if meets[t]) if sums else 0
            passed += trips * (returned + moved)
            dot = is_dot and sums and bool(returned or any(self.shown[t] for t in eqn.results))
            summed = summed or dot
            if mixes is None and (moved or dot or (returned and rule.family == "scatter")):
                mixes = eqn.index
        return _Mixing(passed=passed, carried=carried, mixes=mixes, sums=summed)

    def _leading_to(self, wanted: Sequence[bool]) -> list[bool]:
        """Per tensor, whether one of the wanted is computed of it later in the program."""
        leads = [False] * len(wanted)
        for eqn in reversed(self.program.equations):
            if any(wanted[t] or leads[t] for t in eqn.results):
                for t in eqn.operands:
                    leads[t] = True
        return leads

    @cached_property
    def shown(self) -> list[bool]:
        """Per tensor, whether an array that replaces no state leaves the step and is computed of it."""
        successors, wanted = set(self.program.state.values()), [False] * len(self.program.tensors)
        for t in self.program.outputs:
            wanted[t] = t not in successors and bool(self.program.tensors[t].shape)
        return [w or leads for w, leads in zip(wanted, self._leading_to(wanted), strict=True)]

    def _uses(self, eqn: Equation, rule: OperatorRule, k: int) -> tuple[bool, int]:
        """Whether an equation sums over a dimension, and the bytes that it moves along it."""
        tensors = self.program.tensors
        indexed = {f for f, _ in rule.indexed}
        sums, moved, operands = False, 0, {}
        for is_operand, t, named, f in self._holders(eqn, rule):
            kind = rule.factors[f].kind
            if named != k or not is_operand:
                continue
            operands.setdefault(f, t)
            if (kind in ("whole", "window") and rule.family != "unknown") or f in indexed:
                moved = max(moved, tensors[t].num_bytes)
            elif kind == "reduce":
                sums = True
        twice = [t for t in eqn.results if self.dims[t].count(k) > 1]
        if twice and operands and not any(self.dims[t].count(k) > 1 for t in eqn.operands):
            moved = max(moved, min(tensors[t].num_bytes for t in operands.values()))
        return sums, moved

    def alike(self, chosen: Sequence[int]) -> list[int]:
        """Leading dimensions of other data with as many examples (labels that no operator ties to their data)."""
        sizes = {self.named.dimensions[k].size for k in chosen}
        weights, found = self.parameters(chosen), list[int]()
        for t in self.program.inputs:
            dims, is_read = self.dims[t], bool(self.values.consumers[t])
            if t in self.state or t in weights or not (dims and is_read):
                continue
            if not {*chosen, *found}.isdisjoint(dims):
                continue
            k = dims[0]
            if k >= 0 and self.named.dimensions[k].size in sizes and self.mixing(k).mixes is None:
                found.append(k)
        return found

    def parameters(self, chosen: Sequence[int]) -> frozenset[int]:
        """Inputs of numbers (small integers are quantised ones) without a batch dimension that operators join with
        values that have one."""
        batch, tensors = set(chosen), self.program.tensors
        for whole, part in reversed(self.cuts):
            if part in batch:
                batch.add(whole)
        with_batch = [not batch.isdisjoint(dims) for dims in self.dims]
        shared = [False] * len(tensors)
        for eqn in reversed(self.program.equations):
            meets = any(with_batch[t] for t in (*eqn.operands, *eqn.results))
            meets = meets or any(shared[t] for t in eqn.results)
            if meets and eqn.phase != "update":
                for t in eqn.operands:
                    shared[t] = shared[t] or not with_batch[t]
        return frozenset(t for t in self.program.inputs if shared[t] and _is_weight(tensors[t]))


def _is_weight(tensor: Tensor) -> bool:
    dtype = tensor.dtype
    if _compat.is_key_dtype(dtype) or not tensor.shape:
        return False
    return jnp.issubdtype(dtype, jnp.inexact) or (jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize == 1)
