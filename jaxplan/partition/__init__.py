"""Apply a plan: the jit backend, placement of arguments, and the audit of the compiled program."""

from jaxplan.partition._init import create as create
from jaxplan.partition._known_calls import Results as Results
from jaxplan.partition._planned import PlannedFunction as PlannedFunction
from jaxplan.partition._planned import device_mesh as device_mesh
from jaxplan.partition._planned import runs_as_planned as runs_as_planned
from jaxplan.partition._replay import Replay as Replay
from jaxplan.partition._run import run_replay as run_replay
