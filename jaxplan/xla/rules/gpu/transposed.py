"""Values that compiled GPU programs write once more with their dimensions in another order.

A batched dot with several free or several contracted dimensions in an operand reads it as a batch of matrices, and
so in one order of dimensions only: batch, free, contracted for the left operand, batch, contracted, free for the right
one; its result has the order batch, free of the left, free of the right. With one free and one contracted
dimension, or without a batch, dots read and write either order. Seen on dots compiled one by one, with none to
two batch dimensions and one or two of the others. A free or contracted dimension of one element is removed in front of
the dot and restored behind it, by reshapes that read and write the order of the program.

Fusions write the operands of a dot in the order in which it reads them. Attention with grouped heads has several
orders: the softmax runs in the order in which the scores were computed, the gradient of the weights
arrives in another and is transposed where the two meet, after it was cast to float32; and of the gradient of the scores
two dots read each its own order.

A kernel that transposes in tiles moves one tensor, once. Where the dimensions fill tiles, every fusion that reads the
gradient of the weights transposes it itself: in float32 only the operand of a row sum is written, and a value needed
in two orders is transposed again afterwards. Where they do not, the gradient is transposed once, in float32, for all
its readers, and one fusion writes its results in both orders.
https://github.com/openxla/xla/blob/main/xla/service/gpu/ir_emission_utils.cc
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxplan.ir import CONTRACTION_FAMILIES, StepGraph, Tensor
from jaxplan.xla._effects import End, Extend, Rewrite, Temporary, WaitBeside
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import XLA, CompilerRule, Fitted, zoo
from jaxplan.xla._storage import Exchange, Order, ShapeOf
from jaxplan.xla.rules.gpu.layout_walk import Joined, exchange, large, layouts_of

_LAYOUTS = f"{XLA}service/gpu/transforms/layout_assignment.cc"
_TILED = f"{XLA}service/gpu/ir_emission_utils.cc"

_LONG_COLUMN = 2048
"""Elements from which on a sum over columns is taken in two steps: attention over 1984 positions wrote its weights
once, over 2048 in both orders (compiled for H100, two to four queries of one key)."""
_MANY_ELEMENTS = 2**27
"""Of capped scores from which on their exponentials are saved: fitted to a Gemma on H100: 8 sequences of 8 heads
and 1024 positions (2**26) recomputed them, while 16, 24 and 32 sequences did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedCopy(Temporary):
    """A copy of a value in another order of dimensions.

    Attributes:
      tensor: the value.
      itemsize: bytes of an element of the copy.
      first, last: equations between which it lives.
      tiled, untiled: it exists if the kernels of these transpositions move tiles, and of those do not.
      if_gathers_kept: it exists if most gathered parameters are kept for the backward pass; None for either.
      if_scattered: it exists if one of these tensors is reduce-scattered; empty: in any case.
      summed: dimensions over which sums were taken that the value is computed with.
      if_long: it exists if these have `_LONG_COLUMN` elements, or if they have less; None for either.
      least_elements: it exists if a device has so many elements of it.
    """

    tensor: int
    itemsize: int
    first: int
    last: int
    tiled: tuple[Exchange, ...] = ()
    untiled: tuple[Exchange, ...] = ()
    if_gathers_kept: bool | None = None
    if_scattered: frozenset[int] = frozenset()
    summed: Order = ()
    if_long: bool | None = None
    least_elements: int = 0

    @property
    def tensors(self) -> tuple[int, ...]:
        """Tensors with local shapes that decide whether the copy is made, and its bytes."""
        return (self.tensor, *(e.tensor for e in (*self.tiled, *self.untiled)))

    def is_there(self, shape_of: ShapeOf, keeps_gathers: bool, scattered: frozenset[int] = frozenset()) -> bool:
        """Whether a device has the copy; ``scattered``: the tensors that the plan reduce-scatters."""
        if self.if_gathers_kept not in (None, keeps_gathers):
            return False
        if self.if_scattered and self.if_scattered.isdisjoint(scattered):
            return False
        shape = shape_of(self.tensor)
        is_long = not self.summed or math.prod(shape[d] for d in self.summed) >= _LONG_COLUMN
        if self.if_long not in (None, is_long) or math.prod(shape) < self.least_elements:
            return False
        return all(e.is_tiled(shape_of) for e in self.tiled) and not any(e.is_tiled(shape_of) for e in self.untiled)


