"""Stages on a clock that the test moves by hand."""

import pytest

from jaxplan.core._progress import Progress
from jaxplan.errors import ArgumentError


class Clock:
    """A clock that stands still until it is moved."""

    now = 100.0

    def __call__(self):
        return self.now


def test_each_stage_keeps_its_seconds():
    clock = Clock()
    with Progress(False, clock=clock) as progress:
        clock.now += 5  # before the first stage: nobody's
        progress("trace")
        clock.now += 2
        progress("solve", 0.5)
        clock.now += 3
        progress("solve", 0.9)
        clock.now += 4
        progress("trace")
        clock.now += 1
    clock.now += 9  # after the block
    assert progress.seconds == {"trace": 3, "solve": 7}
    assert str(progress) == "trace 3.00 s, solve 7.00 s; together 10.0 s"


def test_a_stage_inside_a_stage_is_not_counted_twice():
    clock = Clock()
    progress = Progress(False, clock=clock)
    with pytest.raises(RuntimeError), progress.stage("outer"):
        clock.now += 1
        with progress.stage("inner"):
            clock.now += 2
        clock.now += 4
        with progress.stage("inner"):
            clock.now += 8
            raise RuntimeError
    clock.now += 16
    assert progress.seconds == {"outer": 5, "inner": 10}


def test_a_function_hears_every_report_and_nothing_is_printed(capfd):
    heard = []
    with Progress(lambda *report: heard.append(report)) as progress:
        progress("trace")
        progress("solve", 0.25)
        progress("solve", 7)
    assert heard == [("trace", 0.0), ("solve", 0.25), ("solve", 1.0)]
    assert capfd.readouterr() == ("", "")


def test_silent_when_stderr_is_no_terminal(capfd):
    with Progress() as progress:
        progress("trace")
    assert capfd.readouterr() == ("", "")


def test_shown_on_stderr_when_asked(capfd):
    with Progress(True) as progress:
        progress("trace", 0.5)
    out, err = capfd.readouterr()
    assert out == ""
    assert "trace" in err


def test_other_values_are_refused():
    with pytest.raises(ArgumentError, match="progress='yes' is not understood"):
        Progress("yes")  # pyright: ignore[reportArgumentType]
