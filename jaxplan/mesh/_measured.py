"""Chains of moves at measured prices: which of the chains that the search found is cheapest for one size.

The search prices moves by lines in the bytes. A profile is no line, so the few chains that are best by lines for some
size are compared once more with what was measured.
"""

from __future__ import annotations

from functools import lru_cache

from jaxplan.mesh._collectives import measured_seconds
from jaxplan.mesh._lines import Line
from jaxplan.mesh._moves import State
from jaxplan.mesh._puzzle import Puzzle
from jaxplan.mesh._search import envelope
from jaxplan.mesh._topology import Topology


@lru_cache(maxsize=2**18)
def best_measured(puzzle: Puzzle, unsplit: float, topology: Topology) -> tuple[float, int]:
    """(seconds, index into `envelope`) of the cheapest chain for so many bytes when no label splits them."""
    lines = envelope(puzzle, topology)
    return min((chain_seconds(line, puzzle, unsplit, topology), index) for index, line in enumerate(lines))


def chain_seconds(
    line: Line, puzzle: Puzzle, unsplit: float, topology: Topology, latency_share: float = 1.0
) -> float:
    """Seconds of a chain whose collectives pay a share of their latencies (see `collective_seconds`)."""
    seconds, before = 0.0, State(puzzle.source, puzzle.partial)
    for move in line.moves:
        if move.kind == "slice":
            seconds += topology.chip.launch_seconds
        else:
            # A gather is counted by what comes out of it, everything else by what goes in.
            counted = move.state if move.kind == "all-gather" else before
            num_bytes = unsplit / _pieces(counted, puzzle)
            sizes = _sizes(move.group, puzzle, topology)
            seconds += measured_seconds(topology, move.kind, num_bytes, sizes, latency_share)
        before = move.state
    return seconds


def _pieces(state: State, puzzle: Puzzle) -> int:
    pieces = 1
    for labels in state.dims:
        for label in labels:
            pieces *= puzzle.sizes[label]
    return pieces


def _sizes(group: tuple[int, ...], puzzle: Puzzle, topology: Topology) -> tuple[int, ...]:
    sizes = [1] * len(topology.levels)
    for label in group:
        sizes[puzzle.levels[label]] *= puzzle.sizes[label]
    return tuple(sizes)
