"""Price a compiled program from its own HLO, independently of the planner's cost model.

Deliberately simple and serial: nothing overlaps. Three terms: contractions at a fraction of the peak rate,
the bytes that everything else reads and writes at the rate of device memory, and ring collectives. Programs
of the planner and baselines are priced alike, so what is left out is left out on both sides. Chip and link
figures are the topology's; the formulas are not the planner's.
"""

import math
import re
from dataclasses import dataclass

from jaxplan.audit._aot import CompiledReport
from jaxplan.audit._hlo import Collective
from jaxplan.audit._hlo_instruction import Instruction, operand_types
from jaxplan.audit._hlo_text import parse_module
from jaxplan.mesh import Topology

# Assumptions, not measurements: large matrix products reach about 60 % of the data sheet's rate, streaming
# kernels about 80 % of the memory's.
CONTRACTION_EFFICIENCY = 0.6
MEMORY_EFFICIENCY = 0.8

_CALLS = re.compile(r"\bcalls=%?([\w.\-]+)")
_NO_TRAFFIC = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "iota"}
    | {"after-all", "partition-id", "replica-id", "opt-barrier", "domain"}
)
_COLLECTIVE_WORDS = ("all-", "reduce-scatter", "collective-", "ragged-", "send", "recv", "async-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Seconds of one step, one term after the other."""

    contraction_seconds: float
    memory_seconds: float
    communication_seconds: float

    @property
    def compute_seconds(self) -> float:
        """Contractions plus memory traffic of the rest."""
        return self.contraction_seconds + self.memory_seconds

    @property
    def total_seconds(self) -> float:
        """Compute plus communication: nothing is hidden."""
        return self.compute_seconds + self.communication_seconds


def price(report: CompiledReport, topology: Topology) -> Price:
    """The price of `report`, which must hold its HLO text, on `topology`."""
    chip = topology.chip
    contraction = sum(count / chip.matmul_flops_per_second(dtype) for dtype, count in report.flops_by_dtype)
    traffic = traffic_bytes(report.hlo_text or "") / chip.memory_bytes_per_second
    return Price(
        contraction_seconds=contraction / CONTRACTION_EFFICIENCY,
        memory_seconds=traffic / MEMORY_EFFICIENCY,
        communication_seconds=sum(c.count * collective_seconds(c, topology) for c in report.collectives),
    )


def traffic_bytes(hlo_text: str) -> int:
    """Bytes that kernels other than contractions and collectives read and write in one step.

    Operands plus results of every instruction outside fusions; an in-place update counts its whole buffer, so
    this is an upper estimate.
    """
    module = parse_module(hlo_text)
    inside = {
        _CALLS.search(instruction.attributes)[1]  # pyright: ignore[reportOptionalSubscript]
        for computation in module.computations.values()
        for instruction in computation.values()
        if instruction.opcode == "fusion"
    }
    return sum(
        runs * _bytes_moved(computation, instruction)
        for name, computation in module.computations.items()
        if (runs := module.runs.get(name, 0)) and name not in inside
        for instruction in computation.values()
    )


def _bytes_moved(computation: dict[str, Instruction], instruction: Instruction) -> int:
    opcode = instruction.opcode
    if opcode in _NO_TRAFFIC or opcode in ("dot", "convolution") or opcode.startswith(_COLLECTIVE_WORDS):
        return 0
    if opcode.endswith("-done") or (opcode == "custom-call" and "__cu" in instruction.attributes):
        return 0
    types = (*instruction.types, *operand_types(computation, instruction))
    return sum(t.num_bytes for t in types)


def collective_seconds(collective: Collective, topology: Topology) -> float:
    """One collective on a ring: (n-1)/n of the larger side over its slowest link; all-reduce pays twice."""
    n = collective.group_size
    level = slowest_level(collective, topology)
    bandwidth = _ring_bandwidth(collective, topology, level)
    latency = topology.levels[level].link.latency_seconds
    rounds = {"collective-permute": 1, "all-reduce": 2 * (n - 1)}.get(collective.kind, n - 1)
    share = collective.num_bytes if collective.kind == "collective-permute" else collective.num_bytes / n
    return topology.chip.collective_launch_seconds + rounds * (share / bandwidth + latency)


def _ring_bandwidth(collective: Collective, topology: Topology, level: int) -> float:
    """Bytes per second of the rings of one group, all groups at work at once."""
    link = topology.levels[level].link
    inner = topology.levels[level + 1 :]
    per_child = math.prod(other.size for other in inner)
    ranks = _ranks_per_child(collective, per_child)
    bandwidth = ranks * link.bandwidth_bytes_per_second
    if link.shared_bytes_per_second is not None:
        bandwidth = min(bandwidth, link.shared_bytes_per_second * ranks / per_child)
    if ranks > 1:
        bandwidth = min(bandwidth, *(other.link.bandwidth_bytes_per_second for other in inner))
    return bandwidth


def slowest_level(collective: Collective, topology: Topology) -> int:
    """The outermost level whose children some group spans."""
    stride = topology.num_devices
    for index, level in enumerate(topology.levels):
        stride //= level.size
        if any(len({device // stride for device in group}) > 1 for group in collective.groups):
            return index
    return len(topology.levels) - 1


def _ranks_per_child(collective: Collective, per_child: int) -> int:
    """Devices of one group below one child: a ring crosses the shared link once for all of them."""
    group = max(collective.groups, key=len)
    children: dict[int, int] = {}
    for device in group:
        children[device // per_child] = children.get(device // per_child, 0) + 1
    return max(children.values())
