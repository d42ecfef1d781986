"""jaxplan plans how a single-device JAX train step runs on several accelerators.

`auto` decorates a step, `plan` returns the frontier of time against memory, `load` reads a saved one; `min_devices`
and `scaling` plan on parts of a machine.
Names are imported when they are first used, so that `import jaxplan` is quick and starts no backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxplan.core._lazy import lazy_names
from jaxplan.core._version import __version__ as __version__
from jaxplan.errors import ArgumentError as ArgumentError
from jaxplan.errors import AuditError as AuditError
from jaxplan.errors import InfeasibleError as InfeasibleError
from jaxplan.errors import JaxplanError as JaxplanError
from jaxplan.errors import MissingExtraError as MissingExtraError
from jaxplan.errors import PlanFileError as PlanFileError
from jaxplan.errors import PlanMismatchError as PlanMismatchError
from jaxplan.errors import ProblemError as ProblemError
from jaxplan.errors import ProcessError as ProcessError
from jaxplan.errors import ProfileError as ProfileError
from jaxplan.errors import RuleError as RuleError
from jaxplan.errors import SaveError as SaveError
from jaxplan.errors import TopologyError as TopologyError
from jaxplan.errors import TraceError as TraceError
from jaxplan.errors import UnsupportedError as UnsupportedError

if TYPE_CHECKING:
    from jaxplan._api._auto import auto as auto
    from jaxplan._api._load import load as load
    from jaxplan._api._plan import compare as compare
    from jaxplan._api._plan import min_devices as min_devices
    from jaxplan._api._plan import plan as plan
    from jaxplan._api._plan import scaling as scaling
    from jaxplan._api._together import plan_together as plan_together
    from jaxplan._api._traced import trace as trace
    from jaxplan.frontend._pins import Forbid as Forbid
    from jaxplan.frontend._pins import Split as Split
    from jaxplan.frontend._pins import hint as hint
    from jaxplan.ir import Count as Count
    from jaxplan.ir import register_count as register_count
    from jaxplan.ir.rules import register_rule as register_rule
    from jaxplan.mesh import Topology as Topology
    from jaxplan.plans._frontier import Frontier as Frontier
    from jaxplan.plans._joint import JointFrontier as JointFrontier
    from jaxplan.plans._joint import JointPlan as JointPlan
    from jaxplan.plans._plan import Plan as Plan

__all__ = [
    "ArgumentError",
    "AuditError",
    "Count",
    "Forbid",
    "Frontier",
    "InfeasibleError",
    "JaxplanError",
    "JointFrontier",
    "JointPlan",
    "MissingExtraError",
    "Plan",
    "PlanFileError",
    "PlanMismatchError",
    "ProblemError",
    "ProcessError",
    "ProfileError",
    "RuleError",
    "SaveError",
    "Split",
    "Topology",
    "TopologyError",
    "TraceError",
    "UnsupportedError",
    "auto",
    "compare",
    "hint",
    "load",
    "min_devices",
    "plan",
    "plan_together",
    "register_count",
    "register_rule",
    "scaling",
    "trace",
]

_HOMES = {
    "auto": "jaxplan._api._auto",
    "compare": "jaxplan._api._plan",
    "min_devices": "jaxplan._api._plan",
    "plan": "jaxplan._api._plan",
    "scaling": "jaxplan._api._plan",
    "plan_together": "jaxplan._api._together",
    "trace": "jaxplan._api._traced",
    "load": "jaxplan._api._load",
    "Forbid": "jaxplan.frontend._pins",
    "Split": "jaxplan.frontend._pins",
    "hint": "jaxplan.frontend._pins",
    "Plan": "jaxplan.plans._plan",
    "Count": "jaxplan.ir",
    "Frontier": "jaxplan.plans._frontier",
    "JointFrontier": "jaxplan.plans._joint",
    "JointPlan": "jaxplan.plans._joint",
    "Topology": "jaxplan.mesh",
    "register_count": "jaxplan.ir",
    "register_rule": "jaxplan.ir.rules",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
