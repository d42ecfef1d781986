"""The values that pass between the parts of a named dimension, by the operators that mix them."""

from __future__ import annotations

from dataclasses import dataclass

from jaxplan.ir._grouping import CONTRACTION_FAMILIES
from jaxplan.ir._program import Equation
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._step_dimensions import StepDimensions

_NEGLIGIBLE = 1 / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
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


def mixing_of(step: StepDimensions, k: int) -> Mixing:
    """How examples along a named dimension meet."""
    tensors, holds = step.program.tensors, [k in dims for dims in step.dims]
    meets = step.leading_to(holds)
    passed = carried = 0.0
    mixes, summed = None, False
    for e in step.equations_with.get(k, ()):
        eqn, rule = step.program.equations[e], step.rules[e]
        held = {t for t in (*eqn.operands, *eqn.results) if holds[t]}
        trips = step.trips(eqn)
        carried += trips * sum(tensors[t].num_bytes for t in held if step.dims[t].count(k) == 1)
        sums, moved = _uses(step, eqn, rule, k)
        is_dot = rule.family in CONTRACTION_FAMILIES
        sums = sums and not (is_dot and eqn.phase == "backward")  # a gradient
        returned = sum(tensors[t].num_bytes for t in eqn.results if meets[t]) if sums else 0
        passed += trips * (returned + moved)
        dot = is_dot and sums and bool(returned or any(step.shown[t] for t in eqn.results))
        summed = summed or dot
        if mixes is None and (moved or dot or (returned and rule.family == "scatter")):
            mixes = eqn.index
    return Mixing(passed=passed, carried=carried, mixes=mixes, sums=summed)


def _uses(step: StepDimensions, eqn: Equation, rule: OperatorRule, k: int) -> tuple[bool, int]:
    """Whether an equation sums over a dimension, and the bytes that it moves along it."""
    tensors = step.program.tensors
    indexed = {f for f, _ in rule.indexed}
    sums, moved, operands = False, 0, {}
    for is_operand, t, named, f in step.holders[eqn.index]:
        if named != k or not is_operand:
            continue
        kind = rule.factors[f].kind
        operands.setdefault(f, t)
        if (kind in ("whole", "window") and rule.family != "unknown") or f in indexed:
            moved = max(moved, tensors[t].num_bytes)
        elif kind == "reduce":
            sums = True
    twice = [t for t in eqn.results if step.dims[t].count(k) > 1]
    if twice and operands and not any(step.dims[t].count(k) > 1 for t in eqn.operands):
        moved = max(moved, min(tensors[t].num_bytes for t in operands.values()))
    return sums, moved
