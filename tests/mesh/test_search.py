"""Search over boards and towards targets: against exhaustive search, and against each other."""

import math
import random
import sys
from pathlib import Path as FilePath

import pytest

from jaxplan.mesh import Layout, Topology, reshard_bound, reshard_path, reshard_seconds, reshard_table
from jaxplan.mesh._canonical import canonical
from jaxplan.mesh._moves import Rules, State
from jaxplan.mesh._search import envelope
from jaxplan.mesh._search_guided import GuidedSearch
from jaxplan.mesh._search_tables import TableSearch

sys.path.insert(0, str(FilePath(__file__).parent))
import brute_force

NODES = Topology.parse("h100:2x8")
SIZES = [10.0**k for k in range(1, 12)]


def _puzzles(count: int, seed: int, shape: tuple[int, ...] = (16, 16)):
    """Canonical puzzles of random pairs of layouts in which four axes move."""
    layouts = [x for x in brute_force.all_layouts(len(shape), 4) if x.divides(shape, NODES.axes)]
    draw, found = random.Random(seed), []
    while len(found) < count:
        source, target = draw.choice(layouts), draw.choice(layouts)
        if set(target.partial) <= set(source.partial) and source != target:
            puzzle = canonical(source, target, shape, NODES).puzzle
            if len(puzzle.sizes) == 4:
                found.append((source, target, puzzle))
    return found


def test_four_moving_axes_are_as_cheap_as_exhaustive_search() -> None:
    for source, target, _ in _puzzles(6, seed=0):
        for itemsize in (4, 2**20):
            found = reshard_seconds(source, target, (16, 16), itemsize, NODES)
            least = brute_force.least_seconds(source, target, (16, 16), itemsize, NODES)
            assert found == pytest.approx(least, rel=1e-6), (source, target)


def test_moves_towards_the_target_are_some_of_all_moves() -> None:
    """So the guided search is never cheaper, and its chains are real ones."""
    for _, _, puzzle in _puzzles(25, seed=1):
        guided = GuidedSearch(
            Rules(caps=puzzle.caps, sizes=puzzle.sizes, levels=puzzle.levels, target=puzzle.target), NODES
        )
        lines = envelope(puzzle, NODES)
        for size in SIZES:
            line = guided.shortest(State(puzzle.source, puzzle.partial), size)
            least = min(x.fixed + x.slope * size for x in lines)
            assert line.fixed + line.slope * size >= least * (1 - 1e-9)


def test_an_envelope_misses_no_size() -> None:
    """The cheapest of its lines is what a search at that one size finds."""
    for _, _, puzzle in _puzzles(25, seed=2):
        tables = TableSearch(puzzle.rules, State(puzzle.target, ()), NODES)
        lines = envelope(puzzle, NODES)
        for size in SIZES:
            alone = tables.cheaper(State(puzzle.source, puzzle.partial), size, math.inf)
            assert alone is not None
            least = min(x.fixed + x.slope * size for x in lines)
            assert alone.fixed + alone.slope * size == pytest.approx(least, rel=1e-9)
            assert tables.cheaper(State(puzzle.source, puzzle.partial), size, least) is None


def test_a_search_that_remembers_answers_as_a_fresh_one() -> None:
    """Ends of a guided search are kept for other sources of the same target."""
    puzzles = _puzzles(12, seed=3, shape=(16, 4))
    for _, _, puzzle in puzzles:
        rules = Rules(caps=puzzle.caps, sizes=puzzle.sizes, levels=puzzle.levels, target=puzzle.target)
        used = GuidedSearch(rules, NODES)
        replicated = State(((),) * len(puzzle.caps), ())
        for size in (1.0, 1e15):
            used.shortest(replicated, size)
            again = used.shortest(State(puzzle.source, puzzle.partial), size)
            fresh = GuidedSearch(rules, NODES).shortest(State(puzzle.source, puzzle.partial), size)
            assert again.fixed + again.slope * size == pytest.approx(fresh.fixed + fresh.slope * size)


