"""Where an instruction comes from: the operator and the source line that compilers keep beside it."""

import re

_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"(?:\s+source_line=(\d+))?')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_TABLE_ROW = re.compile(r"^(\d+) (.*)$")
_FIELD = re.compile(r"(\w+)=(\d+)")


def op_name_of(attributes: str) -> str:
    """The operator's name with its scopes (`jit(step)/layer/dot_general`); empty where the compiler kept none."""
    match = _OP_NAME.search(attributes)
    return match[1] if match else ""


def source_of(attributes: str, frames: dict[int, str]) -> str:
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
