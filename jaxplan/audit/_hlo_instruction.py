"""Instructions of compiled HLO and the arrays that they read and write, as plain data."""

import re
from dataclasses import dataclass
from math import prod

_ORDER = re.compile(r"^\{([\d,]*)")
_TILE = re.compile(r":T\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_PACKED_BITS = {"s4": 4, "u4": 4, "s2": 2, "u2": 2, "f4e2m1fn": 4, "pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayType:
    """One array of an HLO type: its element type in HLO's words (`bf16`), its dimensions and how it lies in memory.

    `layout` is that of HLO: dimensions minor to major, tiles, memory space (`{1,0:T(8,128)(2,1)S(1)}`), or empty.
    """

    dtype: str
    shape: tuple[int, ...]
    layout: str = ""

    @property
    def num_elements(self) -> int:
        """Product of the dimensions."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements, without padding; sub-byte types are packed."""
        return -(-self.num_elements * _element_bits(self.dtype) // 8)

    @property
    def allocated_bytes(self) -> int:
        """Bytes with the padding of the outer tile, to which the minor-most dimensions are rounded up."""
        tile = _TILE.search(self.layout)
        if tile is None:
            return self.num_bytes
        order = _ORDER.match(self.layout)
        minor_first = [int(d) for d in order[1].split(",") if d] if order else []
        padded = [self.shape[d] for d in minor_first]
        for place, size in enumerate(reversed([int(n) for n in tile[1].split(",")])):
            if place < len(padded):
                padded[place] = -(-padded[place] // size) * size
            else:
                padded.append(size)
        return -(-prod(padded) * _element_bits(self.dtype) // 8)

    @property
    def memory_space(self) -> int:
        """0 for the device's main memory; others are TPU's on-chip memories and the host's."""
        space = _SPACE.search(self.layout)
        return int(space[1]) if space else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One HLO instruction.

    `types` are the arrays of its (possibly nested) result type, in order of appearance.
    `attributes` is everything after the operands, as printed; `operand_text` is the text between the
    brackets.
    """

    name: str
    opcode: str
    types: tuple[ArrayType, ...]
    operands: tuple[str, ...]
    operand_text: str
    attributes: str


def operand_types(computation: dict[str, Instruction], instruction: Instruction) -> tuple[ArrayType, ...]:
    """The arrays that `instruction` reads, tuples flattened."""
    return tuple(t for name in instruction.operands for t in computation[name].types)


def _element_bits(dtype: str) -> int:
    if dtype in _PACKED_BITS:
        return _PACKED_BITS[dtype]
    digits = re.match(r"(?:bf|[a-z])(\d+)", dtype)
    if digits is None:
        raise ValueError(f"unknown HLO element type {dtype!r}")
    return int(digits[1])
