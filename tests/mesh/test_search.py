"""Paths of resharding against a plain Dijkstra over all layouts and steps (`benchmarks.reshard_referee`)."""

import itertools
import math
import random

import numpy as np
import pytest

from benchmarks.solvers.reshard_referee import Referee
from jaxplan.mesh import (
    Sharding,
    Topology,
    collective_seconds,
    reshard_bound,
    reshard_path,
    reshard_seconds,
    reshard_table,
)
from jaxplan.mesh._board import board, num_states
from jaxplan.mesh._guided import GuidedSolver
from jaxplan.mesh._puzzle import Puzzle, puzzle
from jaxplan.mesh._shortest import BoardSolver
from jaxplan.mesh._states import State

NODES = Topology.parse("h100:2x8")


def worst_ratio(
    topology: Topology, shape: tuple[int, ...], itemsize: int, sources: int | None = None
) -> float:
    """Seconds found over least seconds, at worst, from every layout or some of them to all others."""
    referee, worst = Referee(shape, itemsize, topology), 1.0
    shardings = referee.shardings()
    for source in shardings if sources is None else random.Random(0).sample(shardings, sources):
        least = referee.seconds_from(source)
        for target in shardings:
            found = reshard_seconds(source, target, shape, itemsize, topology)
            if target not in least:
                assert found == math.inf, (source, target)
            elif source != target:
                assert found >= least[target] * (1 - 1e-9), (source, target)
                worst = max(worst, found / least[target])
    return worst


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("v100:2x2", (64, 64)),
        ("v100:2x2", (4, 4, 4)),
        ("k80:2x4", (1024, 1024)),
        ("h100:2x4", (8, 8)),
        ("v5e:2x4", (64, 64)),
        ("k80:2x4", (64,)),
        ("a100:2x6", (12, 6)),  # a dimension that not every axis divides
        ("a100:2x6", (24, 36)),
        ("v5p:2x2x2", (8, 4)),
    ],
)
def test_every_pair_of_shardings_has_its_cheapest_path(name: str, shape: tuple[int, ...]) -> None:
    for num_bytes in (2**12, 2**28):
        itemsize = num_bytes // math.prod(shape) or 1
        assert worst_ratio(Topology.parse(name), shape, itemsize) < 1 + 1e-9


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "shape", "sources"),
    [
        ("k80:4x4", (64, 64), 12),
        ("h100:2x8", (16, 64, 2), 6),
        ("k80:2x4", (16, 8, 32), 20),
        ("k80:2x4", (2, 8, 4, 8), 12),
        ("v5p:2x2x4", (64, 64), 8),
        ("v5e:4x4", (16, 4), 12),
        ("h100:4x8", (32, 2), 2),
    ],
)
def test_drawn_shardings_have_their_cheapest_paths(name: str, shape: tuple[int, ...], sources: int) -> None:
    assert worst_ratio(Topology.parse(name), shape, 2**10, sources) < 1 + 1e-9


