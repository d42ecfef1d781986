"""The garbage collector is set aside for a block, and objects that a program has frozen stay frozen."""

import gc
from collections.abc import Iterator

import pytest

from jaxplan.core import _collector
from jaxplan.core._collector import paused_collector


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of frozen objects that are asked for, in a program of which none is known yet."""
    asked: list[int] = []
    monkeypatch.setattr(_collector, "_frozen_seen", type(_collector._frozen_seen)())
    count = gc.get_freeze_count

    def counting() -> int:
        asked.append(count())
        return asked[-1]

    monkeypatch.setattr(gc, "get_freeze_count", counting)
    yield asked


def test_frozen_objects_stay_frozen_and_are_counted_once(counted: list[int]) -> None:
    gc.freeze()
    for _ in range(3):
        with paused_collector():
            assert not gc.isenabled()
        assert gc.isenabled()
    assert len(counted) == 1 and counted[0] > 0
    assert gc.get_freeze_count() > 0


def test_a_collector_that_is_off_stays_off(counted: list[int]) -> None:
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled() and not counted
    finally:
        gc.enable()
