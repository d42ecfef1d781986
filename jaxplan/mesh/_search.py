"""The cheapest chains of moves for a puzzle, for tensors of every size at once.

The price of a chain is a line in the bytes of the tensor: `envelope` finds every chain that is cheapest for
some size, each by a shortest path at one size, so a price is exact and a puzzle is solved a few times in all.
What is learnt on the way to a target is kept for all sources. Puzzles come with few sizes each, mostly one: those of
many labels are solved at the sizes that are asked for (`cheapest`), the others near them (`lines_near`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from jaxplan.mesh._lines import LEAST_BYTES, MOST_BYTES, ROUNDING_TICKS, TICKS_PER_SECOND, Line
from jaxplan.mesh._moves import Rules, State
from jaxplan.mesh._puzzle import Puzzle
from jaxplan.mesh._search_guided import GuidedSearch
from jaxplan.mesh._search_tables import TableSearch, size_above
from jaxplan.mesh._topology import Topology


@lru_cache(maxsize=2**17)
def envelope(puzzle: Puzzle, topology: Topology) -> tuple[Line, ...]:
    """The chains that are cheapest for some size, by ascending size."""
    source = State(puzzle.source, puzzle.partial)
    if puzzle.large:
        guided = _guided(puzzle.rules, topology)
        ends = [guided.shortest(source, LEAST_BYTES), guided.shortest(source, MOST_BYTES)]
        return _hull(ends, lambda num_bytes, seconds: guided.shortest(source, num_bytes))
    tables = _tables(puzzle.rules, State(puzzle.target, ()), topology)
    return _hull(tables.lines(source), lambda num_bytes, seconds: tables.cheaper(source, num_bytes, seconds))


def lines_near(puzzle: Puzzle, num_bytes: float, topology: Topology) -> tuple[Line, ...]:
    """The lines of the envelope of a small puzzle between two sizes of a grid with this one in between."""
    return _lines_below(puzzle, size_above(num_bytes), topology)


@lru_cache(maxsize=2**17)
def _lines_below(puzzle: Puzzle, size: int, topology: Topology) -> tuple[Line, ...]:
    source = State(puzzle.source, puzzle.partial)
    tables = _tables(puzzle.rules, State(puzzle.target, ()), topology)
    ends = tables.line(source, size - 1), tables.line(source, size)
    return tuple(_between(*ends, lambda num_bytes, seconds: tables.cheaper(source, num_bytes, seconds)))


@lru_cache(maxsize=2**17)
def cheapest(puzzle: Puzzle, num_bytes: float, topology: Topology) -> Line:
    """The chain that is cheapest for one size, of a large puzzle."""
    return _guided(puzzle.rules, topology).shortest(State(puzzle.source, puzzle.partial), num_bytes)


def least_seconds(puzzle: Puzzle, num_bytes: float, topology: Topology) -> float:
    """A lower bound of the price of a large puzzle, without a search."""
    fixed, slope = _guided(puzzle.rules, topology).bound(State(puzzle.source, puzzle.partial))
    return fixed + slope * num_bytes


@lru_cache(maxsize=2**12)
def _guided(rules: Rules, topology: Topology) -> GuidedSearch:
    return GuidedSearch(rules, topology)


@lru_cache(maxsize=2**12)
def _tables(rules: Rules, goal: State, topology: Topology) -> TableSearch:
    return TableSearch(rules, goal, topology)


def _hull(lines: list[Line], cheaper: Callable[[float, float], Line | None]) -> tuple[Line, ...]:
    """Complete lines that are cheapest at ascending sizes."""
    found = lines[:1]
    for line in lines[1:]:
        found = found[:-1] + _between(found[-1], line, cheaper)
    return tuple(found)


def _between(low: Line, high: Line, cheaper: Callable[[float, float], Line | None]) -> list[Line]:
    """Dichotomy: a chain below both lines at their crossing, if any, splits the range."""
    if low.moves == high.moves or low.slope <= high.slope:
        return [low]
    crossing = (high.fixed - low.fixed) / (low.slope - high.slope)
    if crossing <= LEAST_BYTES:
        return [high]
    seconds = low.fixed + low.slope * crossing
    middle = cheaper(crossing, seconds)
    if middle is None or middle.slope in (low.slope, high.slope):
        return [low, high]
    if (seconds - middle.fixed - middle.slope * crossing) * TICKS_PER_SECOND <= ROUNDING_TICKS:
        return [low, high]
    return _between(low, middle, cheaper)[:-1] + _between(middle, high, cheaper)
