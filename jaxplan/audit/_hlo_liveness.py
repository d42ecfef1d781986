"""Buffers of a compiled program at its peak, from the live ranges of its scheduled HLO."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxplan.audit._hlo_instruction import ArrayType, Instruction
from jaxplan.audit._hlo_source import op_name_of, origin, source_of, stack_frames
from jaxplan.audit._hlo_text import Module, called_computations

_ALIAS = frozenset({"bitcast", "optimization-barrier", "opt-barrier", "domain", "while", "async-update"})
_NO_USE = frozenset({"bitcast", "optimization-barrier", "opt-barrier", "domain", "tuple", "get-tuple-element"})
_NO_BUFFER = frozenset({"parameter", "constant", "partition-id", "replica-id", "after-all"})
_OPERANDS_FIRST = frozenset(
    {"all-gather-start", "reduce-scatter-start", "collective-permute-start"}
    | {"async-start", "call-start", "slice-start"}
)
_IN_PLACE = re.compile(r"\boutput_to_operand_aliasing=\{((?:\{[\d,]*\}: \(\d+, \{[\d,]*\}[^)]*\),? ?)+)\}")
_IN_PLACE_PAIR = re.compile(r"\{(\d*)[\d,]*\}: \((\d+), \{(\d*)[\d,]*\}")
_INDEX = re.compile(r"\bindex=(\d+)")
_NUMBER = re.compile(r"(?<=_)\d+")
_IN_PLACE_NAMES = ("dynamic-update-slice", "dynamic_update_slice", "scatter")
_RUNS_INSIDE = frozenset({"while", "conditional", "call", "async-start", "call-start"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """`count` like buffers that are alive together: their type, bytes in all, operator and `file:line`."""

    array: str
    num_bytes: int
    count: int = 1
    op_name: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Temporaries at the moment when they are largest: bytes in all, and their buffers, largest first.

    Bytes are a lower bound of the compiler's reservation (`temp_bytes`): its buffers have alignment and gaps.
    """

    num_bytes: int
    holdings: tuple[Holding, ...]


def peak_temporaries(module: Module) -> Peak:
    """Temporaries of one device at their peak.

    Arguments, constants and buffers of outputs are no temporaries. A tuple, a bitcast and a loop pass buffers
    on; an asynchronous operation holds its operands until it is done; an update of a slice writes over an operand
    that nobody reads later. Buffers in another memory
    than the device's main one (`S(1)` of TPU layouts) do not count.
    """
    frames = stack_frames(module.header)
    memo: dict[str, Peak] = {}
    found = _peak_of(module, module.entry, frames, memo)
    return replace(found, holdings=_grouped(found.holdings))


def _peak_of(module: Module, name: str, frames: dict[int, str], memo: dict[str, Peak]) -> Peak:
    """The peak inside one computation; its operands and results belong to its caller."""
    if name in memo:
        return memo[name]
    memo[name] = Peak(num_bytes=0, holdings=())
    scan = _Scan(module.computations[name])
    inner = {
        place: max(
            (_peak_of(module, called, frames, memo) for called in called_computations(instruction)
             if called in module.computations),
            key=lambda peak: peak.num_bytes,
            default=memo[name],
        )
        for place, instruction in enumerate(scan.instructions)
        if instruction.opcode in _RUNS_INSIDE
    }  # fmt: skip
    place = scan.fullest({place: peak.num_bytes for place, peak in inner.items()})
    own = [_holding(array, by, frames) for array, by in scan.alive(place)]
    below = inner.get(place, memo[name])
    holdings = (*own, *below.holdings)
    memo[name] = Peak(num_bytes=sum(h.num_bytes for h in holdings), holdings=holdings)
    return memo[name]


