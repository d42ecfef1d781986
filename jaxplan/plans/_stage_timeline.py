"""The simulated passes of a plan in stages, as a file for a viewer."""

from __future__ import annotations

import json
from typing import Any

from jaxplan.core._files import write_whole
from jaxplan.simulate import PipelineRun
from jaxplan.simulate._simulator import chrome_trace


def save_passes(run: PipelineRun, count: int, path: Any) -> None:
    """Write them in the Trace Event Format: one row a stage, and one for each link between stages."""

    def name(number: int) -> str:
        task = run.tasks.get(number)
        return "send" if task is None else f"{task.phase} {task.micro_batch}"

    def row(stream: int) -> str:
        return f"stage {stream}" if stream < count else f"link {(stream - count) // 2}"

    write_whole(path, json.dumps(chrome_trace(run.timeline, name, row)) + "\n")
