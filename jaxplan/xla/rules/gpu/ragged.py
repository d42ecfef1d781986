"""Ragged dots of GPU programs: dots over all groups, of copies of the rows in which those of other groups are zeros."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from jaxplan.ir import RAGGED_DOT, Equation
from jaxplan.xla._effects import Absorb, Temporary
from jaxplan.xla._facts import Facts
from jaxplan.xla._plan_effects import Repeat
from jaxplan.xla._rule import XLA, CompilerRule
from jaxplan.xla.rules.gpu.library_sums import VIEWS

_REWRITER = f"{XLA}hlo/transforms/expanders/ragged_dot_rewriter.cc"


class MaskedRead(NamedTuple):
    """One ragged dot that reads masked rows.

    Attributes:
      equation: the dot; ``tensor``: its operand, the rows or a view of them; ``end``: the equation that has read them.
      groups: (tensor, dimension) along which its groups are.
      is_gradient: that tensor is its result, and the copy has groups outside of rows.
    """

    equation: int
    tensor: int
    end: int
    groups: tuple[int, int]
    is_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedRows(Temporary):
    """Rows once for each group, with zeros in place of those of other groups, in the orders that dots read.

    Attributes:
      first: the equation that computes the rows.
    """

    reads: tuple[MaskedRead, ...]
    first: int


def _ragged_dots(facts: Facts) -> Iterator[Repeat]:
    dots = (e for e in facts.equations if e.name == RAGGED_DOT)
    return (Repeat(e.index, facts.tensors[e.operands[2]].shape[-1]) for e in dots)


def _computed_rows(facts: Facts) -> Iterator[Absorb]:
    for eqn, operands, _ in _reads(facts):
        for t in operands:
            yield Absorb(eqn.index, t)


def _reads(facts: Facts) -> Iterator[tuple[Equation, tuple[int, ...], bool]]:
    """Ragged dots, the operands that have rows, and whether it is both: in the gradient of matrices."""
    for eqn in facts.equations:
        if eqn.name == RAGGED_DOT:
            is_gradient = not eqn.params["ragged_dot_dimension_numbers"].rhs_group_dimensions
            yield eqn, eqn.operands[: 1 + is_gradient], is_gradient


def _masked_rows(facts: Facts) -> Iterator[MaskedRows]:
    """The kernel that computes a value writes the copies of it in all orders that dots read.

    A dot with matrices reads rows outside of groups, a weight gradient groups outside of rows, of both operands.
    """
    found = defaultdict[int, list[MaskedRead]](list)
    for eqn, operands, is_gradient in _reads(facts):
        axes = eqn.params["ragged_dot_dimension_numbers"].rhs_group_dimensions
        groups = (eqn.results[0], 0) if is_gradient else (eqn.operands[1], axes[0])
        for t in operands:
            read = MaskedRead(eqn.index, t, facts.read_end[eqn.index], groups, is_gradient)
            found[_viewed(facts, t)].append(read)
    for source, reads in found.items():
        yield MaskedRows(reads=tuple(reads), first=max(facts.graph.values.producer[source], 0))


def _viewed(facts: Facts, t: int) -> int:
    """The tensor that a view shows."""
    made_by = facts.maker(t)
    while made_by is not None and made_by.name in VIEWS:
        t = made_by.operands[0]
        made_by = facts.maker(t)
    return t


RAGGED_DOTS = CompilerRule(
    name="ragged-dots-multiply-all-groups",
    backends=("gpu",),
    stage="work",
    does="A dot of groups of rows is lowered to one over all groups, in which the rows of others are zeros.",
    source=_REWRITER,
    made_after=(),
    test="tests/xla/test_compiled_steps.py::test_compiled_ragged_dots_multiply_all_groups",
    find=_ragged_dots,
)
COMPUTED_ROWS = CompilerRule(
    name="ragged-dots-compute-their-rows",
    backends=("gpu",),
    stage="kernels",
    does="The rows of a ragged dot are computed where their masked copies are written: they are no buffer themselves.",
    source=_REWRITER,
    made_after=(),
    test="tests/xla/test_ragged.py::test_rows_that_dots_alone_read_are_no_buffer",
    find=_computed_rows,
)
MASKED_ROWS = CompilerRule(
    name="ragged-dots-read-masked-copies",
    backends=("gpu",),
    stage="layouts",
    does="A dot of groups of rows reads a copy of its rows for each group, with zeros for those of others.",
    source=_REWRITER,
    made_after=(),
    test="tests/xla/test_ragged.py::test_rows_are_copied_for_each_group",
    find=_masked_rows,
)
