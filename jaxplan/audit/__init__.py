"""Compile without devices and compare the program with the plan."""

from jaxplan.audit._aot import CompiledReport as CompiledReport
from jaxplan.audit._aot import compile_exported as compile_exported
from jaxplan.audit._audit import Audit as Audit
from jaxplan.audit._audit import judge_collectives as judge_collectives
from jaxplan.audit._audit import varying_axes as varying_axes
from jaxplan.audit._compile import audit_plan as audit_plan
from jaxplan.audit._compile import compile_plan as compile_plan
from jaxplan.audit._compile import predicted_program as predicted_program
from jaxplan.audit._compile import require_compiler as require_compiler
