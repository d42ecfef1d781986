"""Where an instruction comes from: the operator and the source line that compilers keep beside it."""

import re
from collections.abc import Mapping

from jaxplan.audit._hlo_instruction import Instruction

CALL_SCOPE = "jit(exported_step)/call_exported"  # scope around an exported program, before its own names
_MOST_COPIES = 8  # followed from an instruction without a name to one that has one

_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"(?:\s+source_line=(\d+))?')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_TABLE_ROW = re.compile(r"^(\d+) (.*)$")
_FIELD = re.compile(r"(\w+)=(\d+)")


def op_name_of(attributes: str) -> str:
    """The operator's name with its scopes (`jit(step)/layer/dot_general`); empty where the compiler kept none."""
    match = _OP_NAME.search(attributes)
    return match[1] if match else ""


def origin(computation: Mapping[str, Instruction], instruction: Instruction) -> Instruction:
    """The instruction itself; for one that the compiler inserted without a name, the source that it copies or moves."""
    for _ in range(_MOST_COPIES):
        if op_name_of(instruction.attributes) not in ("", CALL_SCOPE) or not instruction.operands:
            break
        instruction = computation[instruction.operands[0]]
    return instruction


def place_of(
    computation: Mapping[str, Instruction], instruction: Instruction, frames: Mapping[int, str]
) -> tuple[str, str]:
    """`(op_name, file:line)` of an instruction, of the value it moves, or, for an argument, of its first reader."""
    named = found = origin(computation, instruction)
    for _ in range(_MOST_COPIES):
        op_name, source = op_name_of(found.attributes), source_of(found.attributes, frames)
        if source and op_name != CALL_SCOPE:
            return op_name, source
        reader = next((i for i in computation.values() if instruction.name in i.operands), None)
        if reader is None:
            break
        instruction = found = reader
    return op_name_of(named.attributes), ""


def source_of(attributes: str, frames: Mapping[int, str]) -> str:
    """`file:line` of an instruction, from its metadata or the frame that it names; empty where it has neither."""
    if match := _SOURCE.search(attributes):
        return f"{match[1]}:{match[2]}" if match[2] else match[1]
    match = _FRAME.search(attributes)
    return frames.get(int(match[1]), "") if match else ""


def stack_frames(header: str) -> dict[int, str]:
    """`file:line` of each stack frame in the tables that newer compilers print above the computations."""
    tables: dict[str, dict[int, str]] = {}
    rows: dict[int, str] = {}
    for line in header.splitlines()[1:]:
        if match := _TABLE_ROW.match(line):
            rows[int(match[1])] = match[2]
        elif line.strip():
            rows = tables.setdefault(line.strip(), {})
    files = {key: value.strip('"') for key, value in tables.get("FileNames", {}).items()}
    places = {}
    for key, value in tables.get("FileLocations", {}).items():
        fields = dict(_FIELD.findall(value))
        places[key] = f"{files.get(int(fields.get('file_name_id', 0)), '?')}:{fields.get('line', '?')}"
    frames = {}
    for key, value in tables.get("StackFrames", {}).items():
        place = places.get(int(dict(_FIELD.findall(value)).get("file_location_id", 0)))
        if place is not None:
            frames[key] = place
    return frames
