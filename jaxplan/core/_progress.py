"""Progress of planning: which stage runs, how far it is, and how many seconds each stage took."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from jaxplan.core._units import format_seconds
from jaxplan.errors import ArgumentError

ProgressFn = Callable[[str, float], object]


class Progress:
    """Reports stages on a terminal, to a function, or to nobody, and always keeps their seconds.

    A report `progress("solve", 0.3)` ends the stage before it and says that 30 % of the new one is done; the
    same stage may be reported again, and its seconds add up. The last stage ends with the `with` block.

    Attributes:
      seconds: stage name -> seconds, in the order in which the stages began.
    """

    def __init__(
        self, show: bool | ProgressFn | None = None, *, clock: Callable[[], float] = time.perf_counter
    ):
        """Show on stderr (True), nowhere (False), by a function of (stage, fraction), or, for None, on stderr
        if that is a terminal."""
        if not (show is None or isinstance(show, bool) or callable(show)):
            raise ArgumentError(
                f"progress={show!r} is not understood.\n"
                "  expected: True, False, None (shown on a terminal only), or a function of (stage, fraction)"
            )
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._report = show if callable(show) else None
        self._console = _console(show)
        self._bar: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._stage: str | None = None
        self._since = 0.0

    def __enter__(self) -> Progress:
        if self._console is not None and self._bar is None:
            self._bar = RichProgress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TimeElapsedColumn(),
                console=self._console,
                transient=self._console.is_terminal,  # in a log the bars stay, drawn once at the end
            )
            self._bar.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._switch(None)
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._tasks.clear()

    def __call__(self, stage: str, fraction: float = 0.0) -> None:
        """Say that `stage` runs now and that this fraction of it, 0 to 1, is done."""
        fraction = min(max(fraction, 0.0), 1.0)
        if stage != self._stage or fraction >= 1.0:  # clocks take time, and stages report thousands of times
            self._switch(stage)
        if self._report is not None:
            self._report(stage, fraction)
        if self._bar is not None:
            if stage not in self._tasks:
                self._tasks[stage] = self._bar.add_task(stage, total=1.0)
            self._bar.update(self._tasks[stage], completed=fraction)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run a block as one stage; the stage around it, if there is one, goes on afterwards."""
        outer = self._stage
        self(name)
        try:
            yield
            self(name, 1.0)
        finally:
            self._switch(outer)

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in self.seconds.items())
        return (
            f"{stages}; together {format_seconds(sum(self.seconds.values()))}" if stages else "no stage ran"
        )

    def _switch(self, stage: str | None) -> None:
        """End the running stage, unless it goes on, and start the clock of the next."""
        now = self._clock()
        if self._stage is not None:
            self.seconds[self._stage] += now - self._since
            if stage != self._stage and self._bar is not None and self._stage in self._tasks:
                self._bar.stop_task(self._tasks[self._stage])
        if stage is not None:
            self.seconds.setdefault(stage, 0.0)
        self._stage, self._since = stage, now


def _console(show: bool | ProgressFn | None) -> Console | None:
    if show is True or (show is None and sys.stderr is not None and sys.stderr.isatty()):
        return Console(stderr=True)
    return None
