"""Topology, atomic axes, shardings, collectives and resharding paths."""

from jaxplan.mesh._axes import AtomicAxis as AtomicAxis
from jaxplan.mesh._chips import CHIPS as CHIPS
from jaxplan.mesh._chips import ChipSpec as ChipSpec
from jaxplan.mesh._chips import Link as Link
from jaxplan.mesh._collectives import COLLECTIVES as COLLECTIVES
from jaxplan.mesh._collectives import collective_seconds as collective_seconds
from jaxplan.mesh._efficiency import Efficiency as Efficiency
from jaxplan.mesh._machine import Machine as Machine
from jaxplan.mesh._named_axes import axes_of as axes_of
from jaxplan.mesh._named_axes import named_axes as named_axes
from jaxplan.mesh._parse import parse_topology as parse_topology
from jaxplan.mesh._part import part_counts as part_counts
from jaxplan.mesh._part import part_of as part_of
from jaxplan.mesh._permutation import permutation_pairs as permutation_pairs
from jaxplan.mesh._profile_table import ProfileTable as ProfileTable
from jaxplan.mesh._resharding import Path as Path
from jaxplan.mesh._resharding import Step as Step
from jaxplan.mesh._resharding import reshard_bound as reshard_bound
from jaxplan.mesh._resharding import reshard_path as reshard_path
from jaxplan.mesh._resharding import reshard_seconds as reshard_seconds
from jaxplan.mesh._resharding import reshard_table as reshard_table
from jaxplan.mesh._scaled import enlarged as enlarged
from jaxplan.mesh._scaled import with_bandwidth as with_bandwidth
from jaxplan.mesh._sharding import Sharding as Sharding
from jaxplan.mesh._topology import Topology as Topology
from jaxplan.mesh._topology_data import Level as Level
