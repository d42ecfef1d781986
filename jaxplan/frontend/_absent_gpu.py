"""Fused attention for GPUs, planned where there is none."""

from __future__ import annotations

import contextlib

from jaxplan.core import _compat
from jaxplan.mesh import Topology
from jaxplan.mesh._aot import compute_capability


def traced_for(topology: Topology | None) -> contextlib.AbstractContextManager[None]:
    """While a step is traced for GPUs, cuDNN counts as installed on them, so that fused attention can be planned.

    Nothing is changed where a GPU is present, and nothing for other chips.
    """
    capability = compute_capability(topology.chip) if topology else None
    return _compat.cudnn_assumed(capability) if capability else contextlib.nullcontext()