def _meet_transposed(facts: Facts) -> Iterator[OrderedCopy | End | WaitBeside]:
    """Results of dots, transposed in float32 where they meet values of another layout.

    A dot beside the one with a transposed result (both read one gradient) was mostly seen to run after the last use of
    the transposed result, and its operands are live until then.
    """
    for t, joined in layouts_of(facts).joined.items():
        made, end = facts.equations[facts.graph.values.producer[t]], facts.death[t]
        if made.phase == "backward":
            yield from (WaitBeside(u, end, joined.exchange) for u in made.operands)
        yield from _transposed(facts.tensors[t], joined, end)
        yield End(t, joined.at)


def _written_in_both(facts: Facts) -> Iterator[OrderedCopy | End | Rewrite]:
    """Values that the backward pass reads in another layout than the one in which the forward pass reads them."""
    walk = layouts_of(facts)
    for t, wanted in walk.wanted.items():
        again = _rewritten(facts, t, wanted) if walk.fixed.get(t) is None else {}
        if not again:
            continue
        shape = facts.tensors[t].shape
        others = {e for readers in again.values() for e in readers}
        yield End(t, _last_read(facts.graph, facts.written, facts.read_end, t, others))
        source = walk.order.get(t, large(shape, range(len(shape))))
        first = exchange(t, source, min((o for o in wanted if o not in again), key=lambda o: min(wanted[o])))
        for order, readers in again.items():
            yield Rewrite(t, order)
            operands = (o for e in readers for o in facts.equations[e].operands)
            waits = [facts.beside[o] for o in operands if o in facts.beside]
            last = max(facts.read_end[e] for e in wanted[order])
            span = facts.graph.values.producer[t], min(readers), last
            last_wait = max(waits, default=None, key=lambda w: w.until)
            yield from _written_again(facts.tensors[t], span, first, last_wait, _summed(facts.graph, t))


def _in_read_layouts(facts: Facts) -> Iterator[OrderedCopy | Extend]:
    """Copies in the layouts in which batched dots read a value; of these layouts, the one read last is no copy."""
    walk, exchange_at = layouts_of(facts), {wait.until: wait.exchange for wait in facts.beside.values()}
    for t, wanted in walk.wanted.items():
        natural, made = walk.fixed.get(t), facts.graph.values.producer[t]
        orders = {order: readers for order, readers in wanted.items() if (t, order) not in facts.rewritten}
        ends = {order: max(facts.read_end[e] for e in readers) for order, readers in orders.items()}
        base = natural if natural is not None else max(ends, key=lambda order: (ends[order], order))
        for order, last in ends.items():
            if order == base:
                continue
            first = made if natural is None else min(wanted[order])
            copy = OrderedCopy(tensor=t, itemsize=facts.tensors[t].itemsize, first=first, last=last)
            if natural is None and first in exchange_at and first < last:
                moved = (exchange_at[first],)
                yield replace(copy, untiled=moved)
                yield replace(copy, first=first + 1, tiled=moved)
            else:
                yield copy
        for eqn in (facts.equations[e] for e in wanted.get(base, ())):
            if eqn.phase == "backward":
                yield from (Extend(t, facts.beside[o].until) for o in eqn.operands if o in facts.beside)


def _transposed(tensor: Tensor, joined: Joined, end: int) -> Iterator[OrderedCopy]:
    """What there is of the result of a dot from where it is transposed to where it was read last, ``end``."""
    moved, at = (joined.exchange,), joined.at
    yield OrderedCopy(tensor=tensor.index, itemsize=joined.itemsize, first=at, last=end, untiled=moved)
    yield OrderedCopy(tensor=tensor.index, itemsize=joined.itemsize, first=at, last=at + 1, tiled=moved)
    yield OrderedCopy(tensor=tensor.index, itemsize=tensor.itemsize, first=at + 1, last=end, tiled=moved)


