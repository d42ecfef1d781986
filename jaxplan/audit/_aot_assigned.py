"""Output of a compiler before it generates code: its scheduled HLO and its buffer assignment.

The compilers spend a second or so on the passes over a train step and on its buffers, and most of their time (the TPU
compiler minutes) on the code of every kernel, of which nothing is read here. They write both down where `xla_dump_to`
says.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLATFORMS = {
    "cuda": "*after_optimizations-memory-usage-report.txt",
    "tpu": "*after_optimizations_after_buffer_assignment.txt",
}
"""Platforms that are not waited for until code is generated -> the file that is written last of those read here."""
RECOUNTED = frozenset({"tpu"})
"""Platforms on which `memory_analysis()` of the finished program counts otherwise (docs/audit.md)."""
_POLL_SECONDS = 0.05
_HLO, _ASSIGNMENT = "*after_optimizations.txt", "*after_optimizations-buffer-assignment.txt"
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*):$", re.MULTILINE)
_ELSEWHERE = ("color ", "thread-local", "constant")
"""Memories other than the device's main one, and constants that belong to the code."""
_HOST = "color 5,"
"""The memory of the host: `Layout::kHostMemorySpace` in https://github.com/openxla/xla/blob/main/xla/layout.h ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A program with assigned buffers: its HLO text, and the bytes of `CompiledMemory` by field."""

    hlo_text: str
    memory: dict[str, int]


def dump_options(folder: Path) -> dict[str, str]:
    """Compiler options that write down the program in ``folder`` as soon as its buffers are assigned."""
    return {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": "True"}


def assigned_or_compiled(compile_fn: Callable[[], Any], folder: Path, platform: str) -> Assigned | Any:
    """The output of ``compile_fn`` in ``folder``, as soon as it is complete; its result if it writes nothing.

    The compilation goes on in a thread that ends with the process. Errors that it raises before are raised here.
    """
    outcome: list[Any] = []

    def compile_program() -> None:
        try:
            outcome.append(compile_fn())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=compile_program, daemon=True)
    thread.start()
    is_running = True
    while is_running:
        thread.join(_POLL_SECONDS)
        is_running = thread.is_alive()
        # Also where it has just finished: figures do not depend on their order.
        if found := read_assigned(folder, platform):
            return found
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def read_assigned(folder: Path, platform: str) -> Assigned | None:
    """The compiler's output in ``folder``; None before all of it is written."""
    if not any(folder.glob(PLATFORMS[platform])):
        return None
    texts, assignments = sorted(folder.glob(_HLO)), sorted(folder.glob(_ASSIGNMENT))
    if not texts or not assignments:
        return None
    (hlo,), (assignment,) = texts, assignments
    return Assigned(hlo_text=hlo.read_text(), memory=assigned_memory(assignment.read_text()))


def assigned_memory(assignment: str) -> dict[str, int]:
    """Bytes in the main memory of the device, and of the host where there are any, from the text of an assignment."""
    memory: dict[str, int] = dict.fromkeys(("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes"), 0)
    memory |= dict.fromkeys([f"host_{name}" for name in memory], 0) if _HOST in assignment else {}
    for match in _ALLOCATION.finditer(assignment):
        size, what = int(match[1]), match[2]
        is_argument, is_output = "parameter" in what, "maybe-live-out" in what
        where = "host_" if _HOST in f"{what}," else ""
        if not where and any(word in what for word in _ELSEWHERE):
            continue
        memory[f"{where}argument_bytes"] += size * is_argument
        memory[f"{where}output_bytes"] += size * is_output
        memory[f"{where}alias_bytes"] += size * (is_argument and is_output)
        memory[f"{where}temp_bytes"] += size * (not is_argument and not is_output)
    return memory
