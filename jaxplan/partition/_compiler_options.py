"""Options of the compilation that a plan's price assumes."""

from __future__ import annotations

import os

from jaxplan.partition._combiner import combiner_options
from jaxplan.partition._plan_like import PlanLike
from jaxplan.xla import is_gpu

_SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"


def compiler_options(plan: PlanLike, platform: str | None) -> dict[str, str]:
    """The options of XLA with which a plan takes the time and memory that it says.

    Where its seconds count collectives beside compute, that is the scheduler that moves them there: the compilers of
    JAX 0.10 and 0.12 run it unless told otherwise, so that memory is the same (docs/prediction.md). Besides, limits for
    combined collectives (`combiner_options`). Options that ``XLA_FLAGS`` names are left to it.

    Args:
      plan: the plan to be compiled.
      platform: of the devices, such as ``cuda`` or ``gpu``; others get no options.
    """
    options = combiner_options(plan, platform)
    if is_gpu(platform) and plan.prediction.overlapped and _SCHEDULER not in os.environ.get("XLA_FLAGS", ""):
        options[_SCHEDULER] = "True"
    return options
