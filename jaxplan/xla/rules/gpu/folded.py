"""Transpositions that GPU programs leave to the dots that read them."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import Equation
from jaxplan.xla._effects import Fuse
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import XLA, CompilerRule


def _folded(facts: Facts) -> Iterator[Fuse]:
    """Transposed buffers that no kernel but such a dot reads: ``w.T @ x`` reads ``w``."""
    for eqn in facts.equations:
        if eqn.name != "transpose" or not facts.written[eqn.operands[0]]:
            continue
        (result,) = eqn.results
        if result not in facts.graph.program.returned and all(
            _takes_either_order(facts, reader, eqn) for reader in facts.readers(result)
        ):
            yield Fuse(result)


def _takes_either_order(facts: Facts, reader: Equation, transpose: Equation) -> bool:
    """Whether a reader is fused, or is a dot of matrices, batches outermost, for which a library transposes."""
    if not facts.kernels[reader.index]:
        return True
    (result,) = transpose.results
    if reader.name != "dot_general":
        return False
    contracting, batch = reader.params["dimension_numbers"]
    moved = tuple(transpose.params["permutation"])
    sides = [side for side, t in enumerate(reader.operands) if t == result]
    outer = [tuple(batch[side]) for side in sides]
    keeps_batch = all(dims == moved[: len(dims)] == tuple(range(len(dims))) for dims in outer)
    return keeps_batch and all(
        len(contracting[side]) == 1 and len(moved) == len(batch[side]) + 2 for side in sides
    )


FOLDED_TRANSPOSES = CompilerRule(
    name="dots-read-transposed-matrices-in-place",
    backends=("gpu",),
    stage="fusion",
    does="A dot reads the transpose of a matrix from the buffer of that matrix.",
    source=f"{XLA}hlo/transforms/simplifiers/transpose_folding.cc",
    made_after=(),
    test="tests/xla/test_folded.py::test_a_transposed_parameter_is_no_buffer",
    find=_folded,
    priority=4,
)
