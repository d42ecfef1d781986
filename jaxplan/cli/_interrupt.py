"""Ctrl-C in the shell: the command ends within a second, with the results until then in the files asked for."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from jaxplan.cli._errors import print_json_error
from jaxplan.core._interrupt import Interruption, interruptible

EXIT_INTERRUPTED = 130
"""As shells report a command that SIGINT ended."""
GRACE_SECONDS = 0.7
"""After Ctrl-C, until the process ends whatever it does; a file that is being written is written to its end."""
_SHOW_CURSOR = "\x1b[?25h"


class Watch:
    """Ends the process some time after Ctrl-C, from a thread: the main one may be in a library that does not return.

    Attributes:
      interruption: of the search that the command runs.
      rescue: saves the results so far, for when the main thread does not come to it; None where it need not.
      answers: the command answers KeyboardInterrupt itself, also when no plan is known.
      saved: the files asked for are written.
      as_json: an object on stdout says that the command was interrupted, unless a result was printed (``printed``).
    """

    def __init__(self, interruption: Interruption) -> None:
        self.interruption = interruption
        self.rescue: Callable[[], object] | None = None
        self.answers = self.saved = self.as_json = self.printed = False
        self._pressed = False
        self._ended = threading.Event()
        self._writes = threading.Lock()

    @property
    def interrupted(self) -> bool:
        return self._pressed or self.interruption.happened

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Files written in the block are written to their end, and need no rescue."""
        with self._writes:
            self.rescue = None
            yield
            self.saved = True

    def press(self, *_: object) -> None:
        """The handler of SIGINT: KeyboardInterrupt; the end of the process if it comes again, or nothing can be saved.

        Raised in the middle of an import or a callback, the exception would be lost, or printed by a library.
        """
        if self._pressed or not (self.answers or self.interruption.plans):
            self._leave()
        self._pressed = True
        raise KeyboardInterrupt

    def wait(self, pipe: int) -> None:
        """Wait for a signal's number in the pipe, and then for the end of the grace; the body of the thread."""
        while (number := os.read(pipe, 1)) and number[0] != signal.SIGINT:
            pass
        if not number or self._ended.wait(GRACE_SECONDS):
            return
        with self._writes:
            if self.rescue is not None and self.interruption.plans:
                with contextlib.suppress(Exception):
                    self.rescue()
                    self.saved = True
            self._leave()

    def end(self) -> None:
        """The command has ended by itself."""
        self._ended.set()

    def _leave(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(_SHOW_CURSOR)  # a progress bar hides it
        with contextlib.suppress(Exception):
            print(file=sys.stderr)
            self.print_message()
            sys.stdout.flush()
        os._exit(EXIT_INTERRUPTED)

    def print_message(self) -> None:
        """Say that the command was interrupted, and whether something was saved."""
        print(self.message, file=sys.stderr, flush=True)
        if self.as_json and not self.printed:
            message = self.message.removeprefix("jaxplan: ")
            print_json_error({"type": "Interrupted", "message": message, "exit_code": EXIT_INTERRUPTED})

    @property
    def message(self) -> str:
        """The message to the user at the end."""
        said = "what was asked for is written" if self.saved else "nothing was written"
        return f"jaxplan: interrupted; {said}"


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """Watch a command for Ctrl-C; outside the main thread, or where SIGINT is handled otherwise, nothing is changed."""
    with interruptible() as interruption:
        watch = Watch(interruption)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield watch
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        thread = threading.Thread(target=watch.wait, args=(reader,), daemon=True)
        thread.start()
        signal.signal(signal.SIGINT, watch.press)
        try:
            yield watch
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.set_wakeup_fd(before)
            watch.end()
            os.close(writer)
            thread.join()
            os.close(reader)
