"""When each instruction of a compiled program runs: one queue of kernels and one of collectives, in scheduled order.

Independent of the planner's cost code: everything is read off the HLO text, kernel by kernel. Assumed, not measured:

- A contraction takes the longer of its FLOPs at `CONTRACTION_EFFICIENCY` of the peak and its bytes at
  `MEMORY_EFFICIENCY` of the memory's rate; every other kernel its bytes; none less than the chip's launch time.
- A slice or a gather reads as many bytes as it returns; an update in place reads and writes the updated part.
- Collectives are rings on the slowest link that they cross (`_pricing.collective_seconds`).
- Kernels run one after the other in the compiled order, collectives likewise on a queue of their own. Either waits for
  its operands. A collective that reads nothing recent may start ahead of its place, but not before the kernels in
  front of the collective before it: so one more buffer than in the compiled schedule is alive at most, and nothing is
  hidden beyond the kernels that stand beside it. A collective slows no kernel down.
- A loop starts when both queues are empty, and takes its body's time as often as it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.quality._pricing import CONTRACTION_EFFICIENCY, MEMORY_EFFICIENCY, collective_seconds
from jaxplan.audit._hlo import Collective, instruction_collective
from jaxplan.audit._hlo_flops import instruction_flops
from jaxplan.audit._hlo_instruction import Instruction, operand_types
from jaxplan.audit._hlo_text import Module, called_computations, parse_module, trip_count
from jaxplan.mesh import Topology

_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_FREE = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "after-all", "partition-id"}
    | {"replica-id", "opt-barrier", "optimization-barrier", "domain"}
)
_READS_PART = frozenset({"gather", "slice", "dynamic-slice"})
_IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}  # which operand is the update


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Seconds of one step of one device.

    `compute_seconds` are all kernels, `communication_seconds` all collectives one after the other;
    `overlapped_seconds` is when the last of either ends: from the larger of the two to their sum.
    """

    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    overlapped_seconds: float = 0.0

    @property
    def serial_seconds(self) -> float:
        """Kernels and collectives one after the other."""
        return self.compute_seconds + self.communication_seconds


def timeline(hlo_text: str, topology: Topology) -> Timeline:
    """The timeline of a compiled program of `topology`."""
    module = parse_module(hlo_text)
    return _Computations(module, topology).run(module.entry)


