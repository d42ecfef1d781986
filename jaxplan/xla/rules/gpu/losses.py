"""When losses are summed: with the gradient of their predictions, or after the next dot of the backward pass.

A loss and its gradient read the same array, the predictions. XLA fuses the gradient with one sum: that of the bias, if
it is a sum over many rows, or else the loss. A loss that is left alone is needed at the end of the step only. It runs
after the dot that the gradient is read by. The predictions live until the loss is summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jaxplan.ir import VIEW_PRIMITIVES, Equation
from jaxplan.xla._effects import KeepResults, Save
from jaxplan.xla._facts import Facts, walk
from jaxplan.xla._plan_effects import SumLoss
from jaxplan.xla._rule import XLA, CompilerRule
from jaxplan.xla.rules.both.deferred import is_gradient
from jaxplan.xla.rules.gpu.row_sums import SPLIT_ROWS, row_sums

_WIDE_BYTES = 4


def _losses(facts: Facts) -> Iterator[SumLoss]:
    for loss in _found(facts):
        gradients = [g for t in loss.predictions for g in _gradients(facts, t)]
        dots = [dot for g in gradients if _gives_bias(facts, g) for dot in _dots(facts, g)]
        is_read = (e for t in loss.predictions for e in facts.readers(t) if e is loss.eqn or _is_fused(loss, e))
        yield SumLoss(
            predictions=loss.predictions,
            readers=frozenset(e.index for e in is_read),
            gradient=min(gradients, key=facts.graph.values.producer.__getitem__),
            after_bias=min(dots) if dots and facts.target.num_devices != 1 else None,  # there memory decides the order
            most_rows=SPLIT_ROWS,
        )


def _recomputed(facts: Facts) -> Iterator[Save]:
    return (Save(t) for loss in _found(facts) for t in loss.predictions)


def _saved_logarithms(facts: Facts) -> Iterator[KeepResults]:
    for loss in _found(facts):
        if any(facts.tensors[t].itemsize < _WIDE_BYTES for t in loss.predictions):
            yield from (KeepResults(e.index) for e in facts.equations if e.name == "log1p" and _is_fused(loss, e))


class _Loss(NamedTuple):
    """A sum of all elements that is a loss.

    Attributes:
      eqn: the sum.
      fused: the tensors that it is computed of in one kernel, and those in memory that it reads.
      predictions: of these, arrays in memory of its size, made by the step, that have a gradient.
    """

    eqn: Equation
    fused: frozenset[int]
    predictions: tuple[int, ...]


def _found(facts: Facts) -> Iterator[_Loss]:
    for eqn in filter(lambda eqn: _is_loss(facts, eqn), facts.equations):
        fused = _fused(facts, eqn)
        size = facts.tensors[eqn.operands[0]].num_elements
        made = (t for t in fused if facts.written[t] and facts.maker(t) is not None)
        predictions = tuple(t for t in made if facts.tensors[t].num_elements == size and _gradients(facts, t))
        if predictions:
            yield _Loss(eqn, fused, predictions)


def _is_fused(loss: _Loss, eqn: Equation) -> bool:
    return not loss.fused.isdisjoint(eqn.results)


def _is_loss(facts: Facts, eqn: Equation) -> bool:
    """Whether an equation is a sum of all elements that the step returns, or reads as a scalar alone."""
    if facts.family(eqn.index) != "reduction" or eqn.phase != "forward" or eqn.region >= 0:
        return False
    if facts.tensors[eqn.results[0]].shape or not facts.tensors[eqn.operands[0]].shape:
        return False
    computed = walk(eqn.results, lambda t: [r for e in facts.readers(t) for r in e.results])
    return all(not facts.tensors[t].shape for t in computed)


def _fused(facts: Facts, loss: Equation) -> frozenset[int]:
    """The tensors that a loss is computed of in one kernel, and those in memory that it reads."""

    def operands(t: int) -> tuple[int, ...]:
        made = facts.maker(t)
        return () if made is None or (facts.written[t] and t not in loss.operands) else made.operands

    return frozenset(walk(loss.operands, operands))


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
    """Whether the gradient of a bias is fused with a gradient."""
    views = walk([gradient], lambda t: [r for e in facts.readers(t) if e.name in VIEW_PRIMITIVES for r in e.results])
    return any(facts.tensors[e.results[0]].shape for e in row_sums(facts, views))


def _dots(facts: Facts, gradient: int) -> list[int]:
    """Dots of the backward pass that read a gradient and make no gradient of a parameter."""
    dots = (e for e in facts.readers(gradient, "backward") if facts.is_dot(e.index))
    return [e.index for e in dots if not is_gradient(facts.graph, e.results[0])]


SUMMED_LOSSES = CompilerRule(
    name="losses-are-summed-with-gradients-or-late",
    backends=("gpu",),
    stage="liveness",
    does="A loss is summed by the kernel that writes the gradient of its predictions, or, where that sums the gradient "
    "of a bias over many rows, behind the next dot; its operands live until then.",
    source=f"{XLA}service/gpu/transforms/multi_output_fusion.cc",
    made_after=(),
    test="tests/xla/test_losses.py::test_predictions_live_to_the_next_dot",
    find=_losses,
)
RECOMPUTED_LOSSES = CompilerRule(
    name="losses-are-recomputed-for-gradients",
    backends=("gpu",),
    stage="residuals",
    does="The gradient of predictions is computed of these, which its kernel reads for their loss anyway.",
    source=f"{XLA}service/gpu/transforms/priority_fusion.cc",
    made_after=(),
    test="tests/xla/test_losses.py::test_what_is_saved_of_a_loss",
    find=_recomputed,
)
SAVED_LOGARITHMS = CompilerRule(
    name="logarithms-of-narrow-predictions-are-saved",
    backends=("gpu",),
    stage="residuals",
    does="`log1p` of predictions of 16 bits, in a loss, is saved in float32 for their gradient.",
    source=f"{XLA}service/gpu/transforms/priority_fusion.cc",
    made_after=(),
    test="tests/xla/test_losses.py::test_what_is_saved_of_a_loss",
    find=_saved_logarithms,
)
