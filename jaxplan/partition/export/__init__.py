"""Write a plan as a plain JAX script: mesh, specs, and the program with its constraints and collectives."""

from jaxplan.partition.export._script import Script as Script
from jaxplan.partition.export._script import script_of as script_of
from jaxplan.partition.export._script import write_script as write_script
