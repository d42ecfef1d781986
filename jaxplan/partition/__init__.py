"""Apply a plan: the jit backend, placement of arguments, and the audit of the compiled program."""

from jaxplan.partition._batches import Batches as Batches
from jaxplan.partition._batches import batch_arguments as batch_arguments
from jaxplan.partition._compiler_options import compiler_options as compiler_options
from jaxplan.partition._decide import decide_lowering as decide_lowering
from jaxplan.partition._host_memory import in_shardings as in_shardings
from jaxplan.partition._host_memory import out_shardings as out_shardings
from jaxplan.partition._host_values import check_equal_arguments as check_equal_arguments
from jaxplan.partition._host_values import put as put
from jaxplan.partition._init import create as create
from jaxplan.partition._known_calls import Results as Results
from jaxplan.partition._lowered_program import LoweredProgram as LoweredProgram
from jaxplan.partition._lowering import Lowering as Lowering
from jaxplan.partition._lowering_json import lowering_from_json as lowering_from_json
from jaxplan.partition._lowering_json import lowering_to_json as lowering_to_json
from jaxplan.partition._meshes import device_mesh as device_mesh
from jaxplan.partition._meshes import named_mesh as named_mesh
from jaxplan.partition._meshes import specs_over as specs_over
from jaxplan.partition._planned import PlannedFunction as PlannedFunction
from jaxplan.partition._planned import compiled_bytes as compiled_bytes
from jaxplan.partition._planned import runs_as_planned as runs_as_planned
from jaxplan.partition._run import run_program as run_program
from jaxplan.partition._verified import Verified as Verified
