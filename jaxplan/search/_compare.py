"""One step on several machines: time, memory and money beside each other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxplan.core._units import format_bytes, format_gib, format_milliseconds
from jaxplan.errors import ArgumentError, InfeasibleError
from jaxplan.mesh import Topology
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._plan import Plan

_SECONDS_PER_HOUR = 3600


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """A step on one machine.

    Attributes:
      topology: the machine.
      frontier: the plans that fit; None where none does.
      smallest_memory_bytes: of the leanest plan, whether it fits or not; bytes per device.
      price: of one device for one hour, in the currency of the caller; None where it is not known.
    """

    topology: Topology
    frontier: Frontier | None
    smallest_memory_bytes: int
    price: float | None

    @property
    def plan(self) -> Plan | None:
        """The fastest plan that fits."""
        return None if self.frontier is None else self.frontier.fastest()

    @property
    def cost_of_1000_steps(self) -> float | None:
        """Price of so many steps of the fastest plan on all devices; None where no price is known or nothing fits."""
        if self.plan is None or self.price is None:
            return None
        return 1000 * self.plan.time_seconds * self.topology.num_devices * self.price / _SECONDS_PER_HOUR


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """A step on several machines, in the order in which they were named; index by name or number.

    Attributes:
      offers: one for each machine.
    """

    offers: tuple[Offer, ...]

    def __iter__(self) -> Iterator[Offer]:
        return iter(self.offers)

    def __len__(self) -> int:
        return len(self.offers)

    def __getitem__(self, which: int | str) -> Offer:
        if isinstance(which, int):
            return self.offers[which]
        for offer in self.offers:
            if offer.topology.name == which:
                return offer
        names = ", ".join(offer.topology.name for offer in self.offers)
        raise ArgumentError(f"{which!r} was not compared; compared were {names}")

    def fastest(self) -> Offer:
        """The machine with the shortest step.

        Raises:
          InfeasibleError: the step fits none of them.
        """
        return self._best(lambda offer: offer.plan.time_seconds if offer.plan else math.inf, "fits none of them")

    def cheapest(self) -> Offer:
        """The machine on which a step costs least, of those with a price.

        Raises:
          InfeasibleError: the step fits none of them, or none has a price.
        """

        def cost(offer: Offer) -> float:
            found = offer.cost_of_1000_steps
            return math.inf if found is None else found

        return self._best(cost, "fits none of them, or none has a price (prices={'h100': 2.5})")

    def _best(self, key: Callable[[Offer], float], why: str) -> Offer:
        best = min(self.offers, key=key)
        if not math.isfinite(key(best)):
            names = ", ".join(offer.topology.name for offer in self.offers)
            raise InfeasibleError(f"no machine can be chosen of {names}: the step {why}")
        return best

    def to_json(self) -> dict[str, Any]:
        """Plain data: for each machine the fastest plan that fits (``plan`` is None where none does), and its price."""
        return {"offers": [_offer_data(offer) for offer in self.offers]}

    def table(self, *, width: int | None = None) -> str:
        """One line for each machine: the fastest plan that fits, and its price."""
        return _draw_table(self, width)


def _offer_data(offer: Offer) -> dict[str, Any]:
    plan = offer.plan
    return {
        "topology": offer.topology.name,
        "num_devices": offer.topology.num_devices,
        "time_seconds": None if plan is None else plan.time_seconds,
        "memory_bytes": None if plan is None else plan.memory_bytes,
        "smallest_memory_bytes": offer.smallest_memory_bytes,
        "price_of_device_hour": offer.price,
        "cost_of_1000_steps": offer.cost_of_1000_steps,
        "plan": None if plan is None else plan.summary,
    }


def compare_on(
    topologies: Sequence[Any],
    prices: Mapping[str, float] | None,
    parse: Callable[[Any], Topology],
    plan_on: Callable[[Topology], Frontier],
) -> Comparison:
    """Plan a step on each of several machines; see `jaxplan.compare`."""
    if isinstance(topologies, str | Topology) or not topologies:
        raise ArgumentError(
            f"topologies is {topologies!r}; expected a list of at least one, such as ['h100:8', 'a100:16']"
        )
    machines = [parse(topology) for topology in topologies]
    known = _checked_prices(prices, machines)
    return Comparison(offers=tuple(_offer(machine, known.get(machine.name), plan_on) for machine in machines))


def _offer(machine: Topology, price: float | None, plan_on: Callable[[Topology], Frontier]) -> Offer:
    try:
        frontier = plan_on(machine)
    except InfeasibleError as error:
        if error.smallest_memory_bytes is None:
            raise
        return Offer(
            topology=machine, frontier=None, smallest_memory_bytes=error.smallest_memory_bytes, price=price
        )
    smallest = frontier.leanest().memory_bytes
    return Offer(topology=machine, frontier=frontier, smallest_memory_bytes=smallest, price=price)


def _checked_prices(prices: Mapping[str, float] | None, machines: Sequence[Topology]) -> dict[str, float]:
    """The price of a device of each machine, by the name of the machine; one for a chip holds for all with it."""
    given = {} if prices is None else prices
    if not isinstance(given, Mapping) or not all(
        isinstance(price, int | float) and not isinstance(price, bool) and 0 <= price < math.inf
        for price in given.values()
    ):
        raise ArgumentError(
            f"prices is {prices!r}; expected the price of a device for an hour by chip or topology, such as "
            "{'h100': 2.5, 'a100:16': 1.8}"
        )
    names = {name for machine in machines for name in (machine.name, machine.chip.name)}
    for name in given:
        if name not in names:
            raise ArgumentError(f"prices names {name!r}, which is not compared; expected some of {sorted(names)}")
    return {
        machine.name: given[name]
        for machine in machines
        for name in (machine.chip.name, machine.name)  # the more exact one counts
        if name in given
    }


def _draw_table(comparison: Comparison, width: int | None) -> str:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from jaxplan.plans._frontier_view import print_table

    has_prices = any(offer.price is not None for offer in comparison)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for header in ("machine", "devices", "time ms", "GiB", "leanest", *(["per 1000 steps"] if has_prices else [])):
        table.add_column(header, justify="left" if header == "machine" else "right", no_wrap=True)
    table.add_column("what is split", overflow="fold")
    for offer in comparison:
        plan, cost = offer.plan, offer.cost_of_1000_steps
        cells = [Text(offer.topology.name), str(offer.topology.num_devices)]
        cells += ["-", "-"] if plan is None else [format_milliseconds(plan.time_seconds), format_gib(plan.memory_bytes)]
        cells.append(format_gib(offer.smallest_memory_bytes))
        if has_prices:
            cells.append("-" if cost is None else f"{cost:.3g}")
        table.add_row(*cells, "does not fit" if plan is None else Text(plan.summary))
    limits = ", ".join(
        f"{offer.topology.name} {format_bytes(offer.frontier.memory_limit_bytes)}"
        for offer in comparison
        if offer.frontier is not None and offer.frontier.memory_limit_bytes is not None
    )
    return print_table(table, [f"the fastest plan within the memory of a device: {limits}"], width)
