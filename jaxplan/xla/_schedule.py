"""Fifth pass: where operators run that nothing waits for, by the effects of the rules on the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jaxplan.xla._effects import Accumulate, Defer, Effect, Order
from jaxplan.xla._facts import Facts
from jaxplan.xla._found import Found, effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Deviations from program order.

    Attributes:
      late: equation -> the one by which it has run.
      after: equation -> the one behind which its result is made.
      sums: additions to carries, which write over them.
      deferred: weight gradients that run later than the program has them.
      asked: order constraints that the lowering asks for: equation -> the one that comes first.
      found: other effects of the stage.
    """

    late: Mapping[int, int] = field(default_factory=dict)
    after: Mapping[int, int] = field(default_factory=dict)
    sums: frozenset[int] = frozenset()
    deferred: Mapping[int, Defer] = field(default_factory=dict)
    asked: Mapping[int, int] = field(default_factory=dict)
    found: Found = field(default_factory=Found)


def schedule(facts: Facts, library_sums: Sequence[Accumulate], *, in_order: bool) -> Schedule:
    """The schedule of a step; with ``in_order`` that of the program, but for sums that a library call makes."""
    orders, deferred, others = list[Order](), dict[int, Defer](), list[Effect]()
    for effect in effects(replace(facts, deferred=deferred), "schedule"):
        if isinstance(effect, Order):
            orders.append(effect)
        elif isinstance(effect, Defer):
            deferred[effect.equation] = effect
        else:
            others.append(effect)
    taken = [] if in_order else orders
    producer = facts.graph.values.producer
    late = {} if in_order else {e: defer.by for e, defer in deferred.items()}
    late |= {order.equation: order.by for order in taken if order.by is not None}
    late |= {producer[a.dot]: a.equation for a in library_sums if not a.in_place}
    return Schedule(
        late=late,
        after={order.equation: order.after for order in taken if order.after is not None},
        sums=frozenset(order.equation for order in taken if order.is_sum),
        deferred={} if in_order else deferred,
        asked={order.equation: order.after for order in orders if order.is_asked and order.after is not None},
        found=Found.of_effects(others),
    )