def _written_again(
    tensor: Tensor, span: tuple[int, int, int], first: Exchange, waits: WaitBeside | None, summed: Order
) -> Iterator[OrderedCopy]:
    """The reads of a forward tensor by the backward pass in an order of their own.

    The fusion that makes the tensor in the ``first`` order writes both, unless it moves tiles, or its divisor
    was summed in one step: then it is written where it is read. Where the result of the dot beside is transposed
    in tiles, compiled programs that keep gathered parameters made it first and read it last; others did not hold it
    in between.

    Args:
      span: where the tensor is made, and where it is first and last read in that order.
      waits: until when its reader waits for the value transposed beside it, and how that is.
      summed: dimensions of sums that the tensor is computed with.
    """
    made, read, last = span
    until = max(last, waits.until) if waits else last
    copy = OrderedCopy(tensor=tensor.index, itemsize=tensor.itemsize, first=read, last=until, tiled=(first,))
    both = replace(copy, tiled=(), untiled=(first,), summed=summed)
    yield replace(both, first=made, if_long=True)
    if waits is None:
        yield copy
        yield replace(both, if_long=False)
    else:
        end, beside = waits.until, waits.exchange
        yield replace(copy, untiled=(beside,))
        yield replace(copy, tiled=(first, beside), if_gathers_kept=True)
        late = replace(copy, first=end + 1, last=max(last, end + 1))
        yield replace(late, tiled=(first, beside), if_gathers_kept=False)
        yield replace(both, first=late.first, last=late.last, if_long=False)


def _saved_exponentials(facts: Facts) -> Iterator[OrderedCopy]:
    """Exponentials of scores that a tanh caps, where the sum over them runs over columns: saved beside the tanh where
    they are many."""
    walk = layouts_of(facts)
    for eqn in facts.equations:
        if eqn.name != "exp" or eqn.phase == "backward" or not _is_computed_with(facts.graph, eqn.results[0], "tanh"):
            continue
        (t,) = eqn.results
        late = [facts.read_end[e.index] for e in facts.readers(t, "backward")]
        if late and walk.order.get(t, ()) != tuple(sorted(walk.order.get(t, ()))):
            yield OrderedCopy(
                tensor=t,
                itemsize=facts.tensors[t].itemsize,
                first=eqn.index,
                last=max(late),
                least_elements=_MANY_ELEMENTS,
            )


def _is_computed_with(graph: StepGraph, t: int, name: str) -> bool:
    """Whether a function of that name is in the element-wise chain that a value is computed by."""
    tensors, producer, equations = graph.program.tensors, graph.values.producer, graph.program.equations
    stack, seen = [t], {t}
    while stack:
        made = producer[stack.pop()]
        if made < 0 or graph.rules[made].family != "elementwise":
            continue
        if equations[made].name == name:
            return True
        large = {u for u in equations[made].operands if tensors[u].shape == tensors[t].shape} - seen
        seen |= large
        stack += sorted(large)
    return False


def _summed(graph: StepGraph, t: int) -> Order:
    """Dimensions of sums over a tensor's sources that the tensor is computed with."""
    tensors, producer, equations = graph.program.tensors, graph.values.producer, graph.program.equations
    stack, seen = [t], {t}
    while stack:
        made = producer[stack.pop()]
        if made < 0 or graph.rules[made].family in CONTRACTION_FAMILIES:
            continue
        eqn = equations[made]
        if eqn.name == "reduce_sum" and tensors[eqn.operands[0]].shape == tensors[t].shape:
            return tuple(eqn.params["axes"])
        operands = set(eqn.operands) - seen
        seen |= operands
        stack += sorted(operands)
    return ()


