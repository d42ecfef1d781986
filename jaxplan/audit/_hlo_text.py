"""Compiled HLO text as plain data: computations, instructions, and how often each computation runs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from jaxplan.audit._hlo_instruction import ArrayType, Instruction
from jaxplan.audit._hlo_trips import counted_trips

_COMMENT = re.compile(r"/\*.*?\*/")
_ARRAY = re.compile(r"\b(pred|token|opaque|[a-z]\d*[a-z0-9]*)\[([^\]]*)\](\{[^}]*\})?")
_NAME = re.compile(r"([\w.\-]+)\s*$")
_PERCENT_NAME = re.compile(r"%([\w.\-]+(?:#\d+)?)")
_BRACKET = re.compile(r'[()]|"(?:[^"\\]|\\.)*"')
_HEAD = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+) = ")
_TRIP_COUNT = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"?(\d+)"?')
_CALLED = re.compile(
    r"\b(body|condition|calls|to_apply|true_computation|false_computation|branch_computations"
    r"|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A parsed HLO module; `runs` maps a computation's name to how often one step executes it.

    Bodies of loops count their known trip count; `unknown_loops` names the loops that have none (counted
    once). Every branch of a conditional counts as taken.
    """

    header: str
    computations: dict[str, dict[str, Instruction]]
    entry: str
    runs: dict[str, int]
    unknown_loops: tuple[str, ...]

    def executed(self) -> Iterator[tuple[dict[str, Instruction], Instruction, int]]:
        """Yield `(computation, instruction, times executed)` for every instruction that a step runs, in their order."""
        for name, instruction in self.in_order():
            yield self.computations[name], instruction, self.runs[name]

    def in_order(self) -> Iterator[tuple[str, Instruction]]:
        """Yield `(name of the computation, instruction)` for every instruction that a step runs.

        A computation stands where its first call is, such as that of an asynchronous collective.
        """
        return self._of_computation(self.entry, set())

    def _of_computation(self, name: str, seen: set[str]) -> Iterator[tuple[str, Instruction]]:
        seen.add(name)
        for instruction in self.computations[name].values() if self.runs.get(name, 0) else ():
            yield name, instruction
            for called in called_computations(instruction):
                if called in self.computations and called not in seen:
                    yield from self._of_computation(called, seen)


def parse_module(hlo_text: str) -> Module:
    """Parse the text of a compiled module (`jax.stages.Compiled.as_text()`).

    Raises `ValueError` if the text has no entry computation.
    """
    header, computations, entry, current = [], {}, None, None
    for line in _COMMENT.sub("", hlo_text).splitlines():
        if current is None:
            match = _HEAD.match(line)
            if match and not line.startswith("HloModule"):
                current = computations.setdefault(match[2], {})
                entry = match[2] if match[1] else entry
            else:
                header.append(line)
        elif line.startswith("}"):
            current = None
        elif (instruction := _parse_instruction(line)) is not None:
            current |= _elements_read(current, instruction)
            current[instruction.name] = instruction
    if entry is None:
        raise ValueError(f"not a compiled HLO module: no ENTRY computation in {len(hlo_text)} characters")
    runs, unknown = _count_runs(computations, entry)
    return Module(
        header="\n".join(header), computations=computations, entry=entry, runs=runs, unknown_loops=unknown
    )


@lru_cache(maxsize=2**16)
def parse_types(type_text: str) -> tuple[ArrayType, ...]:
    """The arrays of an HLO type such as `(bf16[2,3]{1,0}, f32[])`, nested tuples flattened."""
    return tuple(
        ArrayType(
            dtype=dtype,
            shape=tuple(int(d.lstrip("<=")) for d in dims.split(",") if d.strip()),
            layout=layout if ":" in layout else "",
        )
        for dtype, dims, layout in _ARRAY.findall(type_text)
    )


def _parse_instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    type_end = _closing(line, match.end()) if line[match.end()] == "(" else line.index(" ", match.end())
    open_bracket = line.index("(", type_end)
    close = _closing(line, open_bracket)
    inside = line[open_bracket + 1 : close - 1]
    opcode = line[type_end:open_bracket].strip()
    leaf = opcode in ("constant", "parameter", "iota")
    return Instruction(
        name=match[2],
        opcode=opcode,
        types=parse_types(line[match.end() : type_end]),
        operands=() if leaf else tuple(_operand_names(inside)),
        operand_text=inside,
        attributes=line[close:],
    )


def _elements_read(computation: dict[str, Instruction], instruction: Instruction) -> dict[str, Instruction]:
    """Elements of tuples that are operands, such as ``%fusion#1``, as the instructions that older compilers print."""
    found: dict[str, Instruction] = {}
    for operand in instruction.operands:
        name, _, index = operand.partition("#")
        if index and operand not in computation and name in computation:
            found[operand] = Instruction(
                name=operand,
                opcode="get-tuple-element",
                types=computation[name].types[int(index) : int(index) + 1],
                operands=(name,),
                operand_text=f"%{name}",
                attributes=f", index={index}",
            )
    return found


def _closing(line: str, start: int) -> int:
    """Index just after the bracket that closes the one at `start`; quoted text is skipped."""
    depth = 0
    for match in _BRACKET.finditer(line, start):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(line)


def _operand_names(text: str) -> list[str]:
    """Names in an operand list; types before them, which some printers add, hold commas but no `%`."""
    if "%" in text:
        return _PERCENT_NAME.findall(text)
    return [match[1] for part in text.split(",") if (match := _NAME.search(part))]


def called_computations(instruction: Instruction) -> tuple[str, ...]:
    """Names of the computations that an instruction runs: bodies, branches, fusions."""
    return tuple(name for name, _, _ in _called(instruction, None))


def trip_count(instruction: Instruction) -> int | None:
    """How often a loop runs its body, where the compiler knows."""
    match = _TRIP_COUNT.search(instruction.attributes)
    return int(match[1]) if match else None


def _called(instruction: Instruction, trips_of_loop: int | None) -> Iterator[tuple[str, int, bool]]:
    """Yield `(computation, times per execution, whether a loop of unknown length)` of each call."""
    unknown = instruction.opcode == "while" and trips_of_loop is None
    trips = 1 if trips_of_loop is None else trips_of_loop
    for role, names in _CALLED.findall(instruction.attributes):
        if role == "to_apply" and instruction.opcode not in ("call", "call-start"):
            continue  # the scalar function of a reduction, a sort or a collective
        times = trips + 1 if role == "condition" else trips
        for name in names.strip("{}").split(","):
            yield name.strip().lstrip("%"), times, unknown


def _trips(
    computations: dict[str, dict[str, Instruction]], computation: dict[str, Instruction], instruction: Instruction
) -> int | None:
    """How often a loop runs its body; None of loops of unknown length, and of all else."""
    if instruction.opcode != "while":
        return None
    known = trip_count(instruction)
    return counted_trips(computations, computation, instruction) if known is None else known


def _count_runs(
    computations: dict[str, dict[str, Instruction]], entry: str
) -> tuple[dict[str, int], tuple[str, ...]]:
    runs: dict[str, int] = {}
    unknown_loops: dict[str, None] = {}
    pending = [(entry, 1)]
    while pending:
        name, times = pending.pop()
        runs[name] = runs.get(name, 0) + times
        for instruction in computations[name].values():
            trips = _trips(computations, computations[name], instruction)
            for called, count, unknown in _called(instruction, trips):
                if unknown:
                    unknown_loops[instruction.name] = None
                if called in computations:
                    pending.append((called, times * count))
    return runs, tuple(unknown_loops)
