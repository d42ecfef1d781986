"""Limits above which arrays are lowered with more care, scaled to the arrays of small steps."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

_SMALL: dict[str, dict[str, int]] = {
    "LARGE_PARAMETER_BYTES": dict.fromkeys(
        [
            "xla.rules.both.schedule",
            "xla.rules.gpu.kernels",
            "xla.rules.both.deferred",
            "xla.rules.gpu.schedule",
            "partition._gather_guards",
            "cost._gradient_barriers",
        ],
        256,
    ),
    "COMBINED_BYTES": {"xla.rules.both.schedule": 64},
    "PREFETCH_CONTRACTIONS": {"cost._prefetch": 1},
    "A_BLOCK": {"cost._gradient_barriers": 1},
}
"""Name of a limit -> module of `jaxplan` that reads it -> its value (bytes, contractions) for small steps."""


@contextlib.contextmanager
def small_limits() -> Iterator[None]:
    """Inside, arrays of some hundred bytes count as large: they are prefetched, reduced early and so on."""
    with contextlib.ExitStack() as undo:
        for name, readers in _SMALL.items():
            for module_name, value in readers.items():
                module = importlib.import_module(f"jaxplan.{module_name}")
                undo.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, value)
        yield