class _Computations:
    """Timelines of the computations of a module, each worked out once."""

    def __init__(self, module: Module, topology: Topology) -> None:
        self.module, self.topology = module, topology
        self.known: dict[str, Timeline] = {}

    def run(self, name: str) -> Timeline:
        if name not in self.known:
            self.known[name] = self._schedule(name)
        return self.known[name]

    def _schedule(self, name: str) -> Timeline:
        computation = self.module.computations[name]
        ready: dict[str, float] = {}
        kernels = collectives = 0.0  # when the two queues are empty
        before = here = 0.0  # when the kernels in front of the last two collectives have ended
        compute = communication = 0.0
        for instruction in computation.values():
            start = max((ready.get(name, 0.0) for name in instruction.operands), default=0.0)
            inner = self._inner(instruction)
            if inner is not None:
                start = max(start, kernels, collectives)
                ready[instruction.name] = kernels = collectives = start + inner.overlapped_seconds
                compute += inner.compute_seconds
                communication += inner.communication_seconds
                continue
            moved = self._collectives(name, instruction)
            if moved:
                seconds = sum(collective_seconds(c, self.topology) for c in moved)
                before, here = here, kernels
                ready[instruction.name] = collectives = max(start, collectives, before) + seconds
                communication += seconds
                continue
            seconds = self.kernel_seconds(computation, instruction)
            ready[instruction.name] = start
            if seconds:
                ready[instruction.name] = kernels = max(start, kernels) + seconds
                compute += seconds
        return Timeline(
            compute_seconds=compute,
            communication_seconds=communication,
            overlapped_seconds=max(kernels, collectives),
        )

    def _inner(self, instruction: Instruction) -> Timeline | None:
        """The computations of a loop, a branch or a call; of a conditional all branches."""
        if instruction.opcode not in ("while", "conditional", "call"):
            return None
        body = _BODY.search(instruction.attributes)
        called = [body[1]] if body else called_computations(instruction)
        trips = trip_count(instruction) or 1
        parts = [self.run(c) for c in called if c in self.module.computations]
        return Timeline(
            compute_seconds=trips * sum(p.compute_seconds for p in parts),
            communication_seconds=trips * sum(p.communication_seconds for p in parts),
            overlapped_seconds=trips * sum(p.overlapped_seconds for p in parts),
        )

    def _collectives(self, name: str, instruction: Instruction) -> tuple[Collective, ...]:
        """The collectives that an instruction starts: itself, or those that it runs asynchronously."""
        own = instruction_collective(self.module, name, instruction)
        if own is not None:
            return (own,)
        if instruction.opcode != "async-start":
            return ()
        called = [other for other in called_computations(instruction) if other in self.module.computations]
        inside = (
            instruction_collective(self.module, other, i)
            for other in called
            for i in self.module.computations[other].values()
        )
        return tuple(c for c in inside if c is not None)

    def kernel_seconds(self, computation: dict[str, Instruction], instruction: Instruction) -> float:
        """Seconds of one kernel; 0 where nothing runs."""
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith(("-done", "-start")) or opcode in ("send", "recv"):
            return 0.0
        chip = self.topology.chip
        operands = operand_types(computation, instruction)
        flops = instruction_flops(instruction, operands)
        rate = chip.matmul_flops_per_second(operands[0].dtype) if flops else 1.0
        moved = self._kernel_bytes(computation, instruction, is_product=bool(flops))
        return max(
            flops / (CONTRACTION_EFFICIENCY * rate),
            moved / (MEMORY_EFFICIENCY * chip.memory_bytes_per_second),
            chip.launch_seconds,
        )

    def _kernel_bytes(
        self, computation: dict[str, Instruction], instruction: Instruction, *, is_product: bool
    ) -> int:
        reads = [computation[name] for name in instruction.operands]
        if instruction.opcode == "fusion":
            (called,) = called_computations(instruction)
            return fused_bytes(self.module.computations[called])
        if instruction.opcode in _READS_PART:
            return 2 * _num_bytes([instruction]) + _num_bytes(reads[1:])
        if instruction.opcode in _IN_PLACE:
            return _updated_bytes(instruction, reads)
        results = instruction.types[:1] if is_product else instruction.types  # the rest is scratch
        return sum(t.num_bytes for t in results) + _num_bytes(reads)


def fused_bytes(computation: dict[str, Instruction]) -> int:
    """Bytes that a fusion reads and writes: arguments as far as they are read, results as far as they are written."""
    readers: dict[str, list[Instruction]] = {name: [] for name in computation}
    for instruction in computation.values():
        for name in dict.fromkeys(instruction.operands):
            readers[name].append(instruction)
    parameters = [i for i in computation.values() if i.opcode == "parameter"]
    read = sum(_read_bytes(parameter, parameter, readers) for parameter in parameters)
    return read + _written_bytes(computation, list(computation.values())[-1])


def _read_bytes(parameter: Instruction, value: Instruction, readers: dict[str, list[Instruction]]) -> int:
    whole, total = _num_bytes([parameter]), 0
    for reader in readers[value.name]:
        first = reader.operands[:1] == (value.name,)
        if first and reader.opcode in _READS_PART:
            total += _num_bytes([reader])
        elif first and reader.opcode in _IN_PLACE:
            continue  # counted where it is written
        elif reader.opcode == "bitcast":
            total += _read_bytes(parameter, reader, readers)
        else:
            return whole
    return min(total, whole)


def _written_bytes(computation: dict[str, Instruction], result: Instruction) -> int:
    if result.opcode in ("tuple", "bitcast"):
        return sum(_written_bytes(computation, computation[name]) for name in result.operands)
    if result.opcode in _IN_PLACE:
        return _updated_bytes(result, [computation[name] for name in result.operands])
    return _num_bytes([result])


def _updated_bytes(instruction: Instruction, reads: list[Instruction]) -> int:
    """An update in place: the new part is read, and its place written; a scatter reads its place as well."""
    place = _IN_PLACE[instruction.opcode]
    return (place + 1) * _num_bytes(reads[place : place + 1])


def _num_bytes(instructions: Iterable[Instruction]) -> int:
    return sum(t.num_bytes for instruction in instructions for t in instruction.types)
