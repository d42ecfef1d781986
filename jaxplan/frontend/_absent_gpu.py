"""Steps are traced for absent GPUs: the description of the chip answers the questions that JAX asks about them."""

from __future__ import annotations

import contextlib

from jaxplan.core import _compat
from jaxplan.mesh import Topology
from jaxplan.mesh._aot import compute_capability

Assumption = tuple[int, int] | None
"""Compute capability (major, minor) of the GPUs on which cuDNN counts as installed; None: nothing is assumed."""

NEWEST_GPU: Assumption = (10, 0)
"""Knows all forms of fused attention: for a trace of which the machine is not known yet."""


def traced_under(assumption: Assumption) -> contextlib.AbstractContextManager[list[str] | None]:
    """While a step is traced in the block, cuDNN counts as installed on GPUs, so that fused attention can be planned.

    Nothing is changed where a GPU is present. The list that the block is given tells afterwards what JAX asked about
    GPUs: where it is empty, every assumption gives the same program. None, where nothing is assumed: it is not known.
    """
    return contextlib.nullcontext() if assumption is None else _compat.cudnn_assumed(assumption)


def assumption_for(topology: Topology | None) -> Assumption:
    """The assumptions of a trace for a machine; nothing where the machine is not named or has no GPUs."""
    return compute_capability(topology.chip) if topology else None