class _Scan:
    """Births and deaths of the buffers of one computation, in the order of its schedule.

    A buffer is a number; `leaves` are, for each instruction, the sets of buffers behind the arrays of its result.
    """

    def __init__(self, computation: dict[str, Instruction]) -> None:
        self.by_name = computation
        self.instructions = list(computation.values())
        self.leaves: dict[str, list[tuple[int, ...]]] = {}
        self.made: list[tuple[ArrayType, int]] = []  # of each buffer: its type and the place of its birth
        self.last: list[int] = []
        for place, instruction in enumerate(self.instructions):
            self.leaves[instruction.name] = self._results(place, instruction)
            for operand in instruction.operands if instruction.opcode not in _NO_USE else ():
                for buffer in self._buffers(operand):
                    self.last[buffer] = place
        for buffer in self._buffers(self.instructions[-1].name):  # the root: in the caller's memory
            self.last[buffer] = -1
        self._share()

    def _buffers(self, name: str) -> Iterator[int]:
        for leaf in self.leaves.get(name, ()):
            yield from leaf

    def _new(self, array: ArrayType, place: int) -> tuple[int, ...]:
        self.made.append((array, place))
        self.last.append(place)
        return (len(self.made) - 1,)

    def _results(self, place: int, instruction: Instruction) -> list[tuple[int, ...]]:
        operands = [leaf for name in instruction.operands for leaf in self.leaves.get(name, ())]
        opcode, types = instruction.opcode, instruction.types
        if opcode in _NO_BUFFER:
            return [()] * len(types)
        if opcode in _ALIAS or opcode == "tuple":
            return operands
        if opcode == "get-tuple-element":
            return self._element(instruction, operands)
        if opcode in _OPERANDS_FIRST:
            return operands + [self._new(t, place) for t in types[len(operands) :]]
        if opcode == "copy-start":
            return [self._new(types[0], place), *operands, ()]
        if opcode.endswith("-done"):
            return self._done(instruction, operands)
        results = [self._new(t, place) for t in types]
        for output, operand, leaf in _in_place(instruction):
            source = self.leaves.get(instruction.operands[operand], ())
            if output < len(results) and leaf < len(source):
                results[output] = source[leaf]
        return results

    def _element(self, instruction: Instruction, operands: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """An element of a tuple; where tuples are nested the index counts too few arrays."""
        match = _INDEX.search(instruction.attributes)
        first = int(match[1]) if match else 0
        return operands[first : first + len(instruction.types)]

    def _done(self, instruction: Instruction, started: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        start = self.by_name[instruction.operands[0]]
        given = sum(len(self.leaves.get(name, ())) for name in start.operands)
        first = given if start.opcode in _OPERANDS_FIRST else 0
        return started[first : first + len(instruction.types)]

    def _share(self) -> None:
        """Let updates of slices overwrite the operand that they read last."""
        for place, instruction in enumerate(self.instructions):
            if not _writes_in_place(instruction):
                continue
            dying = [b for name in instruction.operands for b in self._buffers(name) if self.last[b] == place]
            for buffer in self._buffers(instruction.name):
                array, born = self.made[buffer]
                if born != place or self.last[buffer] < 0:
                    continue
                same = next((b for b in dying if _alike(self.made[b][0], array)), None)
                if same is not None:
                    dying.remove(same)
                    self.last[same] = place - 1

    def _sizes(self) -> Iterator[tuple[int, int]]:
        for buffer, (array, _) in enumerate(self.made):
            if array.memory_space == 0:
                yield buffer, array.allocated_bytes

    def fullest(self, inside: dict[int, int]) -> int:
        """The place where most bytes are alive, counting those inside the computations called there."""
        change: dict[int, int] = defaultdict(int)
        for buffer, size in self._sizes():
            born, last = self.made[buffer][1], self.last[buffer]
            if last >= born:
                change[born] += size
                change[last + 1] -= size
        most, best, alive = -1, 0, 0
        for place in range(len(self.instructions)):
            alive += change[place]
            if alive + inside.get(place, 0) > most:
                most, best = alive + inside.get(place, 0), place
        return best

    def alive(self, place: int) -> Iterator[tuple[ArrayType, Instruction]]:
        """The live buffers at a place, and the producer of each."""
        for buffer, _ in self._sizes():
            array, born = self.made[buffer]
            if born <= place <= self.last[buffer]:
                yield array, origin(self.by_name, self.instructions[born])


def _in_place(instruction: Instruction) -> Iterator[tuple[int, int, int]]:
    """`(result, operand, array of that operand)` of the operands that an instruction says it overwrites."""
    if match := _IN_PLACE.search(instruction.attributes):
        for output, operand, leaf in _IN_PLACE_PAIR.findall(match[1]):
            yield int(output or 0), int(operand), int(leaf or 0)


def _writes_in_place(instruction: Instruction) -> bool:
    updates = any(name in instruction.name for name in _IN_PLACE_NAMES)
    return instruction.opcode in ("dynamic-update-slice", "scatter") or (
        instruction.opcode == "fusion" and updates
    )


def _alike(one: ArrayType, other: ArrayType) -> bool:
    return one.shape == other.shape and one.allocated_bytes == other.allocated_bytes


def _holding(array: ArrayType, by: Instruction, frames: dict[int, str]) -> Holding:
    return Holding(
        array=f"{array.dtype}[{','.join(map(str, array.shape))}]",
        num_bytes=array.allocated_bytes,
        op_name=op_name_of(by.attributes),
        source=source_of(by.attributes, frames),
    )


def _grouped(holdings: Sequence[Holding]) -> tuple[Holding, ...]:
    """Buffers of one type, line and operator together (those of numbered layers too), largest first."""
    groups: dict[tuple[str, str, str], list[Holding]] = defaultdict(list)
    for holding in holdings:
        groups[holding.array, holding.source, _NUMBER.sub("*", holding.op_name)].append(holding)
    together = [
        Holding(
            array=array,
            num_bytes=sum(h.num_bytes for h in group),
            count=len(group),
            op_name=name,
            source=source,
        )
        for (array, source, name), group in groups.items()
    ]
    return tuple(sorted(together, key=lambda h: (-h.num_bytes, h.source, h.array)))
