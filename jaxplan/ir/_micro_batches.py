"""Micro-batches that are added up may hold any examples: each device then cuts its own out of its part of the batch.

``x.reshape(K, b, ...)`` in front of a loop makes micro-batch k of the examples k * b to k * b + b - 1. A batch that is
split over devices has them on other devices than the micro-batches would. Where examples meet in sums alone, over all
micro-batches, any assignment of examples to them will do. So the reshape becomes an equation `CUT` with a rule that
splits the batch before its number (``(b K) -> K b``) and which is evaluated as a reshape of each device's own part.
Micro-batches may be cut again inside of the loop, ``(b K L) -> K L b``, and be read by their numbers, without a loop.

`jaxplan.ir._arrangement` proves that the assignment does not matter. Where it does, the reshape stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence

from jaxplan.core import _compat
from jaxplan.ir._arrangement import freely_joined, is_element, is_taken_apart
from jaxplan.ir._program import REGION_IN, Equation, Program
from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.rules._builder import Factors

CUT, JOIN = "cut_into_micro_batches", "join_micro_batches"
_CUT, _JOIN = _compat.Primitive(CUT), _compat.Primitive(JOIN)


@register_rule(CUT)
def cut_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """The batch stands before the numbers of micro-batches: a device's part of it is cut by itself."""
    factors = Factors()
    inner = factors.add_all(out_avals[0].shape)
    return factors.rule([_whole(inner, params["levels"])], [inner], "shape", ((0,),))


@register_rule(JOIN)
def join_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Values of each example, back in the order of the batch: the inverse of `cut_rule`."""
    factors = Factors()
    inner = factors.add_all(in_avals[0].shape)
    return factors.rule([inner], [_whole(inner, params["levels"])], "shape", ((0,),))


def _whole(inner: Sequence[tuple[int, ...]], levels: int) -> tuple[tuple[int, ...], ...]:
    """The factors of the batch, of those of its micro-batches."""
    numbers, size, rest = inner[:levels], inner[levels], inner[levels + 1 :]
    return ((*size, *(f for number in numbers for f in number)), *rest)


def cut_freely(program: Program, rule_of: Callable[[Program, Equation], OperatorRule]) -> Program:
    """The program with a `CUT` for each reshape that cuts micro-batches in an arrangement that does not matter."""
    candidates = _candidates(program)
    if not candidates:
        return program
    rules = [rule_of(program, eqn) for eqn in program.equations]
    cuts, joins = _free(program, rules, candidates)
    equations = list(program.equations)
    for e in cuts | joins:
        shapes = [program.tensors[t].shape for t in (equations[e].operands[0], equations[e].results[0])]
        params = {"levels": abs(len(shapes[0]) - len(shapes[1]))}
        equations[e] = dataclasses.replace(equations[e], primitive=_CUT if e in cuts else _JOIN, params=params)
    return dataclasses.replace(program, equations=tuple(equations)) if cuts else program


def _free(
    program: Program, rules: list[OperatorRule], candidates: dict[tuple[int, ...], list[int]]
) -> tuple[frozenset[int], frozenset[int]]:
    """The candidates of which the arrangement does not matter, all or those of some shapes, and the reshapes that undo
    them."""
    cuts, joins = frozenset[int](), frozenset[int]()
    everything = [e for group in candidates.values() for e in group]
    for group in ([everything] if len(candidates) > 1 else []) + list(candidates.values()):
        more = cuts | frozenset(group)
        found = None if more == cuts else freely_joined(program, rules, more)
        if found is not None:
            cuts, joins = more, found
    return cuts, joins


def _candidates(program: Program) -> dict[tuple[int, ...], list[int]]:
    """Reshapes that take the leading dimension of an array apart, of which a loop reads slices, or single ones are
    read, by the numbers and the size of the micro-batches."""
    read = {e.operands[0] for e in program.equations if e.name == REGION_IN and e.params["role"] == "x"}
    read |= {e.operands[0] for e in program.equations if is_element(program, e)}
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for eqn in program.equations:
        if eqn.name == "reshape" and eqn.results[0] in read and is_taken_apart(program, *eqn.operands, *eqn.results):
            whole, parts = (program.tensors[t].shape for t in (eqn.operands[0], eqn.results[0]))
            leading = parts[: len(parts) - len(whole) + 1]
            if min(leading) > 1:
                found[leading].append(eqn.index)
    return found
