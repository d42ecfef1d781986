"""The referee of resharding: Dijkstra over every layout and every primitive step, written out plainly.

It shares nothing with the search of the planner but the price of one collective. A layout is written as a tuple of
ordered axes for each dimension, and the set of axes that the value is a partial sum over; all other axes are idle.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

from jaxplan.mesh import Sharding, Topology, collective_seconds

Dims = tuple[tuple[int, ...], ...]
State = tuple[Dims, frozenset[int]]


class Referee:
    """Least seconds between all layouts of one tensor.

    Args:
      shape: of the whole tensor.
      itemsize: bytes of an element.
      topology: the machine, and with it the price of a collective.
    """

    def __init__(self, shape: tuple[int, ...], itemsize: int, topology: Topology) -> None:
        self._shape, self._itemsize, self._topology = shape, itemsize, topology
        self._sizes = [axis.size for axis in topology.axes]
        self._steps: dict[State, list[tuple[State, float]]] = {}
        self._prices: dict[tuple[str, float, frozenset[int]], float] = {}

    def shardings(self) -> list[Sharding]:
        """Every layout that divides the shape."""
        every = _all_shardings(len(self._shape), len(self._sizes))
        return [sharding for sharding in every if self._divides(sharding.dims)]

    def seconds_from(self, source: Sharding, target: Sharding | None = None) -> dict[Sharding, float]:
        """Least seconds from one layout to every layout that it can become, up to ``target`` where one is given."""
        start: State = (source.dims, frozenset(source.partial))
        stop = None if target is None else (target.dims, frozenset(target.partial))
        best: dict[State, float] = {start: 0.0}
        done: set[State] = set()
        counter = itertools.count()
        heap = [(0.0, next(counter), start)]
        while heap:
            seconds, _, state = heapq.heappop(heap)
            if state in done:
                continue
            done.add(state)
            if state == stop:
                break
            for after, price in self._steps_from(state):
                if seconds + price < best.get(after, math.inf):
                    best[after] = seconds + price
                    heapq.heappush(heap, (best[after], next(counter), after))
        return {Sharding(dims, tuple(sorted(partial))): best[dims, partial] for dims, partial in done}

    def seconds(self, source: Sharding, target: Sharding) -> float:
        """Least seconds from one layout to another; infinite where there is no path."""
        return self.seconds_from(source, target).get(target, math.inf)

    def step_seconds(self, source: Sharding, target: Sharding) -> float:
        """Seconds of the cheapest single step between two layouts; infinite where there is none."""
        after: State = (target.dims, frozenset(target.partial))
        return min((price for state, price in self.steps_from(source) if state == after), default=math.inf)

    def steps_from(self, sharding: Sharding) -> list[tuple[State, float]]:
        """All that one step makes of a layout, and its seconds."""
        return self._steps_from((sharding.dims, frozenset(sharding.partial)))

    def _steps_from(self, state: State) -> list[tuple[State, float]]:
        if state not in self._steps:
            self._steps[state] = [(after, price) for after, price in self._all_steps(state) if after != state]
        return self._steps[state]

    def _all_steps(self, state: State) -> Iterator[tuple[State, float]]:
        yield from self._slices(*state)
        yield from self._gathers(*state)
        yield from self._exchanges(*state)
        yield from self._sums(*state)
        yield from self._permutes(*state)

    def _slices(self, dims: Dims, partial: frozenset[int]) -> Iterator[tuple[State, float]]:
        """Idle axes, in any order, to the minor place of any dimension; of a partial sum as well, for it is linear."""
        for added in _ordered(self._idle(dims, partial)):
            for d, dim in enumerate(dims):
                after = _with(dims, {d: dim + added})
                if self._divides(after):
                    yield (after, partial), self._topology.chip.launch_seconds

    def _gathers(self, dims: Dims, partial: frozenset[int]) -> Iterator[tuple[State, float]]:
        for d, dim in enumerate(dims):
            for keep in range(len(dim)):
                after = _with(dims, {d: dim[:keep]})
                yield (after, partial), self._price("all-gather", after, dim[keep:])

    def _exchanges(self, dims: Dims, partial: frozenset[int]) -> Iterator[tuple[State, float]]:
        for d, e in itertools.permutations(range(len(dims)), 2):
            for keep in range(len(dims[d])):
                moved = dims[d][keep:]
                after = _with(dims, {d: dims[d][:keep], e: dims[e] + moved})
                if self._divides(after):
                    yield (after, partial), self._price("all-to-all", dims, moved)

    def _sums(self, dims: Dims, partial: frozenset[int]) -> Iterator[tuple[State, float]]:
        for summed in _ordered(sorted(partial)):
            left = partial - set(summed)
            yield (dims, left), self._price("all-reduce", dims, summed)
            for d, dim in enumerate(dims):
                after = _with(dims, {d: dim + summed})
                if self._divides(after):
                    yield (after, left), self._price("reduce-scatter", dims, summed)

    def _permutes(self, dims: Dims, partial: frozenset[int]) -> Iterator[tuple[State, float]]:
        """Any other axes, and any other order of them, with as many pieces of each dimension."""
        usable = [a for a in range(len(self._sizes)) if a not in partial]
        here = self._places(dims)
        for after in self._alike(dims, usable):
            there = self._places(after)
            moved = tuple(a for a in usable if here.get(a) != there.get(a))
            if moved:
                yield (after, partial), self._price("collective-permute", dims, moved)

    def _alike(self, dims: Dims, usable: list[int]) -> Iterator[Dims]:
        """All dims with the same number of pieces, made of the axes given."""
        if not dims:
            yield ()
            return
        for dim in ((), *_ordered(usable)):
            if self._pieces(dim) == self._pieces(dims[0]):
                for rest in self._alike(dims[1:], [a for a in usable if a not in dim]):
                    yield (dim, *rest)

    def _price(self, kind: str, dims: Dims, axes: tuple[int, ...]) -> float:
        """Seconds of a collective over axes, where a device's piece of ``dims`` is the larger side."""
        num_bytes = math.prod(self._shape) * self._itemsize / math.prod(map(self._pieces, dims))
        key = kind, num_bytes, frozenset(axes)
        if key not in self._prices:
            self._prices[key] = collective_seconds(self._topology, kind, num_bytes, tuple(sorted(axes)))
        return self._prices[key]

    def _places(self, dims: Dims) -> dict[int, tuple[int, int]]:
        """Dimension of each axis, and by how many pieces its neighbours along the axis lie apart."""
        return {a: (d, self._pieces(dim[i + 1 :])) for d, dim in enumerate(dims) for i, a in enumerate(dim)}

    def _pieces(self, dim: tuple[int, ...]) -> int:
        return math.prod(self._sizes[a] for a in dim)

    def _divides(self, dims: Dims) -> bool:
        return all(size % self._pieces(dim) == 0 for size, dim in zip(self._shape, dims))

    def _idle(self, dims: Dims, partial: frozenset[int]) -> list[int]:
        used = {a for dim in dims for a in dim} | partial
        return [a for a in range(len(self._sizes)) if a not in used]


def _ordered(axes: list[int]) -> Iterator[tuple[int, ...]]:
    """Every non-empty selection of axes in every order."""
    for count in range(1, len(axes) + 1):
        yield from itertools.permutations(axes, count)


def _with(dims: Dims, changes: dict[int, tuple[int, ...]]) -> Dims:
    return tuple(changes.get(d, dim) for d, dim in enumerate(dims))


def _all_shardings(rank: int, num_axes: int) -> Iterator[Sharding]:
    """Every axis partial, idle, or at any place of any dimension."""
    for homes in itertools.product(range(-2, rank), repeat=num_axes):
        members = [[a for a in range(num_axes) if homes[a] == d] for d in range(rank)]
        partial = tuple(a for a in range(num_axes) if homes[a] == -2)
        for dims in itertools.product(*(list(itertools.permutations(m)) for m in members)):
            yield Sharding(tuple(dims), partial)
