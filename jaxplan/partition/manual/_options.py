"""Options of the compilation of a manual program."""

from __future__ import annotations

import os

from jaxplan.partition._plan_like import PlanLike

_FLAG, _PASS = "xla_disable_hlo_passes", "cse_barrier_expander"


def barrier_options(plan: PlanLike, platform: str | None) -> dict[str, str]:
    """Compiler options with which the compiler for CPU keeps optimization barriers, where a plan gathers twice.

    Without them it drops barriers before it merges equal values, and a copy that the plan gathers again in the
    backward pass is kept from the forward pass. Where ``XLA_FLAGS`` names passes of the user's, nothing is said.
    """
    repeats = any(resharding.repeated for resharding in plan.lowering.reshardings)
    return (
        {_FLAG: _PASS}
        if repeats and platform == "cpu" and _FLAG not in os.environ.get("XLA_FLAGS", "")
        else {}
    )
