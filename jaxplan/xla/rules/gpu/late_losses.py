"""Losses that are summed after the next dot of the backward pass.

A loss and its gradient read the same array, the predictions. XLA fuses the gradient with one sum: that of the bias, if
it is a sum over many rows, or else the loss. A loss that is left alone is needed at the end of the step only. It runs
after the dot that the gradient is read by, and the predictions live until then.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import VIEW_PRIMITIVES, Equation
from jaxplan.xla._effects import RunLate
from jaxplan.xla._facts import Facts, walk
from jaxplan.xla._rule import CompilerRule, Observed
from jaxplan.xla.rules.both.deferred import is_gradient

SPLIT_ROWS = 4096
"""A sum over more rows than these is split into two, the first of which is fused with its operand:
https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/tree_reduction_rewriter.cc
(``ReductionDimensionRaceFreeBound``)."""


def _late_losses(facts: Facts) -> Iterator[RunLate]:
    for eqn in facts.equations if facts.target.num_devices != 1 else ():  # there the order of least memory is taken
        if not _is_loss(facts, eqn):
            continue
        gradients = [g for t in _predictions(facts, eqn) for g in _gradients(facts, t) if _gives_bias(facts, g)]
        if dots := [dot for g in gradients for dot in _dots(facts, g)]:
            yield RunLate(eqn.index, min(dots))


def _is_loss(facts: Facts, eqn: Equation) -> bool:
    """Whether an equation is a sum of all elements that the step returns, or reads as a scalar alone."""
    if facts.family(eqn.index) != "reduction" or eqn.phase != "forward" or eqn.region >= 0:
        return False
    if facts.tensors[eqn.results[0]].shape or not facts.tensors[eqn.operands[0]].shape:
        return False
    computed = walk(eqn.results, lambda t: [r for e in facts.readers(t) for r in e.results])
    return all(not facts.tensors[t].shape for t in computed)


def _predictions(facts: Facts, loss: Equation) -> list[int]:
    """The largest arrays in memory, made by the step, that a loss is fused with."""

    def operands(t: int) -> tuple[int, ...]:
        made = facts.maker(t)
        return () if made is None or (facts.written[t] and t not in loss.operands) else made.operands

    size = facts.tensors[loss.operands[0]].num_elements
    found = (t for t in walk(loss.operands, operands) if facts.written[t] and facts.maker(t) is not None)
    return [t for t in found if facts.tensors[t].num_elements == size]


def _gradients(facts: Facts, t: int) -> list[int]:
    """Arrays of the backward pass that are computed from one element by element, also by way of saved ones."""

    def is_gradient_of(u: int) -> bool:
        made = facts.maker(u)
        return facts.written[u] and made is not None and made.phase == "backward"

    def results(u: int) -> list[int]:
        if is_gradient_of(u):
            return []
        return [r for e in facts.readers(u) if facts.family(e.index) in ("elementwise", "shape") for r in e.results]

    return [u for u in walk([t], results) if is_gradient_of(u) and facts.tensors[u].shape == facts.tensors[t].shape]


def _gives_bias(facts: Facts, gradient: int) -> bool:
    """Whether the gradient of a bias is fused with a gradient, of which each device has a part of the rows."""
    tensor = facts.tensors[gradient]
    rows = tensor.num_elements // max(tensor.shape[-1], 1) // (facts.target.num_devices or 1)
    if rows <= SPLIT_ROWS:
        return False
    views = walk([gradient], lambda t: [r for e in facts.readers(t) if e.name in VIEW_PRIMITIVES for r in e.results])
    sums = (e for t in views for e in facts.readers(t) if facts.family(e.index) == "reduction")
    last = len(tensor.shape) - 1
    return any(last not in e.params.get("axes", (last,)) and facts.tensors[e.results[0]].shape for e in sums)


def _dots(facts: Facts, gradient: int) -> list[int]:
    """Dots of the backward pass that read a gradient and make no gradient of a parameter."""
    dots = (e for e in facts.readers(gradient, "backward") if facts.is_dot(e.index))
    return [e.index for e in dots if not is_gradient(facts.graph, e.results[0])]


LATE_LOSSES = CompilerRule(
    name="losses-beside-bias-gradients-are-summed-late",
    backends=("gpu",),
    stage="schedule",
    does="Predictions live to the next dot where their gradient is fused with that of a bias: the loss is summed late.",
    source=Observed(
        evidence="perceptrons and autoencoders drawn at random, compiled for H100",
        command="python -m benchmarks.accuracy.population --first 880010 --count 1",
    ),
    made_after=(),
    test="tests/xla/test_late_losses.py::test_predictions_live_to_the_next_dot",
    find=_late_losses,
)
