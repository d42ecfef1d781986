"""Steps are traced for GPUs that are not present: what JAX asks of them is answered by the chip's description."""

from __future__ import annotations

import contextlib
import re

from jaxplan.core import _compat
from jaxplan.mesh import Topology

Assumption = tuple[int, int] | None
"""Compute capability (major, minor) of the GPUs on which cuDNN counts as installed; None: nothing is assumed."""

NEWEST_GPU: Assumption = (10, 0)
"""Knows all forms of fused attention: for a trace of which the machine is not known yet."""
_CAPABILITY = re.compile(r"cuda_compute_capability\s*\{\s*major:\s*(\d+)(?:\s*minor:\s*(\d+))?")
_UNKNOWN = (7, 0)
"""Of chips without a compile target, all older than those with fused attention."""


def traced_under(assumption: Assumption) -> contextlib.AbstractContextManager[list[str] | None]:
    """While a step is traced in the block, cuDNN counts as installed on GPUs, so that fused attention can be planned.

    Nothing is changed where a GPU is present. The list that the block is given tells afterwards what JAX asked about
    GPUs: where it is empty, every assumption gives the same program. None, where nothing is assumed: it is not known.
    """
    return contextlib.nullcontext() if assumption is None else _compat.cudnn_assumed(assumption)


def assumption_for(topology: Topology | None) -> Assumption:
    """What a trace for a machine assumes; nothing where the machine is not named or has no GPUs."""
    if topology is None or not topology.chip.is_gpu:
        return None
    return _capability(topology)


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
