"""Run a plan in stages: a program per stage and segment, on the devices of the stage."""

from jaxplan.partition.stages._created import create_in_stages as create_in_stages
from jaxplan.partition.stages._devices import argument_shardings as argument_shardings
from jaxplan.partition.stages._devices import result_shardings as result_shardings
from jaxplan.partition.stages._devices import stage_meshes as stage_meshes
from jaxplan.partition.stages._held import held_bytes as held_bytes
from jaxplan.partition.stages._held import port_bytes as port_bytes
from jaxplan.partition.stages._staged_function import StagedFunction as StagedFunction
