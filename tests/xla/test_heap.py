"""Where temporaries lie in the heap of a GPU program, and the gaps between them."""

from __future__ import annotations

import numpy as np
import pytest

import jaxplan
from benchmarks.accuracy._population import draw_step
from jaxplan.xla import GAPS
from jaxplan.xla._heap import MOST_BUFFERS, heap_gaps
from tests.versions import until_0_12


def _gaps(*buffers: tuple[int, int, float]) -> float:
    """Of (first, last position, bytes) of each."""
    first, last, sizes = (np.array(column) for column in zip(*buffers, strict=True))
    most = max(float(sizes[(first <= at) & (at <= last)].sum()) for at in range(int(last.max()) + 1))
    return heap_gaps(first, last, sizes.astype(float), most)


def test_buffers_one_after_the_other_leave_no_gap() -> None:
    assert _gaps((0, 1, 8), (2, 3, 8), (4, 5, 16)) == 0


def test_a_small_buffer_fills_a_gap() -> None:
    """The one of 2 lies where that of 4 was, below that of 3."""
    assert _gaps((0, 1, 4), (1, 3, 3), (2, 3, 2)) == 0


def test_a_gap_that_is_too_small_is_left() -> None:
    """Placed by hand, in both orders: 5 and 6 do not live together, and the 4 that lives beside both is above the 6.

    The 3 lives beside the 5 and the 4, and does not fit between them: 13 bytes for 12 that live.
    """
    assert _gaps((4, 5, 6), (0, 2, 5), (2, 4, 4), (1, 2, 3)) == 1


def test_of_two_orders_the_smaller_heap_is_taken() -> None:
    """Largest first leaves a gap of 1 byte here (above); the third lives longest, so the other order puts it lowest."""
    assert _gaps((4, 5, 6), (0, 2, 5), (2, 9, 4), (1, 2, 3)) == 0


def test_gaps_are_never_negative_and_scale_with_the_buffers() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 30))
        first = rng.integers(0, 20, n)
        last = first + rng.integers(0, 8, n)
        sizes = rng.integers(1, 50, n).astype(float)
        live = max(float(sizes[(first <= at) & (at <= last)].sum()) for at in range(30))
        gaps = heap_gaps(first, last, sizes, live)
        assert 0 <= gaps <= sizes.sum() - live
        assert heap_gaps(first, last, 2 * sizes, 2 * live) == 2 * gaps


def test_many_buffers_are_placed_by_their_largest() -> None:
    n = 4 * MOST_BUFFERS
    first = np.arange(n)
    assert heap_gaps(first, first + 1, np.full(n, 8.0), 16.0) == 0


@until_0_12("the heap has no gaps")
@pytest.mark.gpu_aot
def test_the_heap_of_a_compiled_program() -> None:
    """A step drawn at random of which 9 % are gaps; all else is predicted to 1 %."""
    drawn = draw_step(901299)
    plan = jaxplan.plan(drawn.step, *drawn.args, topology="h100:8", progress=False).references["data"]
    audit = plan.audit()
    assert plan.memory_parts[GAPS] > 0.08 * plan.memory_bytes
    assert plan.memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=0.01), audit.table()

