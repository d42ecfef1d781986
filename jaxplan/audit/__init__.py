"""Compile without devices and compare the program with the plan.

The process that compiles imports this package too, and needs no planner: the comparison is imported when it is used.
"""

from typing import TYPE_CHECKING

from jaxplan.audit._aot import CompiledReport as CompiledReport
from jaxplan.audit._aot import compile_exported as compile_exported
from jaxplan.core._lazy import lazy_names

if TYPE_CHECKING:
    from jaxplan.audit._audit import Audit as Audit
    from jaxplan.audit._audit import judge_collectives as judge_collectives
    from jaxplan.audit._audit import varying_axes as varying_axes
    from jaxplan.audit._compile import audit_plan as audit_plan
    from jaxplan.audit._compile import compile_plan as compile_plan
    from jaxplan.audit._compile import predicted_program as predicted_program
    from jaxplan.audit._compile import require_compiler as require_compiler

_HOMES = {
    "Audit": "jaxplan.audit._audit",
    "judge_collectives": "jaxplan.audit._audit",
    "varying_axes": "jaxplan.audit._audit",
    "audit_plan": "jaxplan.audit._compile",
    "compile_plan": "jaxplan.audit._compile",
    "predicted_program": "jaxplan.audit._compile",
    "require_compiler": "jaxplan.audit._compile",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
