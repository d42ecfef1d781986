"""How far the compiler may combine a plan's collectives: options of the compilation."""

from __future__ import annotations

import os

from jaxplan.cost import COMPILERS_OWN_BYTES, combined_bytes
from jaxplan.partition._plan_like import PlanLike
from jaxplan.xla import is_gpu

_FLAG = "xla_gpu_{kind}_combine_threshold_bytes"


def combiner_options(plan: PlanLike, platform: str | None) -> dict[str, str]:
    """Compiler options that let GPU programs combine collectives of one kind up to 1 % of the plan's predicted
    memory.

    A combined collective holds all of its operands and results at once: three gradients that the plan reduces one
    after the other are alive together until the last is made. The compiler's own limit of 30 MiB is a large part of a
    small program's memory; at least 1 MiB may be combined, so that biases do not pay a latency each. Where the limit
    would be more than the compiler's own, or ``XLA_FLAGS`` names one, nothing is said.

    Args:
      plan: the plan to be compiled.
      platform: of the devices, such as ``cuda`` or ``gpu``; others get no options.
    """
    limit = combined_bytes(plan.prediction.memory_bytes)
    if not is_gpu(platform) or limit == COMPILERS_OWN_BYTES:
        return {}
    # The compiler counts results, and a reduce-scatter's is a shard of its operand.
    limits = {
        "all_gather": limit,
        "all_reduce": limit,
        "reduce_scatter": limit // plan.topology.num_devices,
    }
    given = os.environ.get("XLA_FLAGS", "")
    flags = {_FLAG.format(kind=kind): str(size) for kind, size in limits.items()}
    return {flag: size for flag, size in flags.items() if flag not in given}
