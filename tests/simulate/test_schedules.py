"""Schedules of pipelines against the closed forms of their papers."""

from __future__ import annotations

import pytest

import jaxplan
from jaxplan.simulate import StageCost, gpipe, interleaved, one_f_one_b, run_pipeline
from jaxplan.simulate._schedules import StageTask

SIZES = [(1, 1), (1, 4), (2, 1), (2, 2), (2, 8), (4, 4), (4, 8), (4, 3), (8, 32)]
"""Ranks, micro-batches."""


def equal(num_stages, forward=1.0, backward=2.0, **more):
    return [StageCost(forward=forward, backward=backward, **more)] * num_stages


@pytest.mark.parametrize("p, m", SIZES)
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_equal_stages_take_the_passes_of_all_micro_batches_and_those_of_the_other_ranks_once(schedule, p, m):
    """(m + p - 1)(f + b) seconds, of which (p - 1) / (m + p - 1) are idle."""
    run = run_pipeline(schedule(p, m), p, equal(p))
    assert run.seconds == pytest.approx((m + p - 1) * 3.0)
    assert run.bubble == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)


@pytest.mark.parametrize("p, m, v", [(2, 2, 2), (2, 8, 3), (4, 8, 2), (4, 16, 4), (8, 16, 2)])
def test_interleaving_divides_the_bubble_by_the_stages_of_a_rank(p, m, v):
    """Megatron-LM, section 2.2.2: the bubble takes (p - 1)(f + b) / v seconds, where f and b are those of a rank."""
    run = run_pipeline(interleaved(p, m, v), p, equal(p * v, 1.0 / v, 2.0 / v))
    assert run.seconds == pytest.approx(m * 3.0 + (p - 1) * 3.0 / v)


@pytest.mark.parametrize("p, m", SIZES)
def test_gpipe_holds_all_micro_batches_and_one_f_one_b_as_many_as_ranks_follow(p, m):
    assert run_pipeline(gpipe(p, m), p, equal(p, held_bytes=10)).peak_bytes == (10 * m,) * p
    run = run_pipeline(one_f_one_b(p, m), p, equal(p, held_bytes=10))
    assert run.most_held == tuple(min(m, p - rank) for rank in range(p))
    assert run.peak_bytes == tuple(10 * held for held in run.most_held)


def test_interleaving_holds_more_stages_of_micro_batches():
    """Rank 0 runs 2 (p - 1) + (v - 1) p forward passes before it alternates, and one more in each turn."""
    p, m, v = 4, 16, 2
    run = run_pipeline(interleaved(p, m, v), p, equal(p * v))
    assert run.most_held == tuple(2 * (p - rank - 1) + (v - 1) * p + 1 for rank in range(p))


def test_one_stage_each_is_one_f_one_b():
    assert [interleaved(4, 8, 1)(rank) for rank in range(4)] == [one_f_one_b(4, 8)(rank) for rank in range(4)]


def test_unequal_stages_take_the_sum_and_the_slowest_stage_for_each_further_micro_batch():
    """sum + (m - 1) x slowest, Alpa (https://arxiv.org/abs/2201.12023), section 5.2."""
    stages = [StageCost(forward=f, backward=2 * f) for f in (1.0, 3.0, 2.0)]
    run = run_pipeline(gpipe(3, 6), 3, stages)
    assert run.seconds == pytest.approx(3 * (1 + 3 + 2) + 5 * 3 * 3)


def test_sends_delay_the_first_micro_batch_and_run_beside_compute():
    """Two ranks, four micro-batches: the result goes forward once and its gradient back once without being hidden."""
    run = run_pipeline(gpipe(2, 4), 2, equal(2, send=0.25))
    assert run.seconds == pytest.approx(5 * 3.0 + 2 * 0.25)


def test_later_ranks_of_a_simulated_pipeline_start_when_their_input_is_there():
    run = run_pipeline(one_f_one_b(3, 4), 3, equal(3))
    starts = {task: run.timeline.start[number] for number, task in run.tasks.items()}
    assert [starts[StageTask(stage, 0, "forward")] for stage in range(3)] == [0.0, 1.0, 2.0]
    assert starts[StageTask(2, 0, "backward")] == 3.0


@pytest.mark.parametrize("make", [lambda: gpipe(0, 1), lambda: one_f_one_b(2, 0), lambda: interleaved(4, 6, 2)])
def test_pipelines_without_ranks_or_micro_batches_and_odd_rounds_are_refused(make):
    with pytest.raises(jaxplan.ArgumentError, match="expected"):
        make()


def test_a_schedule_that_waits_for_itself_is_refused():
    def stuck(rank):
        return gpipe(2, 1)(rank)[::-1]

    with pytest.raises(jaxplan.ArgumentError, match="wait for each other"):
        run_pipeline(stuck, 2, equal(2))


def test_a_schedule_with_a_pass_left_out_is_refused():
    with pytest.raises(jaxplan.ArgumentError, match="each pass once"):
        run_pipeline(lambda rank: gpipe(2, 2)(rank)[1:], 2, equal(2))
