"""Fourth pass: where operators run that nothing waits for, by the effects of the rules on the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxplan.xla._effects import Accumulate, Order
from jaxplan.xla._facts import Facts
from jaxplan.xla.rules import rules_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Deviations from program order.

    Attributes:
      late: equation -> the one by which it has run.
      after: equation -> the one behind which its result is made.
      sums: additions to carries, which write over them.
    """

    late: Mapping[int, int] = field(default_factory=dict)
    after: Mapping[int, int] = field(default_factory=dict)
    sums: frozenset[int] = frozenset()


def schedule(facts: Facts, library_sums: Sequence[Accumulate], *, in_order: bool) -> Schedule:
    """The schedule of a step; with ``in_order`` that of the program, but for sums that a library call makes."""
    orders = [
        effect
        for rule in rules_of(facts.target, "schedule")
        for effect in (rule.find(facts) if rule.find and not in_order else ())
        if isinstance(effect, Order)
    ]
    producer = facts.graph.values.producer
    late = {order.equation: order.by for order in orders if order.by is not None}
    late |= {producer[a.product]: a.equation for a in library_sums if not a.in_place}
    return Schedule(
        late=late,
        after={order.equation: order.after for order in orders if order.after is not None},
        sums=frozenset(order.equation for order in orders if order.is_sum),
    )