def _rewritten(facts: Facts, t: int, wanted: Mapping[Order, Sequence[int]]) -> dict[Order, Sequence[int]]:
    """Orders in which the backward pass alone reads a result of a forward fusion that makes it in another.

    A fusion may write them there, from the operands of the first one: the weights of attention are not saved beside
    their scores. Values broadcast from smaller ones (masks that dispatch tokens to experts) are not.
    """
    made = facts.graph.values.producer[t]
    if made < 0 or facts.equations[made].phase == "backward" or not facts.recomputed[made]:
        return {}
    late = {o: r for o, r in wanted.items() if all(facts.equations[e].phase == "backward" for e in r)}
    return late if len(late) < len(wanted) and _reads_as_large(facts.graph, facts.written, t) else {}


def _reads_as_large(graph: StepGraph, materialised: Sequence[bool], t: int) -> bool:
    """Whether the fusion that makes a tensor reads a buffer of as many elements."""
    tensors, producer, equations = graph.program.tensors, graph.values.producer, graph.program.equations
    stack, seen = [t], {t}
    while stack:
        for u in equations[producer[stack.pop()]].operands:
            if u in seen or graph.values.free[u]:
                continue
            seen.add(u)
            if not materialised[u] and producer[u] >= 0:
                stack.append(u)
            elif tensors[u].num_elements >= tensors[t].num_elements:
                return True
    return False


def _last_read(
    graph: StepGraph, materialised: Sequence[bool], read_end: Sequence[int], t: int, others: Collection[int]
) -> int:
    """The last equation that reads a tensor, or a view of it, but for ``others``."""
    last = graph.values.producer[t]
    for c in graph.values.consumers[t]:
        results = graph.program.equations[c].results
        if graph.rules[c].family == "shape" and not any(materialised[r] for r in results):
            last = max(last, *(_last_read(graph, materialised, read_end, r, others) for r in results))
        elif c not in others:
            last = max(last, read_end[c])
    return last


TRANSPOSED_OPERANDS = CompilerRule(
    name="batched-dots-read-one-layout",
    backends=("gpu",),
    stage="layouts",
    does="A batched dot of several free or contracted dimensions reads one layout; for two layouts, two copies.",
    source=_LAYOUTS,
    made_after=("llama", "moe"),
    test="tests/xla/test_transposed.py::test_a_batch_and_several_dimensions_fix_the_order",
    find=_in_read_layouts,
    priority=2,
)

TRANSPOSED_IN_FLOAT32 = CompilerRule(
    name="results-meet-transposed-in-float32",
    backends=("gpu",),
    stage="layouts",
    does="The result of a dot that meets a value of another layout is cast to float32 and transposed where they meet.",
    source=_LAYOUTS,
    made_after=("llama",),
    test="tests/xla/test_transposed.py::test_gradients_of_grouped_attention_are_transposed_in_float32",
    find=_meet_transposed,
)

WRITTEN_IN_BOTH_LAYOUTS = CompilerRule(
    name="one-fusion-writes-both-layouts",
    backends=("gpu",),
    stage="layouts",
    does="A value that the backward pass reads in another layout is written in both, or again by a tiled kernel.",
    source=_TILED,
    made_after=("llama", "qwen"),
    test="tests/xla/test_transposed.py::test_what_is_not_transposed_at_first_is_written_in_both_orders",
    find=_written_in_both,
    priority=1,
)

SAVED_EXPONENTIALS = CompilerRule(
    name="exponentials-of-many-capped-scores-are-saved",
    backends=("gpu",),
    stage="layouts",
    does="Exponentials of scores that a `tanh` caps are saved beside it where a device has many.",
    source=Fitted(
        value=2**27,
        unit="elements",
        evidence="a Gemma of 8, 16, 24 and 32 sequences of 8 heads and 1024 positions compiled for H100",
        command=zoo("h100:8", "gemma"),
    ),
    made_after=("gemma",),
    test="tests/xla/test_transposed.py::test_exponentials_of_many_capped_scores_are_saved",
    find=_saved_exponentials,
)
