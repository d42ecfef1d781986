"""Configurations opened step by step, where a step has too many ways to split its operators to price them all.

At first each group has few: whole levels for one class, and those of the reference strategies. The hull of that
problem says which of them are used. Of their finer neighbours, in which one axis goes elsewhere, those are opened that
would cost less with everything around them as it is, until there are none or the hull no longer improves. The result
is optimal within the configurations that were opened, not among all that exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxplan.core._interner import Memo
from jaxplan.cost import CostModel, ModelBuilder, NeighbourhoodCost, PricedPairs
from jaxplan.ir import (
    COARSE_CONFIGURATIONS,
    ClassLimit,
    Configuration,
    StepGraph,
    allowed_by,
    neighbours,
    ordered,
)
from jaxplan.mesh import Topology
from jaxplan.solvers import Hull, outline

MOST_PAIRS = 150_000
"""Where no more pairs of layouts than these are to be priced, a tenth of a millisecond each, all configurations within
their cap are."""
MOST_ROUNDS = 2
"""How often neighbours are opened at most."""
MOST_OPENED = 4
"""Neighbours opened for one kind of group in one round."""
LEAST_GAIN_OF_ONE = 1e-6
"""... provided that it gains more than this fraction of the time, for one group of its kind."""
_EPSILON = 1e-9
"""Share of a time within which sums in different order are taken to be equal."""
NUM_SOLVES = 6
"""Minimisations that tell which configurations are used."""
LEAST_GAIN = 5e-3
"""A round that gains less, as a fraction of the time, is the last one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opened:
    """A cost model, and the set of configurations in which its optimum is one.

    Attributes:
      model: of the configurations that were opened.
      has_all: these are all there are.
      num_rounds: how often neighbours were opened.
      builder: of the model.
      priced_pairs: the pairs of configurations that it prices; None: all.
    """

    model: CostModel
    has_all: bool
    num_rounds: int = 0
    builder: ModelBuilder
    priced_pairs: PricedPairs | None = None

    @property
    def most_configurations(self) -> int | None:
        """The most configurations of an operator, within which bounds and gaps are; None where there are no others."""
        return None if self.has_all else max(map(len, self.model.configurations))

    def hull(self) -> Hull:
        """Assignments that tell which configurations are used."""
        return outline(self.model.problem, NUM_SOLVES)

    def with_more(self, more: Mapping[int, Iterable[Configuration]], hull: Hull) -> Opened:
        """The same with further configurations of some groups, and of updates that write what these store.

        Args:
          hull: of this model; where few pairs are priced, new configurations are priced beside those that it uses.
        """
        configurations = self.builder.with_more(self.model.configurations, more)
        if configurations == self.model.configurations:
            return self
        priced_pairs = self.priced_pairs
        if priced_pairs is not None:
            new = [frozenset(f).difference(c) for f, c in zip(configurations, self.model.configurations, strict=True)]
            priced_pairs = priced_pairs.opening(new, _used(self.model, hull))
        model = self.builder.build(configurations, priced_pairs=priced_pairs)
        return replace(self, model=model, priced_pairs=priced_pairs)

    def certificate(self) -> str | None:
        """The configurations that bounds and gaps leave out, as text; None where they cover all."""
        if self.has_all:
            return None
        return (
            "bounds and gaps are within the configurations that were opened, at most "
            f"{self.most_configurations} for an operator, and the pairs of them that were priced: on "
            f"{self.model.topology.num_devices} devices there are more (docs/solvers.md)"
        )


def open_configurations(
    graph: StepGraph,
    topology: Topology,
    progress: Callable[[float], None] = lambda fraction: None,
    strategies: Sequence[Sequence[Configuration]] = (),
    overlap: bool = False,
    limits: Sequence[Sequence[ClassLimit]] = (),
) -> Opened:
    """The cost model to plan with: of all configurations where they are few, else of those worth opening.

    Args:
      strategies: each a configuration for every group; they are points of the problem, whatever is left out.
      overlap, limits: as in `ModelBuilder`; every one of ``strategies`` meets the limits.
    """
    builder = ModelBuilder(graph, topology, tuple(map(frozenset, zip(*strategies, strict=True))), overlap, limits)
    whole, has_all = builder.configurations(), builder.has_all()
    if has_all or builder.num_pairs(whole) <= MOST_PAIRS:
        return Opened(model=builder.build(whole, progress), has_all=has_all, builder=builder)
    priced_pairs = builder.priced_pairs(COARSE_CONFIGURATIONS, strategies)
    model = builder.build(builder.configurations(COARSE_CONFIGURATIONS), lambda f: progress(0.4 * f), priced_pairs)
    hull = outline(model.problem, NUM_SOLVES)
    rounds = 0
    for rounds in range(1, MOST_ROUNDS + 1):
        finer = _with_neighbours(builder, model, hull)
        if finer == model.configurations:
            break
        before, new = hull, [frozenset(f).difference(c) for f, c in zip(finer, model.configurations)]
        priced_pairs = priced_pairs.opening(new, _used(model, hull))
        model = builder.build(finer, lambda f, r=rounds: progress(0.4 + 0.2 * (r - 1 + f)), priced_pairs)
        hull = outline(model.problem, NUM_SOLVES)
        if not _improves(before, hull):
            break
    return Opened(
        model=model, has_all=False, num_rounds=rounds, builder=builder, priced_pairs=priced_pairs
    )


