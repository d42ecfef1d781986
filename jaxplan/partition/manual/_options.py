"""Options of the compilation of a manual program."""

from __future__ import annotations

import os

from jaxplan.partition._plan_like import PlanLike
from jaxplan.xla import is_host

_FLAG = "xla_disable_hlo_passes"
_DROPS_BARRIERS, _LEAVES_LOOPS = "cse_barrier_expander", "while-loop-invariant-code-motion"
"""Passes of the compiler for CPU: one drops optimization barriers before equal values are merged, the other
moves values that do not change out of a loop."""


def barrier_options(plan: PlanLike, platform: str | None) -> dict[str, str]:
    """Compiler options with which the compiler for CPU gathers as often as the plan does.

    Without them a copy that is gathered again in the backward pass, or in every trip of a loop, is gathered once and
    kept. Where ``XLA_FLAGS`` names passes of the user's, nothing is said.
    """
    if not is_host(platform) or _FLAG in os.environ.get("XLA_FLAGS", ""):
        return {}
    reshardings, equations = plan.lowering.reshardings, plan.require_program().program.equations
    in_loops = {eqn.index for eqn in equations if eqn.region >= 0}
    passes = {
        _DROPS_BARRIERS: any(r.repeated for r in reshardings),
        _LEAVES_LOOPS: any(span.first in in_loops for r in reshardings for span in r.spans),
    }
    disabled = ",".join(name for name, is_in_the_way in passes.items() if is_in_the_way)
    return {_FLAG: disabled} if disabled else {}
