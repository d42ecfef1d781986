"""Resharding: the cheapest chain of primitive steps from one sharding to another, and its price.

Steps (each one collective at most), as a fully manual program executes them:

  slice               append axes to the minor place of a dimension; no communication
  all-gather          drop minor-most axes of a dimension
  all-to-all          move minor-most axes of a dimension to the minor place of another, order kept
  collective-permute  any other axes, or order of axes, with the same local shape
  reduce-scatter      sum over partial axes, which are appended in the order given to a dimension
  all-reduce          sum over partial axes

TensorOpt, section 4.2, calls this tensor rescheduling and finds it by shortest path too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from jaxplan.errors import ArgumentError
from jaxplan.mesh._board_table import goal_of, places_of
from jaxplan.mesh._collectives import collective_seconds
from jaxplan.mesh._guided import GuidedSolver
from jaxplan.mesh._puzzle import Puzzle, is_on_one_board, puzzle
from jaxplan.mesh._sharding import Sharding
from jaxplan.mesh._shortest import BoardSolver, Chain, Game, board_solver
from jaxplan.mesh._states import Dims, State
from jaxplan.mesh._topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One primitive step.

    Attributes:
      kind: `slice`, `all-gather`, `all-to-all`, `collective-permute`, `reduce-scatter` or `all-reduce`.
      axes: atomic axes that move, major to minor as they stand (or will stand) in the dimension; for a
        permute all axes that change place.
      dim: the dimension sliced, gathered, scattered to or moved from; None for a permute and an all-reduce.
      to_dim: the dimension that an all-to-all moves to, else None.
      source, target: the shardings before and after.
    """

    kind: str
    axes: tuple[int, ...]
    dim: int | None
    to_dim: int | None
    source: Sharding
    target: Sharding

    def __repr__(self) -> str:
        return f"{self.kind}: {self.source!r} -> {self.target!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A chain of steps.

    Attributes:
      steps: in order; none when the shardings are equal.
      shardings: the source, the sharding after each step; the last is the target.
      seconds: of all steps; infinite when there is no path (an unsplit value never becomes partial).
      collectives: (kind, axes, bytes per device) of the steps that communicate, bytes as in
        `collective_seconds`.
      peak_bytes: the largest sharding strictly between source and target, bytes per device; 0 when there is
        none.
    """

    steps: tuple[Step, ...]
    shardings: tuple[Sharding, ...]
    seconds: float
    collectives: tuple[tuple[str, tuple[int, ...], int], ...]
    peak_bytes: int


Solver = BoardSolver | GuidedSolver


def reshard_seconds(
    source: Sharding,
    target: Sharding,
    shape: Sequence[int],
    itemsize: int,
    topology: Topology,
    latency_share: float = 1.0,
) -> float:
    """Seconds of the cheapest path: `reshard_path(...).seconds` without the path, for tables of prices.

    ``latency_share``: fraction of its latencies that the path pays, because its collectives are combined with others.
    """
    caps, num_bytes = _caps(shape, topology), math.prod(shape) * itemsize
    return _pair_seconds(source, target, caps, num_bytes, topology, latency_share)


def reshard_bound(
    source: Sharding, target: Sharding, shape: Sequence[int], itemsize: int, topology: Topology
) -> float:
    """Seconds that `reshard_seconds` is not below: without a search where that would be long, else these seconds."""
    caps, num_bytes = _caps(shape, topology), math.prod(shape) * itemsize
    problem = None if source == target else _problem(source, target, caps, topology)
    if problem is None:
        return _pair_seconds(source, target, caps, num_bytes, topology)
    return problem.solver.bound(problem.place, num_bytes / problem.puzzle.pieces)


def reshard_table(
    sources: Sequence[Sharding],
    targets: Sequence[Sharding],
    shape: Sequence[int],
    itemsize: int,
    topology: Topology,
    latency_share: float = 1.0,
    wanted: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.float64]:
    """`reshard_seconds` of every pair, shape (sources, targets); infinite for pairs that are not ``wanted``."""
    caps, num_bytes = _caps(shape, topology), math.prod(shape) * itemsize
    if topology.axes and is_on_one_board(caps, topology):  # one device has no board
        return _board_table(sources, targets, caps, num_bytes, topology, latency_share, wanted)
    table = np.full((len(sources), len(targets)), math.inf)
    for i, source in enumerate(sources):
        columns = range(len(targets)) if wanted is None else np.flatnonzero(wanted[i]).tolist()
        for j in columns:
            table[i, j] = _pair_seconds(source, targets[j], caps, num_bytes, topology, latency_share)
    return table


def _board_table(
    sources: Sequence[Sharding],
    targets: Sequence[Sharding],
    caps: tuple[int, ...],
    num_bytes: int,
    topology: Topology,
    latency_share: float,
    wanted: npt.NDArray[np.bool_] | None,
) -> npt.NDArray[np.float64]:
    """`reshard_table` of shardings that are all on one board: a column at once."""
    for sharding in (*sources, *targets):
        _check_divides(sharding, caps, topology)
    places = places_of(sources, len(topology.axes))
    table = np.full((len(sources), len(targets)), math.inf)
    for j, target in enumerate(targets):
        rows = np.arange(len(sources)) if wanted is None else np.flatnonzero(wanted[:, j])
        if len(rows):
            table[rows, j] = goal_of(target, caps, topology).seconds(places[rows], num_bytes, latency_share)
    return table


def _pair_seconds(
    source: Sharding,
    target: Sharding,
    caps: tuple[int, ...],
    num_bytes: int,
    topology: Topology,
    latency_share: float = 1.0,
) -> float:
    if source == target:
        return 0.0
    problem = _problem(source, target, caps, topology)
    if problem is None:
        return math.inf
    unsplit = num_bytes / problem.puzzle.pieces
    if latency_share == 1:
        return problem.solver.seconds(problem.place, unsplit)
    chain = problem.solver.chain(problem.place, unsplit)
    return chain.seconds - (1 - latency_share) * chain.latency


def reshard_path(
    source: Sharding, target: Sharding, shape: Sequence[int], itemsize: int, topology: Topology
) -> Path:
    """The cheapest path from `source` to `target` for a tensor of the global `shape`.

    Partial axes of the source that the target does not keep are summed; the target may keep any of them. All
    shardings on the way divide the shape. Ties go to fewer collectives, then fewer bytes, then the order of
    steps above.

    Raises:
      ArgumentError: a sharding has another rank than the shape, or does not divide it.

    Example:
      >>> axes = Topology.parse("h100:8").axes
      >>> rows, columns = Sharding(((0, 1, 2), ())), Sharding(((), (0, 1, 2)))
      >>> [step.kind for step in reshard_path(rows, columns, (64, 512), 2, Topology.parse("h100:8")).steps]
      ['all-to-all']
    """
    return _path(source, target, tuple(shape), itemsize, topology)


@lru_cache(maxsize=2**16)
def _path(source: Sharding, target: Sharding, shape: tuple[int, ...], itemsize: int, topology: Topology) -> Path:
    if source == target:
        return Path(steps=(), shardings=(source,), seconds=0.0, collectives=(), peak_bytes=0)
    problem = _problem(source, target, _caps(shape, topology), topology)
    if problem is None:
        return Path(steps=(), shardings=(source,), seconds=math.inf, collectives=(), peak_bytes=0)
    puzzle, num_bytes = problem.puzzle, math.prod(shape) * itemsize
    chain = problem.solver.chain(problem.place, num_bytes / puzzle.pieces)
    return _priced(_steps(chain, source, puzzle), source, num_bytes, topology)


def _priced(steps: tuple[Step, ...], source: Sharding, total_bytes: int, topology: Topology) -> Path:
    shardings = (source, *(step.target for step in steps))
    sizes = [total_bytes // math.prod(sharding.num_splits(topology.axes)) for sharding in shardings]
    collectives = tuple(
        (step.kind, step.axes, max(before, after) if step.kind == "all-gather" else before)
        for step, before, after in zip(steps, sizes, sizes[1:])
        if step.kind != "slice"
    )
    seconds = (len(steps) - len(collectives)) * topology.chip.launch_seconds
    seconds += sum(collective_seconds(topology, kind, size, axes) for kind, axes, size in collectives)
    return Path(
        steps=steps,
        shardings=shardings,
        seconds=seconds,
        collectives=collectives,
        peak_bytes=max(sizes[1:-1], default=0),
    )


def _caps(shape: Sequence[int], topology: Topology) -> tuple[int, ...]:
    """All that divisibility asks of a dimension: its greatest common divisor with the number of devices."""
    num_devices = topology.num_devices
    return tuple([math.gcd(size, num_devices) for size in shape])


class _Problem(NamedTuple):
    """A puzzle, its solver, and the source as the solver has it."""

    puzzle: Puzzle
    solver: Solver
    place: Any


@lru_cache(maxsize=2**20)
def _problem(source: Sharding, target: Sharding, caps: tuple[int, ...], topology: Topology) -> _Problem | None:
    """The puzzle of two shardings; None where there is no path."""
    _check_divides(source, caps, topology)
    _check_divides(target, caps, topology)
    if not set(target.partial) <= set(source.partial):
        return None
    found = puzzle(source, target, caps, topology)
    solver = _solver(found.game, found.target, found.is_listed)
    return _Problem(found, solver, solver.position(found.source))


def _solver(game: Game, target: State, is_listed: bool) -> Solver:
    return board_solver(game, target) if is_listed else _guided_solver(game, target.dims)


@lru_cache(maxsize=2**12)
def _guided_solver(game: Game, target: Dims) -> GuidedSolver:
    return GuidedSolver(game, target)


@lru_cache(maxsize=2**16)
def _check_divides(sharding: Sharding, caps: tuple[int, ...], topology: Topology) -> None:
    if not sharding.divides(caps, topology.axes):
        raise ArgumentError(
            f"sharding {sharding.describe(topology.axes)} of {topology.name} does not divide a tensor of "
            f"{len(caps)} dimensions whose common divisors with the devices are {caps}; "
            "choose shardings by Sharding.divides"
        )


def _steps(chain: Chain, source: Sharding, puzzle: Puzzle) -> tuple[Step, ...]:
    """The chain on the real axes and dimensions."""
    steps: list[Step] = []
    for kind, group, state in chain.steps:
        dims = list(source.dims)
        for d, prefix, labels in zip(puzzle.dims, puzzle.prefixes, state.dims):
            dims[d] = prefix + puzzle.axes(labels)
        after = Sharding(tuple(dims), tuple(sorted(puzzle.kept + puzzle.axes(state.partial))))
        steps.append(_step(kind, steps[-1].target if steps else source, after, puzzle.axes(group)))
    return tuple(steps)


def _step(kind: str, before: Sharding, after: Sharding, group: tuple[int, ...]) -> Step:
    """The step that turns one sharding into another: its axes are those that a dimension loses or gets."""
    pairs = list(enumerate(zip(before.dims, after.dims)))
    shorter = next((d for d, (old, new) in pairs if len(new) < len(old)), None)
    longer = next((d for d, (old, new) in pairs if len(new) > len(old)), None)
    axes, dim, to_dim = tuple(sorted(group)), None, None
    if kind in ("all-gather", "all-to-all"):
        assert shorter is not None
        axes, dim = before.dims[shorter][len(after.dims[shorter]) :], shorter
        to_dim = longer
    elif kind in ("slice", "reduce-scatter"):
        assert longer is not None
        axes, dim = after.dims[longer][len(before.dims[longer]) :], longer
    return Step(kind=kind, axes=axes, dim=dim, to_dim=to_dim, source=before, target=after)
