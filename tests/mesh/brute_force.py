"""Every primitive step on every layout, written out plainly: the ground truth for resharding paths."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator

from jaxplan.mesh import Layout, Topology, collective_seconds


def single_steps(
    layout: Layout, shape: tuple[int, ...], itemsize: int, topology: Topology
) -> Iterator[tuple[Layout, float]]:
    """(layout, seconds) of all that one step reaches, over all axes of the topology."""
    axes = range(len(topology.axes))
    dims, partial = layout.dims, layout.partial
    unused = [a for a in axes if a not in layout.used]

    def num_bytes(of: Layout) -> int:
        return math.prod(shape) * itemsize // math.prod(of.num_splits(topology.axes))

    def put(changes: dict[int, tuple[int, ...]], still_partial: tuple[int, ...] = partial) -> Layout:
        return Layout(tuple(changes.get(d, dim) for d, dim in enumerate(dims)), still_partial)

    def price(kind: str, size: int, over: tuple[int, ...]) -> float:
        return collective_seconds(topology, kind, size, over)

    here = num_bytes(layout)
    for d, dim in enumerate(dims):
        for count in range(1, len(unused) + 1):
            for added in itertools.permutations(unused, count):
                yield put({d: dim + added}), topology.chip.launch_seconds
        for keep in range(len(dim)):
            after = put({d: dim[:keep]})
            yield after, price("all-gather", num_bytes(after), dim[keep:])
            for e in range(len(dims)):
                if e != d:
                    yield put({d: dim[:keep], e: dims[e] + dim[keep:]}), price("all-to-all", here, dim[keep:])
    for count in range(1, len(partial) + 1):
        for summed in itertools.permutations(partial, count):
            left = tuple(a for a in partial if a not in summed)
            yield put({}, left), price("all-reduce", here, summed)
            for d, dim in enumerate(dims):
                yield put({d: dim + summed}, left), price("reduce-scatter", here, summed)
    yield from (
        (after, price("collective-permute", here, moved)) for after, moved in permutes(layout, topology)
    )


def permutes(layout: Layout, topology: Topology) -> Iterator[tuple[Layout, tuple[int, ...]]]:
    """All layouts of the same local shape, if all axes are of one size, with the axes that change place."""
    axes = [a for a in range(len(topology.axes)) if a not in layout.partial]
    lengths = [len(dim) for dim in layout.dims]
    for order in itertools.permutations(axes, sum(lengths)):
        rest = iter(order)
        after = Layout(tuple(tuple(itertools.islice(rest, n)) for n in lengths), layout.partial)
        moved = {a for a in axes if _place(layout, a) != _place(after, a)}
        if moved:
            yield after, tuple(sorted(moved))


def _place(layout: Layout, axis: int) -> tuple[int, int] | None:
    return next(((d, dim.index(axis)) for d, dim in enumerate(layout.dims) if axis in dim), None)


def all_seconds(
    source: Layout,
    shape: tuple[int, ...],
    itemsize: int,
    topology: Topology,
    allowed: Callable[[Layout], bool] = lambda layout: True,
) -> dict[Layout, float]:
    """Uniform-cost search from one source to everything it reaches."""
    best = {source: 0.0}
    heap: list[tuple[float, int, Layout]] = [(0.0, 0, source)]
    counter = itertools.count(1)
    while heap:
        seconds, _, layout = heapq.heappop(heap)
        if seconds > best[layout]:
            continue
        for after, price in single_steps(layout, shape, itemsize, topology):
            new = seconds + price
            if new < best.get(after, math.inf) and after.divides(shape, topology.axes) and allowed(after):
                best[after] = new
                heapq.heappush(heap, (new, next(counter), after))
    return best


def all_layouts(rank: int, num_axes: int) -> list[Layout]:
    """Every layout of a rank: every axis partial, unused, or at any place of any dimension."""
    layouts = []
    for homes in itertools.product(range(-2, rank), repeat=num_axes):
        members = [[a for a in range(num_axes) if homes[a] == d] for d in range(rank)]
        partial = tuple(a for a in range(num_axes) if homes[a] == -2)
        for dims in itertools.product(*(list(itertools.permutations(m)) for m in members)):
            layouts.append(Layout(tuple(dims), partial))
    return layouts


def least_seconds(
    source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, topology: Topology
) -> float:
    """The cheapest path that moves only axes whose place differs, within the dimensions that differ."""
    movable = {a for a in (*source.used, *target.used) if _home(source, a) != _home(target, a)}

    def allowed(layout: Layout) -> bool:
        return all(
            a in movable or _home(layout, a) == _home(source, a) for a in range(len(topology.axes))
        ) and all(layout.dims[d] == dim for d, dim in enumerate(source.dims) if dim == target.dims[d])

    return all_seconds(source, shape, itemsize, topology, allowed).get(target, math.inf)


def _home(layout: Layout, axis: int) -> object:
    """What lies major to an axis, and where: it moves if any of that changes."""
    if axis in layout.partial:
        return "partial"
    return next(((d, dim[: dim.index(axis)]) for d, dim in enumerate(layout.dims) if axis in dim), None)
