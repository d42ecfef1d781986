"""Steps are traced for GPUs that are not present: what JAX asks of them is answered by the chip's description."""

from __future__ import annotations

import contextlib
import re

from jaxplan.core import _compat
from jaxplan.mesh import Topology

_CAPABILITY = re.compile(r"cuda_compute_capability\s*\{\s*major:\s*(\d+)(?:\s*minor:\s*(\d+))?")
_UNKNOWN = (7, 0)
"""Of chips without a compile target, all older than those with fused attention."""


def traced_for(topology: Topology | None) -> contextlib.AbstractContextManager[None]:
    """While a step is traced for GPUs, cuDNN counts as installed on them, so that fused attention can be planned.

    Nothing is changed where a GPU is present, and nothing for other chips.
    """
    if topology is None or not topology.chip.is_gpu:
        return contextlib.nullcontext()
    return _compat.cudnn_assumed(_capability(topology))


def _capability(topology: Topology) -> tuple[int, int]:
    """Compute capability (major, minor) of the chip."""
    from jaxplan.mesh._aot import target_config

    target = topology.chip.aot_target
    if target is None or not re.fullmatch(r"[\w-]+", target):
        return _UNKNOWN
    try:
        found = _CAPABILITY.search(target_config(target))
    except FileNotFoundError:  # a chip of the user's own
        return _UNKNOWN
    return (int(found[1]), int(found[2] or 0)) if found else _UNKNOWN
