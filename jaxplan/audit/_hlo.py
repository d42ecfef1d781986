"""The collectives of a compiled program, read from its HLO text."""

import re
from dataclasses import dataclass, replace
from math import prod

from jaxplan.audit._hlo_flops import flops as flops
from jaxplan.audit._hlo_groups import Groups, connected_groups, parse_groups
from jaxplan.audit._hlo_instruction import ArrayType, Instruction, operand_types
from jaxplan.audit._hlo_source import place_of, stack_frames
from jaxplan.audit._hlo_text import Module, parse_module

_KINDS = {
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-reduce": "all-reduce",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "collective-permute",
    "collective-broadcast": "collective-broadcast",
    "send": "collective-permute",  # the compiler spells large permutes as send and recv
}
_NUM_DEVICES = re.compile(r"\b(num_partitions|replica_count)=(\d+)")
_CHAIN, _CHAIN_START = 'chain_id="', '"AsyncCollectiveStart"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of a compiled program (combined operands count as one).

    `num_bytes` is per device and execution, the larger side: all-gather its output, reduce-scatter and
    all-reduce their input, all-to-all and collective-permute the local bytes; of elements, without the padding of
    tiles. `count` is how often a step runs it (loops). `groups` holds device numbers of the program's device order;
    for a collective-permute they are the sets of devices that exchange data. `op_name` and `source` (`file:line`) are
    those of the moved value, or of its reader, where the compiler gave the collective none.
    """

    kind: str
    groups: Groups
    num_bytes: int
    count: int = 1
    op_name: str = ""
    source: str = ""

    @property
    def group_size(self) -> int:
        """Devices of the largest group."""
        return max(map(len, self.groups))

    @property
    def total_bytes(self) -> int:
        """`num_bytes` times `count`."""
        return self.num_bytes * self.count


def collectives(hlo_text: str) -> tuple[Collective, ...]:
    """Every collective that one step runs, in order of appearance; see `module_collectives`."""
    return module_collectives(parse_module(hlo_text))


def module_collectives(module: Module) -> tuple[Collective, ...]:
    """Every collective of `module` that moves data between devices.

    Asynchronous pairs count once, at their start. Groups of one device and permutes of each device to itself
    are copies and left out.
    """
    frames = stack_frames(module.header)
    found = []
    for name, instruction in module.in_order():
        collective = instruction_collective(module, name, instruction)
        if collective is not None:
            op_name, source = place_of(module.computations[name], instruction, frames)
            found.append(replace(collective, count=module.runs[name], op_name=op_name, source=source))
    return tuple(found)


def instruction_collective(module: Module, name: str, instruction: Instruction) -> Collective | None:
    """The collective that one instruction of the computation `name` starts, without its place in the source.

    None for every other instruction, and for one that moves nothing between devices.
    """
    computation = module.computations[name]
    kind = _kind(name, computation, instruction)
    if kind is None:
        return None
    groups = _groups(kind, instruction, _num_devices(module.header))
    if not groups or max(map(len, groups)) < 2:
        return None
    num_bytes = _num_bytes(kind, computation, instruction, len(groups[0]))
    return Collective(kind=kind, groups=groups, num_bytes=num_bytes)


def _num_devices(header: str) -> int:
    return prod(int(count) for _, count in _NUM_DEVICES.findall(header.split("\n", 1)[0]))


def _kind(name: str, computation: dict[str, Instruction], instruction: Instruction) -> str | None:
    """The kind of a collective; None of other instructions, and where a collective only goes on.

    The TPU compiler runs a collective beside arithmetic by repeating it, with the same `chain_id`, in each fusion
    that moves it on; it starts in the one that hands it to `AsyncCollectiveStart`. Its reduce-scatters may be an
    all-reduce inside a fusion `all-reduce-scatter` that keeps a slice.
    """
    kind = _KINDS.get(instruction.opcode.removesuffix("-start"))
    if kind is None:
        return None
    if _CHAIN in instruction.attributes and not any(
        instruction.name in other.operands and _CHAIN_START in other.attributes
        for other in computation.values()
    ):
        return None
    return "reduce-scatter" if name.startswith("all-reduce-scatter") else kind


def memory_bytes(memory_stats: object) -> int:
    """Peak bytes per device of a `memory_analysis()`: arguments + outputs - aliased + temporaries."""
    return (
        memory_stats.argument_size_in_bytes  # pyright: ignore[reportAttributeAccessIssue]
        + memory_stats.output_size_in_bytes  # pyright: ignore[reportAttributeAccessIssue]
        - memory_stats.alias_size_in_bytes  # pyright: ignore[reportAttributeAccessIssue]
        + memory_stats.temp_size_in_bytes  # pyright: ignore[reportAttributeAccessIssue]
    )


def _num_bytes(
    kind: str, computation: dict[str, Instruction], instruction: Instruction, group_size: int
) -> int:
    operands = operand_types(computation, instruction)
    if instruction.opcode in ("send", "ragged-all-to-all", "ragged-all-to-all-start"):
        return operands[0].num_bytes  # the rest are tokens, offsets and the output buffer
    if kind == "collective-permute" and _is_in_place(operands):
        return operands[0].num_bytes
    local = sum(_elements_bytes(computation, name) for name in instruction.operands)
    return local * group_size if kind == "all-gather" else local


def _elements_bytes(computation: dict[str, Instruction], name: str) -> int:
    """Bytes of an operand without the padding of its tiles.

    The TPU compiler's `all-reduce-scatter` reads an array with a padded buffer as one of whole tiles (a bitcast).
    """
    instruction = computation[name]
    local = sum(t.num_bytes for t in instruction.types)
    if instruction.opcode == "bitcast":
        return min(local, sum(t.num_bytes for t in operand_types(computation, instruction)))
    return local


def _is_in_place(operands: tuple[ArrayType, ...]) -> bool:
    """Whether a permute has, besides the moved value, the buffer that it writes into and the offsets in both.

    A combined one has as many arrays as were combined, and none of them are numbers alone.
    """
    return len(operands) > 2 and all(t.dtype == "s32" and not t.shape for t in operands[2:])


def _groups(kind: str, instruction: Instruction, num_devices: int) -> Groups:
    if kind == "collective-permute":
        return connected_groups(instruction.attributes)
    return parse_groups(instruction.attributes, num_devices)
