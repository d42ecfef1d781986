"""Schedules of pipelines: the order in which each rank works on the micro-batches of its stages.

Letters: ``p`` ranks, ``m`` micro-batches, ``v`` stages of each rank (chunks), so that stage ``s`` of ``p * v`` is on
rank ``s % p``. A schedule is a function of the rank; `jaxplan.simulate._pipeline` runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from jaxplan.errors import ArgumentError

Pass = Literal["forward", "backward"]


class StageTask(NamedTuple):
    """One pass of one micro-batch through one stage."""

    stage: int
    micro_batch: int
    phase: Pass


Schedule = Callable[[int], list[StageTask]]
"""Rank -> its tasks, in the order in which it runs them."""


def gpipe(num_ranks: int, num_micro_batches: int) -> Schedule:
    """All micro-batches forward, then all backward, the last one first.

    Source: GPipe, https://arxiv.org/abs/1811.06965, section 2.3.

    >>> [(task.phase[0], task.micro_batch) for task in gpipe(2, 2)(0)]
    [('f', 0), ('f', 1), ('b', 1), ('b', 0)]
    """
    _check(num_ranks, num_micro_batches)

    def of_rank(rank: int) -> list[StageTask]:
        order = range(num_micro_batches)
        forward = [StageTask(rank, k, "forward") for k in order]
        return forward + [StageTask(rank, k, "backward") for k in reversed(order)]

    return of_rank


def one_f_one_b(num_ranks: int, num_micro_batches: int) -> Schedule:
    """One forward, one backward: a rank holds no more micro-batches than ranks follow it, itself included.

    Source: PipeDream-flush (https://arxiv.org/abs/2006.09503, section 3.2); Megatron-LM
    (https://arxiv.org/abs/2104.04473, section 2.2.1).

    >>> [(task.phase[0], task.micro_batch) for task in one_f_one_b(2, 3)(0)]
    [('f', 0), ('f', 1), ('b', 0), ('f', 2), ('b', 1), ('b', 2)]
    """
    _check(num_ranks, num_micro_batches)

    def of_rank(rank: int) -> list[StageTask]:
        everything = [[StageTask(rank, k, phase) for k in range(num_micro_batches)] for phase in _PHASES]
        return _alternating(*everything, warm_up=num_ranks - rank - 1)

    return of_rank


def interleaved(num_ranks: int, num_micro_batches: int, num_chunks: int) -> Schedule:
    """One forward, one backward, with several stages on each rank; each round has as many micro-batches as ranks.

    Source: Megatron-LM, https://arxiv.org/abs/2104.04473, section 2.2.2.

    Raises:
      ArgumentError: micro-batches are not a multiple of the ranks.

    >>> [(task.stage, task.micro_batch) for task in interleaved(2, 2, 2)(0)[:4]]
    [(0, 0), (0, 1), (2, 0), (2, 1)]
    """
    _check(num_ranks, num_micro_batches)
    if num_chunks < 1 or (num_chunks > 1 and num_micro_batches % num_ranks):
        raise ArgumentError(
            f"an interleaved schedule of {num_micro_batches} micro-batches, {num_ranks} ranks of {num_chunks} stages.\n"
            "  expected: a multiple of the ranks as micro-batches, and at least one stage each\n"
            f"  fix: {max(num_ranks, num_micro_batches // num_ranks * num_ranks)} micro-batches"
        )
    if num_chunks == 1:
        return one_f_one_b(num_ranks, num_micro_batches)

    def of_rank(rank: int) -> list[StageTask]:
        rounds = range(0, num_micro_batches, num_ranks)
        turns = [(chunk, k) for chunk in range(num_chunks) for k in range(num_ranks)]
        places = [(chunk, first + k) for first in rounds for chunk, k in turns]
        forward = [StageTask(chunk * num_ranks + rank, k, "forward") for chunk, k in places]
        last = num_chunks - 1
        backward = [StageTask((last - chunk) * num_ranks + rank, k, "backward") for chunk, k in places]
        warm_up = 2 * (num_ranks - rank - 1) + last * num_ranks
        return _alternating(forward, backward, warm_up=warm_up)

    return of_rank


_PHASES: tuple[Pass, Pass] = ("forward", "backward")


def _alternating(forward: list[StageTask], backward: list[StageTask], *, warm_up: int) -> list[StageTask]:
    """So many forward tasks first; then one forward and one backward in turn; then the backward tasks that are left."""
    warm_up = min(warm_up, len(forward))
    pairs = zip(forward[warm_up:], backward)
    tasks = [*forward[:warm_up], *(task for pair in pairs for task in pair)]
    return tasks + backward[len(forward) - warm_up :]


def _check(num_ranks: int, num_micro_batches: int) -> None:
    if num_ranks < 1 or num_micro_batches < 1:
        raise ArgumentError(
            f"a pipeline of {num_ranks} ranks and {num_micro_batches} micro-batches; expected at least one of each"
        )