def test_a_table_holds_the_price_of_every_executed_path() -> None:
    shape = (16, 16)
    layouts = [x for x in brute_force.all_layouts(2, 4) if x.divides(shape, NODES.axes)]
    draw = random.Random(4)
    sources, targets = draw.sample(layouts, 12), [x for x in draw.sample(layouts, 12) if not x.partial]
    table = reshard_table(sources, targets, shape, 2**16, NODES)
    for i, source in enumerate(sources):
        for j, target in enumerate(targets):
            assert table[i, j] == pytest.approx(reshard_path(source, target, shape, 2**16, NODES).seconds)


def test_dimensions_and_axes_of_one_kind_come_to_one_puzzle() -> None:
    def puzzle(source: Layout, target: Layout):
        return canonical(source, target, (8, 8, 8), NODES).puzzle

    first = puzzle(Layout(((1, 2), (), ())), Layout(((1,), (2,), ())))
    assert puzzle(Layout(((), (), (3, 1))), Layout(((1,), (), (3,)))) == first
    across_nodes = puzzle(Layout(((1, 0), (), ())), Layout(((1,), (0,), ())))
    assert across_nodes != first


def test_a_large_puzzle_is_solved_at_the_size_that_is_asked_for() -> None:
    """Orders of five axes reversed and spread: as cheap as the envelope of all sizes, and real steps at that price."""
    machine, shape = Topology.parse("h100:4x8"), (32, 32)
    across = Layout(((0, 1, 2, 3, 4), ()))
    targets = [Layout(((4, 1, 3), (2, 0))), Layout(((), (4, 0, 3, 1, 2))), Layout(((1, 3), (4,)))]
    sources = [across, Layout(((2,), (0,)), (1, 3, 4)), Layout(((3,), (1, 0)), (2, 4))]
    for source in sources:
        for target in targets:
            found = canonical(source, target, shape, machine)
            assert found.puzzle.large
            for itemsize in (4, 2**12, 2**24):
                unsplit = 32 * 32 * itemsize / found.pieces
                least = min(x.fixed + x.slope * unsplit for x in envelope(found.puzzle, machine))
                path = reshard_path(source, target, shape, itemsize, machine)
                seconds = reshard_seconds(source, target, shape, itemsize, machine)
                bound = reshard_bound(source, target, shape, itemsize, machine)
                assert seconds == pytest.approx(least, rel=1e-9) and 0 < bound <= seconds
                assert path.seconds == pytest.approx(seconds, rel=1e-9) and path.layouts[-1] == target


class _Blind(GuidedSearch):
    """The same search without a bound: Dijkstra."""

    def bound(self, state: State) -> tuple[float, float]:
        return 0.0, 0.0


@pytest.mark.parametrize("name", ["h100:4x8", "v5p:2x4x4"])
def test_a_bound_leaves_the_answers_of_a_guided_search(name: str) -> None:
    machine, shape, draw = Topology.parse(name), (32, 32, 32), random.Random(5)
    axes = range(len(machine.axes))
    for _ in range(12):
        places = [draw.sample(axes, len(axes)) for _ in range(2)]
        cuts = [sorted(draw.choices(range(len(axes) + 1), k=3)) for _ in range(2)]
        source, target = (
            Layout((tuple(of[:a]), tuple(of[a:b]), tuple(of[b:c])), tuple(of[c:]) if partial else ())
            for of, (a, b, c), partial in zip(places, cuts, (draw.random() < 0.3, False))
        )
        if source == target:
            continue
        puzzle = canonical(source, target, shape, machine).puzzle
        rules = Rules(caps=puzzle.caps, sizes=puzzle.sizes, levels=puzzle.levels, target=puzzle.target)
        start = State(puzzle.source, puzzle.partial)
        for size in (1e3, 1e7, 1e10):
            found = GuidedSearch(rules, machine).shortest(start, size)
            blind = _Blind(rules, machine).shortest(start, size)
            assert found.fixed + found.slope * size == pytest.approx(blind.fixed + blind.slope * size, rel=1e-9)
            fixed, slope = GuidedSearch(rules, machine).bound(start)
            assert fixed + slope * size <= (blind.fixed + blind.slope * size) * (1 + 1e-9)