def test_idle_axes_split_a_sum_between_nodes() -> None:
    """Each of four devices of a node adds up a quarter across the nodes, and the sums are gathered."""
    machine, num_bytes = Topology.parse("k80:2x4"), 2**26
    path = reshard_path(Sharding(((), ()), (0,)), Sharding(((), ())), (4096, 4096), 4, machine)
    assert [step.kind for step in path.steps] == ["slice", "reduce-scatter", "all-gather"]
    assert path.collectives[0][1:] == ((0,), num_bytes // 4)
    assert path.collectives[1][2] == num_bytes
    assert path.seconds < collective_seconds(machine, "all-reduce", num_bytes, (0,)) / 2


@pytest.mark.parametrize("name", ["k80:2x4", "v5e:2x4", "a100:2x6"])
def test_a_path_costs_the_sum_of_its_steps(name: str) -> None:
    """Steps lead from source to target over layouts that divide, each a primitive step at the price of the referee."""
    machine, shape = Topology.parse(name), (24, 12, 8)
    referee, draw = Referee(shape, 2**12, machine), random.Random(1)
    shardings = referee.shardings()
    for source, target in (draw.sample(shardings, 2) for _ in range(150)):
        path = reshard_path(source, target, shape, 2**12, machine)
        if path.seconds == math.inf:
            assert not set(target.partial) <= set(source.partial)
            continue
        assert (path.shardings[0], path.shardings[-1]) == (source, target)
        assert [(s.source, s.target) for s in path.steps] == list(itertools.pairwise(path.shardings))
        steps = [referee.step_seconds(*pair) for pair in itertools.pairwise(path.shardings)]
        assert sum(steps) == pytest.approx(path.seconds, rel=1e-9), (source, target)
        assert path.seconds == pytest.approx(reshard_seconds(source, target, shape, 2**12, machine), rel=1e-9)


def test_a_table_holds_the_price_of_every_executed_path() -> None:
    shape, draw = (16, 16), random.Random(4)
    shardings = Referee(shape, 4, NODES).shardings()
    sources, targets = draw.sample(shardings, 12), [x for x in draw.sample(shardings, 12) if not x.partial]
    table = reshard_table(sources, targets, shape, 2**16, NODES)
    for i, source in enumerate(sources):
        for j, target in enumerate(targets):
            assert table[i, j] == pytest.approx(reshard_path(source, target, shape, 2**16, NODES).seconds)


@pytest.mark.parametrize("name", ["h100:8", "v5e:2x4", "a100:2x6"])
@pytest.mark.parametrize("latency_share", [1.0, 0.25])
def test_a_table_on_one_board_equals_prices_pair_by_pair(name: str, latency_share: float) -> None:
    """Partial sums and dimensions that are never split among them; pairs that nobody wants are infinite."""
    machine, shape, draw = Topology.parse(name), (24, 7, 12, 8), random.Random(3)
    shardings = Referee(shape, 4, machine).shardings()
    sources, targets = draw.sample(shardings, 40), draw.sample(shardings, 10)
    targets.append(sources[0])
    wanted = np.array([[draw.random() < 0.8 for _ in targets] for _ in sources])
    table = reshard_table(sources, targets, shape, 2**12, machine, latency_share, wanted)
    for i, source in enumerate(sources):
        for j, target in enumerate(targets):
            price = reshard_seconds(source, target, shape, 2**12, machine, latency_share)
            assert table[i, j] == (price if wanted[i, j] else math.inf), (source, target)


def test_a_detour_is_never_cheaper_and_more_bytes_never_are() -> None:
    machine, shape, draw = Topology.parse("k80:2x4"), (16, 8, 4), random.Random(7)
    shardings = Referee(shape, 4, machine).shardings()
    for _ in range(300):
        source, middle, target = draw.sample(shardings, 3)
        prices = [reshard_seconds(source, target, shape, 4**k, machine) for k in range(12)]
        assert prices == sorted(prices)
        detour = [
            reshard_seconds(*leg, shape, 2**12, machine) for leg in ((source, middle), (middle, target))
        ]
        assert reshard_seconds(source, target, shape, 2**12, machine) <= sum(detour) * (1 + 1e-9)


def test_shardings_that_differ_in_names_only_share_one_search() -> None:
    def of(source: Sharding, target: Sharding) -> Puzzle:
        return puzzle(source, target, (8, 8, 8), NODES)

    def key(found: Puzzle) -> tuple[object, ...]:
        return found.game, found.source, found.target

    first = of(Sharding(((1, 2), (), ())), Sharding(((1,), (2,), ())))
    assert key(of(Sharding(((3, 1), (), ())), Sharding(((3,), (1,), ())))) == key(first)
    across_nodes = of(Sharding(((1, 0), (), ())), Sharding(((1,), (0,), ())))
    assert key(across_nodes) != key(first)


@pytest.mark.parametrize(("dims", "labels"), [(0, 2), (1, 3), (2, 3), (3, 3), (2, 4)])
def test_a_board_has_every_sharding_and_every_step(dims: int, labels: int) -> None:
    """As many as the referee counts on one level of twos."""
    machine = Topology.parse(f"h100:{2**labels}")
    referee = Referee((2**labels,) * dims, 4, machine)
    caps, sizes = (2**labels,) * dims, (2,) * labels
    found, shardings = board(caps, sizes), referee.shardings()
    states = [found.table.state(row) for row in range(len(found.pieces))]
    assert len(states) == num_states(caps, sizes) == len(shardings)
    assert set(states) == {State(x.dims, x.partial) for x in shardings}
    assert [found.table.position(state) for state in states] == list(range(len(states)))
    reached: dict[State, set[State]] = {state: set() for state in states}
    for before, after in zip(found.all_steps.source.tolist(), found.all_steps.target.tolist()):
        reached[states[before]].add(states[after])
    for sharding in shardings:
        steps = {State(d, tuple(sorted(p))) for (d, p), _ in referee.steps_from(sharding)}
        assert reached[State(sharding.dims, sharding.partial)] == steps, sharding


def test_uneven_dimensions_have_fewer_shardings() -> None:
    """Axes of 3, 2 and 2 devices: a dimension of 10 elements is split by one two at most, one of 6 by a two and the
    three."""
    caps, machine = (2, 6), Topology.parse("a100:2x6")
    shardings = Referee((10, 6), 4, machine).shardings()
    assert num_states(caps, (2, 2, 3)) == len(board(caps, (2, 2, 3)).pieces) == len(shardings)


def test_ties_go_to_fewer_collectives() -> None:
    """Where both are priced alike, a sum over two axes is one all-reduce, and the same pair has the same path."""
    for source, target in [
        (Sharding(((), ()), (0, 1, 2)), Sharding(((), ()))),
        (Sharding(((0, 1), (2,))), Sharding(((), (0, 1, 2)))),
    ]:
        paths = {reshard_path(source, target, (64, 64), 4, Topology.parse("h100:8")) for _ in range(3)}
        assert len(paths) == 1 and len(paths.pop().collectives) <= 2


def _drawn(machine: Topology, rank: int, draw: random.Random) -> tuple[Sharding, Sharding]:
    axes = range(len(machine.axes))
    sides = []
    for partial in (draw.random() < 0.3, False):
        order = draw.sample(axes, len(axes))
        cuts = sorted(draw.choices(range(len(axes) + 1), k=rank))
        dims = [tuple(order[a:b]) for a, b in zip([0, *cuts], cuts)]
        sides.append(Sharding(tuple(dims), tuple(order[cuts[-1] :]) if partial else ()))
    return sides[0], sides[1]


class _Blind(GuidedSolver):
    """The same search without a bound: Dijkstra."""

    def bound(self, state: State, num_bytes: float) -> float:
        return 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h100:4x8", "v5p:2x4x4"])
def test_a_bound_leaves_the_answers_of_a_guided_search(name: str) -> None:
    machine, draw = Topology.parse(name), random.Random(5)
    for source, target in (_drawn(machine, 3, draw) for _ in range(5)):
        if source == target:
            continue
        found = puzzle(source, target, (32, 32, 32), machine)
        for size in (1e3, 1e9):
            guided, blind = (kind(found.game, found.target.dims) for kind in (GuidedSolver, _Blind))
            least = blind.seconds(found.source, size)
            assert guided.seconds(found.source, size) == pytest.approx(least, rel=1e-9)
            assert guided.bound(found.source, size) <= least * (1 + 1e-9)


def test_a_guided_search_is_never_cheaper_than_all_steps() -> None:
    """So its chains are real ones; its memory of other sources changes nothing."""
    shape, draw = (16, 16), random.Random(1)
    used: dict[object, GuidedSolver] = {}
    for source, target in (_drawn(NODES, 2, draw) for _ in range(40)):
        if source == target:
            continue
        found = puzzle(source, target, shape, NODES)
        every = BoardSolver(found.game, found.target)
        guided = used.setdefault((found.game, found.target), GuidedSolver(found.game, found.target.dims))
        for size in (1e2, 1e6, 1e10):
            seconds = guided.seconds(found.source, size)
            assert seconds >= every.seconds(every.position(found.source), size) * (1 - 1e-9)
            fresh = GuidedSolver(found.game, found.target.dims).seconds(found.source, size)
            assert seconds == pytest.approx(fresh, rel=1e-9)


def test_too_many_shardings_are_searched_towards_the_target() -> None:
    """Layouts of six axes mixed up: real steps, at the price of the table, no lower than its bound."""
    machine, shape, draw = Topology.parse("h100:8x8"), (64, 64, 64), random.Random(2)
    pairs = [_drawn(machine, 3, draw) for _ in range(5)]
    assert not all(puzzle(*pair, shape, machine).is_listed for pair in pairs)
    for source, target in pairs:
        seconds = reshard_seconds(source, target, shape, 2**10, machine)
        path = reshard_path(source, target, shape, 2**10, machine)
        assert path.seconds == pytest.approx(seconds, rel=1e-9)
        assert path.shardings[-1] == target and all(x.divides(shape, machine.axes) for x in path.shardings)
        assert 0 < reshard_bound(source, target, shape, 2**10, machine) <= seconds * (1 + 1e-9)


@pytest.mark.slow
def test_paths_on_more_axes_than_a_board_cost_the_sum_of_their_steps() -> None:
    """Axes that both layouts share, or that move together, are one label there."""
    machine, shape, draw = Topology.parse("k80:4x8"), (32, 32, 4), random.Random(3)
    referee = Referee(shape, 2**12, machine)
    for source, target in (draw.sample(referee.shardings(), 2) for _ in range(40)):
        path = reshard_path(source, target, shape, 2**12, machine)
        if path.seconds < math.inf and len(path.steps) <= 3:
            steps = [referee.step_seconds(*pair) for pair in itertools.pairwise(path.shardings)]
            assert sum(steps) == pytest.approx(path.seconds, rel=1e-9)
