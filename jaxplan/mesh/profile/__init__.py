"""Measure a machine: collectives, matrix products and memory, all devices busy at once.

`measure` returns a table, `Topology.with_profile` prices with it, and `jaxplan profile` does the first from the shell.
"""

from jaxplan.mesh._machine import Machine as Machine
from jaxplan.mesh._profile_check import read_profile as load
from jaxplan.mesh._profile_table import ProfileTable as ProfileTable
from jaxplan.mesh.profile._measure import measure as measure
from jaxplan.mesh.profile._settings import Settings as Settings

__all__ = ["Machine", "ProfileTable", "Settings", "load", "measure"]
