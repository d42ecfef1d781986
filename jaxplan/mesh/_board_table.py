"""Prices from many shardings to one, where all shardings of the tensor are on one board: a look-up in an array."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxplan.mesh._puzzle import puzzle
from jaxplan.mesh._sharding import Sharding
from jaxplan.mesh._shortest import BoardSolver, board_solver
from jaxplan.mesh._states import Ints
from jaxplan.mesh._topology import Topology


def places_of(shardings: Sequence[Sharding], num_axes: int) -> Ints:
    """(S, 2, axes): the dimension that each axis splits and its place there, major first.

    The dimension after the last stands for an axis that holds copies, the one after that for one of partial sums.
    """
    return np.array([_places(sharding, num_axes) for sharding in shardings], dtype=np.int64)


@lru_cache(maxsize=2**16)
def _places(sharding: Sharding, num_axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    homes, places = [sharding.rank] * num_axes, [0] * num_axes
    for axis in sharding.partial:
        homes[axis] = sharding.rank + 1
    for d, dim in enumerate(sharding.dims):
        for place, axis in enumerate(dim):
            homes[axis], places[axis] = d, place
    return tuple(homes), tuple(places)


class Goal(NamedTuple):
    """A sharding as the goal on a board.

    Attributes:
      solver: of the board, towards it.
      home_slots: (rank + 2,) first slot of the board for each dimension of the tensor, for copies and for partial sums.
      digits: (axes,) the digit of each axis in the code of a state.
    """

    solver: BoardSolver
    home_slots: Ints
    digits: Ints

    def seconds(
        self, places: Ints, num_bytes: float, latency_share: float = 1.0
    ) -> npt.NDArray[np.float64]:
        """(S,) seconds of the cheapest chain from the shardings of these `places_of`; infinite where there is none.

        ``latency_share``: see `reshard_seconds`.
        """
        codes = (self.home_slots[places[:, 0]] + places[:, 1]) @ self.digits
        rows = self.solver.positions(codes)
        seconds = self.solver.seconds_from(rows, num_bytes)
        if latency_share == 1:
            return seconds
        for i in np.flatnonzero(np.isfinite(seconds)).tolist():
            chain = self.solver.chain(int(rows[i]), num_bytes)
            seconds[i] = chain.seconds - (1 - latency_share) * chain.latency
        return seconds


@lru_cache(maxsize=2**14)
def goal_of(target: Sharding, caps: tuple[int, ...], topology: Topology) -> Goal:
    """A target that divides ``caps``; axes that it does not use are labels in their own order, which are alike."""
    found = puzzle(target, target, caps, topology)
    solver = board_solver(found.game, found.target)
    num_labels = len(found.game.sizes)
    home_slots = np.zeros(len(caps) + 2, dtype=np.int64)  # no axis splits a dimension that is not on the board
    for at, d in enumerate((*found.dims, len(caps), len(caps) + 1)):
        home_slots[d] = at * num_labels
    digits = np.zeros(num_labels, dtype=np.int64)
    for label, (axis,) in enumerate(found.axes_of_label):
        digits[axis] = solver.digit(label)
    return Goal(solver, home_slots, digits)
