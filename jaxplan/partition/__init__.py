"""Apply a plan: the jit backend, placement of arguments, and the audit of the compiled program."""

from jaxplan.partition._aot import CompiledReport as CompiledReport
from jaxplan.partition._aot import compile_exported as compile_exported
from jaxplan.partition._audit import Audit as Audit
from jaxplan.partition._audit import varying_axes as varying_axes
from jaxplan.partition._compile import audit_plan as audit_plan
from jaxplan.partition._compile import compile_plan as compile_plan
from jaxplan.partition._compile import require_compiler as require_compiler
from jaxplan.partition._known_calls import Results as Results
from jaxplan.partition._planned import PlannedFunction as PlannedFunction
from jaxplan.partition._planned import device_mesh as device_mesh
from jaxplan.partition._planned import runs_as_planned as runs_as_planned
from jaxplan.partition._replay import Replay as Replay
