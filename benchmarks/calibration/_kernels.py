"""Seconds of the kernels of a step, as the profiler counted them, beside its compiled program."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

_LONG_PATH = re.compile(r'(?<=")/[^"\n]*/(?=[^"/\n]+/[^"/\n]+")')


def write_kernels(folder: Path, title: str, hlo_text: str, num_steps: int, run: Callable[[], Any]) -> None:
    """Trace a run of so many steps, and write `<title>.json.gz`.

    The file holds ``kernels``, a list of (name, instruction of the program or "", seconds of a step, times a step), and
    ``program``, the text of the compiled program, paths of source files cut to folder and name.
    """
    with tempfile.TemporaryDirectory() as scratch:
        with jax.profiler.trace(scratch):
            run()
        traces = sorted(Path(scratch).rglob("*.xplane.pb"))
        kernels = [kernel for trace in traces for kernel in _kernels(trace, num_steps)]
    body = {"title": title, "kernels": kernels, "program": _LONG_PATH.sub("", hlo_text)}
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9]+", "-", title)[:120]
    (folder / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(body).encode()))


def _kernels(trace: Path, num_steps: int) -> list[tuple[str, str, float, float]]:
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for plane in jax.profiler.ProfileData.from_file(str(trace)).planes:
        if not plane.name.startswith("/device:"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):  # the other lines repeat them by module and by operation
                continue
            for event in line.events:
                seconds[event.name, str(dict(event.stats).get("hlo_op", ""))].append(event.duration_ns * 1e-9)
    return [(*names, sum(taken) / num_steps, len(taken) / num_steps) for names, taken in seconds.items()]
