"""How often a loop runs, from the computation that ends it: the TPU compiler does not write it beside the loop."""

from __future__ import annotations

import re
from collections.abc import Mapping

from jaxplan.audit._hlo_instruction import Instruction

Computation = Mapping[str, Instruction]
_ROLE = {role: re.compile(rf"\b{role}=%?([\w.\-]+)") for role in ("condition", "body")}
_INDEX = re.compile(r"\bindex=(\d+)")
_PASSES_ON = frozenset({"copy", "bitcast", "convert"})


def counted_trips(
    computations: Mapping[str, Computation], computation: Computation, loop: Instruction
) -> int | None:
    """Trips of a ``while`` with a counter that goes from a constant by a constant to below one; None of others.

    ``computation`` is that of the loop.
    """
    condition, body = (
        computations.get(match[1]) if (match := pattern.search(loop.attributes)) else None
        for pattern in _ROLE.values()
    )
    if not condition or not body:
        return None
    compared = _root(condition)
    if compared.opcode != "compare" or "direction=LT" not in compared.attributes:
        return None
    place, limit = (_source(condition, name) for name in compared.operands)
    index, end = _element(place), _number(limit)
    if index is None or end is None:
        return None
    start = _number(_at(computation, _source(computation, loop.operands[0]), index))
    step = _step(body, index)
    if start is None or step is None or step <= 0:
        return None
    return max(0, -(-(end - start) // step))


def _step(body: Computation, index: int) -> int | None:
    """The number that the body adds to an element of its operand."""
    added = _at(body, _root(body), index)
    if added is None or added.opcode != "add":
        return None
    one, other = (_source(body, name) for name in added.operands)
    if _element(one) != index:
        one, other = other, one
    return _number(other) if _element(one) == index else None


def _root(computation: Computation) -> Instruction:
    return list(computation.values())[-1]


def _at(computation: Computation, made: Instruction | None, index: int) -> Instruction | None:
    """The producer of an element of a tuple."""
    if made is None or made.opcode != "tuple" or index >= len(made.operands):
        return None
    return _source(computation, made.operands[index])


def _source(computation: Computation, name: str) -> Instruction | None:
    """The producer of a value, before copies of it."""
    found = computation.get(name)
    while found is not None and found.opcode in _PASSES_ON:
        found = computation.get(found.operands[0])
    return found


def _element(made: Instruction | None) -> int | None:
    """The number of an element, where it is taken from the parameter of a computation."""
    match = _INDEX.search(made.attributes) if made and made.opcode == "get-tuple-element" else None
    return int(match[1]) if match else None


def _number(made: Instruction | None) -> int | None:
    is_number = made is not None and made.opcode == "constant" and re.fullmatch(r"-?\d+", made.operand_text)
    return int(made.operand_text) if made and is_number else None