def _improves(before: Hull, after: Hull) -> bool:
    """Whether some vertex of a hull is now beaten."""
    return any(after.lower_bound(point.memory) < (1 - LEAST_GAIN) * point.time for point in before.points)


def _used(model: CostModel, hull: Hull) -> tuple[frozenset[Configuration], ...]:
    """Per group, the configurations of the vertices of a hull; equal groups have the same."""
    kinds = _kinds(model)
    result = [frozenset[Configuration]()] * model.problem.num_nodes
    for members in kinds:
        used = frozenset(
            model.configurations[v][point.assignment[v]] for point in hull.points for v in members
        )
        for v in members:
            result[v] = used
    return tuple(result)


def _kinds(model: CostModel) -> list[list[int]]:
    """Groups with the same objects as configurations and costs: those of equal layers.

    Costs alone can be equal by chance: two heads' dimensions of one size, one of which a strategy splits here and the
    other there.
    """
    kinds = Memo()
    for v, (configurations, kind) in enumerate(zip(model.configurations, model.problem.node_kinds, strict=True)):
        kinds.setdefault((kinds.number(configurations), kind), []).append(v)
    return list(kinds.values())


def _with_neighbours(builder: ModelBuilder, model: CostModel, hull: Hull) -> tuple[tuple[Configuration, ...], ...]:
    """The configurations of a model with neighbours of those that are used; equal groups get the same."""
    result = list(model.configurations)
    for members in _kinds(model):
        configs = model.configurations[members[0]]
        if len(configs) == 1:
            continue
        opened = _opened(builder, model, hull, members[0])
        finer = configs[:1] + tuple(c for c in ordered((*configs, *opened)) if c != configs[0])
        for v in members:
            result[v] = finer
    return tuple(result)


def _opened(builder: ModelBuilder, model: CostModel, hull: Hull, v: int) -> list[Configuration]:
    """New neighbours of the configurations that the vertices use for a group: those that would cost less."""
    sizes, levels = builder.table.axes
    classes, front = builder.graph.spaces[v].classes, builder.graph.named.front
    configs, slope = model.configurations[v], _slope(hull)
    known = frozenset(configs)
    used_at = [(point, configs[point.assignment[v]]) for point in hull.points]
    near = {
        used: [
            c
            for c in neighbours(used, classes, sizes, levels, front)
            if c not in known and allowed_by(builder.table.limits[v], c, sizes)
        ]
        for used in dict.fromkeys(used for _, used in used_at)
    }
    asked = tuple(dict.fromkeys([*near, *(config for found in near.values() for config in found)]))
    own = dict(zip(asked, builder.own_costs(v, asked), strict=True))
    hopeful: list[_Hopeful] = []
    for point, used in used_at:
        around = builder.neighbourhood_cost(v, model.chosen(point.assignment))
        seconds, num_bytes = around.cost(used, own[used])
        now = seconds + slope * num_bytes
        hopeful += [
            _Hopeful(around.bound(config, own[config], slope) - now, config, now, around) for config in near[used]
        ]
    return _cheapest(hopeful, own, slope, LEAST_GAIN_OF_ONE * hull.points[-1].time)


class _Hopeful(NamedTuple):
    """A configuration that may cost less than one that is used now.

    Attributes:
      bound: lower bound on its extra cost, with bytes weighted by the slope.
      now: cost of the present configuration with its neighbours as they are.
    """

    bound: float
    config: Configuration
    now: float
    around: NeighbourhoodCost


def _cheapest(
    hopeful: Sequence[_Hopeful],
    own: Mapping[Configuration, tuple[float, float]],
    slope: float,
    least_gain: float,
) -> list[Configuration]:
    """Those that gain most, and more than ``least_gain``; by ascending bound, so that few are priced."""
    extra: dict[Configuration, float] = {}
    worst = -least_gain
    for bound, config, now, around in sorted(hopeful, key=lambda item: item[:2]):
        if bound > worst:  # nor will any later one be among the best
            break
        seconds, num_bytes = around.cost(config, own[config], slope, now + worst + _EPSILON * now)
        cost = seconds + slope * num_bytes - now
        if cost < -least_gain:
            extra[config] = min(cost, extra.get(config, math.inf))
            best = sorted(extra.values())[:MOST_OPENED]
            worst = best[-1] if len(best) == MOST_OPENED else worst
    return sorted(extra, key=lambda config: (extra[config], config))[:MOST_OPENED]


def _slope(hull: Hull) -> float:
    """Seconds that a byte is worth between the ends of a hull."""
    lean, fast = hull.points[0], hull.points[-1]
    return (lean.time - fast.time) / (fast.memory - lean.memory) if fast.memory > lean.memory else 0.0
