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

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax.numpy as jnp

from jaxplan.core import _compat
from jaxplan.ir._dimensions import NamedDimensions
from jaxplan.ir._mixing import Mixing, mixing_of
from jaxplan.ir._program import Program, Tensor
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._step_dimensions import StepDimensions
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


def find_batch(
    program: Program,
    rules: Sequence[OperatorRule],
    values: Values,
    named: NamedDimensions,
    state: frozenset[int],
) -> Batch:
    """The batch of a step; ``state`` are the tensor indices of inputs that an output replaces."""
    step = StepDimensions(program=program, rules=rules, values=values, named=named, state=state)
    judge = _Judge(step=step)
    ranked = judge.ranked(step.covered(range(len(program.equations))))
    chosen = [k for k in ranked if not judge.objection(k)][:1]
    reason = "" if chosen else judge.reason(ranked)
    while chosen:
        missing = step.uncovered(chosen)
        rest = step.covered(missing)
        if sum(step.points[e] for e in missing) < LEAST_UNCOVERED * sum(step.points):
            break
        more = [k for k in rest if rest[k] >= LEAST_UNCOVERED * sum(step.points) and judge.is_another(k)]
        if not more:
            break
        chosen += judge.ranked({k: rest[k] for k in more})[:1]
    chosen += judge.alike(chosen)
    return Batch(dimensions=tuple(chosen), parameters=judge.parameters(chosen), reason=reason)


@dataclass(frozen=True, kw_only=True)
class _Judge:
    """Which dimensions of a step are batches."""

    step: StepDimensions
    _known: dict[int, Mixing] = field(default_factory=dict)

    def ranked(self, covered: dict[int, int]) -> list[int]:
        """The dimensions that cover much, those along which examples are most independent first."""
        most = max(covered.values(), default=0)
        least = {True: LEAST_COVERED * most, False: LEAST_COVERED_INSIDE * most}

        def key(k: int) -> tuple[float, ...]:
            mixing = self.mixing(k)
            ranks = self.step.is_trained(k), mixing.mixes is not None, k not in self.step.from_data
            return (*ranks, mixing.share, -round(covered[k] / most, 2), self.step.position[k], k)

        return sorted((k for k in covered if covered[k] >= least[k in self.step.from_data]), key=key)

    def reason(self, ranked: Sequence[int]) -> str:
        """Why there is no batch, as the rest of a sentence: of the nearest dimension to one that no trained state has.

        Args:
          ranked: the dimensions that cover much of the arithmetic.
        """
        if not ranked:
            return "no operator computes with an array"
        if not self.step.is_trained(ranked[0]):
            return self.objection(ranked[0])
        covered = self.step.covered(range(len(self.step.points)))
        others = [k for k in covered if k in self.step.from_data and not self.step.is_trained(k)]
        if not others:
            return self.objection(ranked[0])
        k = min(others, key=lambda k: (self.step.position[k], -covered[k], k))
        most = max(self.step.uncovered([k]), key=lambda e: self.step.points[e])
        return self.objection(k) or (
            f"most of the arithmetic, {self._place(most)}, cannot be split along the examples, {self._dimension(k)}"
        )

    def _place(self, e: int) -> str:
        eqn = self.step.program.equations[e]
        line = _compat.eqn_source_line(eqn.origin)
        return f"{eqn.name!r}" + (f" at {line}" if line else "")

    def _dimension(self, k: int) -> str:
        dimension = self.step.named.dimensions[k]
        return f"{dimension.name} ({dimension.size})"

    def objection(self, k: int) -> str:
        """Why a dimension is no batch, as the rest of a sentence; empty if it is one."""
        mixing = self.mixing(k)
        if mixing.mixes is None:
            only = "examples are independent along no dimension that parameters do not have"
            return only if self.step.is_trained(k) else ""
        within = {k}
        for whole, part in reversed(self.step.cuts):
            if part in within:
                within.add(whole)
        succeeded = (self.step.program.inputs[i] for i in self.step.program.aliases.values())
        is_state = any(not within.isdisjoint(self.step.dims[t]) for t in succeeded)
        if mixing.share <= MOST_PASSED and self.step.position[k] < 0.5 and not is_state:
            return ""
        return (
            f"examples are independent along no dimension: {self._place(mixing.mixes)} mixes those of the nearest to "
            f"one, {self._dimension(k)}"
        )

    def is_another(self, k: int) -> bool:
        """Whether a dimension may be a batch of the values that others do not cover."""
        mixing, is_inner = self.mixing(k), not any(k in self.step.dims[t] for t in self.step.program.inputs)
        if self.step.is_trained(k) or not (is_inner or self.step.position[k] < 0.5):
            return False
        return mixing.mixes is None or (mixing.share <= MOST_PASSED and (is_inner or not mixing.sums))

    def mixing(self, k: int) -> Mixing:
        if k not in self._known:
            self._known[k] = mixing_of(self.step, k)
        return self._known[k]

    def alike(self, chosen: Sequence[int]) -> list[int]:
        """Leading dimensions of other data with as many examples (labels that no operator ties to their data)."""
        sizes = {self.step.named.dimensions[k].size for k in chosen}
        weights, found = self.parameters(chosen), list[int]()
        for t in self.step.program.inputs:
            dims, is_read = self.step.dims[t], bool(self.step.values.consumers[t])
            if t in self.step.state or t in weights or not (dims and is_read):
                continue
            if not {*chosen, *found}.isdisjoint(dims):
                continue
            k = dims[0]
            if k >= 0 and self.step.named.dimensions[k].size in sizes and self.mixing(k).mixes is None:
                found.append(k)
        return found

    def parameters(self, chosen: Sequence[int]) -> frozenset[int]:
        """Inputs of numbers (small integers are quantised ones) without a batch dimension that operators join with
        values that have one."""
        batch, tensors = set(chosen), self.step.program.tensors
        for whole, part in reversed(self.step.cuts):
            if part in batch:
                batch.add(whole)
        with_batch = [not batch.isdisjoint(dims) for dims in self.step.dims]
        shared = [False] * len(tensors)
        for eqn in reversed(self.step.program.equations):
            meets = any(with_batch[t] for t in (*eqn.operands, *eqn.results))
            meets = meets or any(shared[t] for t in eqn.results)
            if meets and eqn.phase != "update":
                for t in eqn.operands:
                    shared[t] = shared[t] or not with_batch[t]
        return frozenset(t for t in self.step.program.inputs if shared[t] and _is_weight(tensors[t]))


def _is_weight(tensor: Tensor) -> bool:
    dtype = tensor.dtype
    if _compat.is_key_dtype(dtype) or not tensor.shape:
        return False
    return jnp.issubdtype(dtype, jnp.inexact) or (jnp.issubdtype(dtype, jnp.integer) and dtype.itemsize == 1)
