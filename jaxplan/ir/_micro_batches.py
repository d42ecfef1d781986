"""Micro-batches that a loop adds up may hold any examples: each device then cuts its own out of its part of the batch.

``x.reshape(K, b, ...)`` in front of a loop makes micro-batch k of the examples k * b to k * b + b - 1. A batch that is
split over devices has them on other devices than the micro-batches would. Where examples meet in sums alone, over all
micro-batches, any assignment of examples to them will do. So the reshape becomes an equation `CUT` with a rule that
splits the batch before its number (``(b K) -> K b``) and which is evaluated as a reshape of each device's own part.

That it does not matter is proven by one walk over the program, which tells how each value depends on the arrangement:
not at all, as examples do (``full``: over all micro-batches, ``slice``: of one trip), or as a summand of which only the
sum over all trips is the same (``part``, and ``stack``: stacked over the trips). Anything else, such as a statistic of
a micro-batch that meets its examples, random bits, or an optimizer's step in each trip, leaves the reshape as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from jaxplan.core import _compat
from jaxplan.ir._program import REGION_IN, REGION_OUT, Equation, Program
from jaxplan.ir._registry import Avals, Params, register_rule
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir.rules._builder import Factors

CUT, JOIN = "cut_into_micro_batches", "join_micro_batches"
_CUT, _JOIN = _compat.Primitive(CUT), _compat.Primitive(JOIN)
_AFFINE = frozenset({"add", "sub", "add_any"})
_MOST_WALKS = 8


@register_rule(CUT)
def cut_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """The batch stands before the number of micro-batches: a device's part of it is cut by itself."""
    factors = Factors()
    inner = factors.add_all(out_avals[0].shape)
    number, size, *rest = inner
    return factors.rule([((*size, *number), *rest)], [inner], "shape", ((0,),))


@register_rule(JOIN)
def join_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """What a loop makes of each example, back in the order of the batch: the inverse of `cut_rule`."""
    factors = Factors()
    inner = factors.add_all(in_avals[0].shape)
    number, size, *rest = inner
    return factors.rule([inner], [((*size, *number), *rest)], "shape", ((0,),))


def cut_freely(program: Program, rule_of: Callable[[Program, Equation], OperatorRule]) -> Program:
    """The program with a `CUT` for each reshape that cuts micro-batches in an arrangement that does not matter."""
    candidates = _candidates(program)
    if not candidates:
        return program
    rules = [rule_of(program, eqn) for eqn in program.equations]
    joins = _freely_joined(program, rules, frozenset(candidates))
    if joins is None:
        return program
    equations = list(program.equations)
    for e in joins:
        number = program.tensors[equations[e].operands[0]].shape[0]
        equations[e] = dataclasses.replace(equations[e], primitive=_JOIN, params={"number": number})
    for e in candidates:
        number = program.tensors[equations[e].results[0]].shape[0]
        equations[e] = dataclasses.replace(equations[e], primitive=_CUT, params={"number": number})
    return dataclasses.replace(program, equations=tuple(equations))


def _candidates(program: Program) -> list[int]:
    """Reshapes that take the leading dimension of an array apart, of which a loop reads slices."""
    sliced = {e.operands[0] for e in program.equations if e.name == REGION_IN and e.params["role"] == "x"}
    found = []
    for eqn in program.equations:
        if eqn.name == "reshape" and eqn.region < 0 and eqn.results[0] in sliced:
            whole, parts = (program.tensors[t].shape for t in (eqn.operands[0], eqn.results[0]))
            taken_apart = (
                len(parts) == len(whole) + 1 and parts[2:] == whole[1:] and parts[0] * parts[1] == whole[0]
            )
            if taken_apart and min(parts[:2]) > 1:
                found.append(eqn.index)
    return (
        found if len({program.tensors[program.equations[e].results[0]].shape[:2] for e in found}) == 1 else []
    )


class _Depends(Exception):
    """Something depends on the arrangement."""


class _Again(Exception):
    """A loop over micro-batches was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """How a value depends on the arrangement.

    Attributes:
      kind: ``same`` (not at all), ``full``, ``slice``, ``part``, ``stack``, or ``sum`` (a carry that summands are
        added to).
      dims: dimensions of the micro-batches and of the examples (full), of the examples (slice), of the micro-batches
        (stack); the equation through which it enters (sum); dimensions along which it varies (same).
    """

    kind: str
    dims: tuple[int, ...] = ()

    def moved(self, by: int) -> _How:
        return _How(kind=self.kind, dims=tuple([d + by for d in self.dims]))


@dataclass(kw_only=True)
class _Walk:
    """One walk over the program; entries of loops that turn out to differ are put right for the next."""

    program: Program
    rules: list[OperatorRule]
    cuts: frozenset[int]
    carries: dict[int, _How] = field(default_factory=dict)
    loops: set[int] = field(default_factory=set)
    how: dict[int, _How] = field(default_factory=dict)
    constant: set[int] = field(default_factory=set)  # carries that every trip hands on as they are
    joins: set[int] = field(default_factory=set)  # reshapes that put examples back in the order of the batch

    def __post_init__(self) -> None:
        exits = [
            eqn for eqn in self.program.equations if eqn.name == REGION_OUT and eqn.params["role"] == "carry"
        ]
        self.constant |= {eqn.operands[0] for eqn in exits if eqn.operands[0] == eqn.operands[1]}

    def run(self) -> None:
        for tensor in self.program.tensors:
            if tensor.kind != "computed":
                self.how[tensor.index] = _How(kind="same", dims=tuple(range(len(tensor.shape))))
        for eqn in self.program.equations:
            if eqn.index in self.cuts:
                self._same(eqn.operands)
                self.how[eqn.results[0]] = _How(kind="full", dims=(0, 1))
            elif self._is_join(eqn):
                self.joins.add(eqn.index)
                shape = self.program.tensors[eqn.results[0]].shape
                self.how[eqn.results[0]] = _How(kind="same", dims=tuple(range(len(shape))))
            elif eqn.name == REGION_IN:
                self.how[eqn.results[0]] = self._entered(eqn, self.how[eqn.operands[0]])
            elif eqn.name == REGION_OUT:
                self.how[eqn.results[0]] = self._left(eqn)
            else:
                self._applied(eqn)
        ends = [t for r in self.program.regions for t in (r.selector, r.predicate) if t is not None]
        self._same([*self.program.outputs, *ends])

    def _is_join(self, eqn: Equation) -> bool:
        """Whether a reshape makes one leading dimension of micro-batches and their examples."""
        if eqn.name != "reshape" or eqn.region >= 0 or self.how[eqn.operands[0]] != _How(kind="full", dims=(0, 1)):
            return False
        parts, whole = (self.program.tensors[t].shape for t in (eqn.operands[0], eqn.results[0]))
        return len(parts) == len(whole) + 1 and parts[2:] == whole[1:] and parts[0] * parts[1] == whole[0]

    def _same(self, tensors: Iterable[int]) -> None:
        if any(self.how[t].kind != "same" for t in tensors):
            raise _Depends

    def _entered(self, eqn: Equation, how: _How) -> _How:
        role, region = eqn.params["role"], eqn.params["region"]
        if role == "carry":
            if region in self.loops:
                self._same(eqn.operands)
                if eqn.results[0] in self.constant:
                    return how
                return _How(kind="sum", dims=(eqn.index,))
            return self.carries.get(eqn.index, how)
        if role != "x":
            return how
        if how.kind == "full" and how.dims[0] == 0:
            if region not in self.loops:
                self.loops.add(region)
                raise _Again
            return _How(kind="slice", dims=(how.dims[1] - 1,))
        if how.kind == "same" and not (region in self.loops and 0 in how.dims):
            return _How(kind="same", dims=tuple(d - 1 for d in how.dims if d))
        if region not in self.loops and (how.kind == "part" or (how.kind == "slice" and 0 not in how.dims)):
            return how.moved(-1)
        raise _Depends

    def _left(self, eqn: Equation) -> _How:
        role, is_cut = eqn.params["role"], eqn.params["region"] in self.loops
        if role == "branch":
            self._same(eqn.operands)
            return _How(kind="same", dims=tuple(range(len(self.program.tensors[eqn.results[0]].shape))))
        how = self.how[eqn.operands[-1]]
        if role == "y":
            if how.kind == "sum" or (is_cut and how.kind in ("full", "stack")):
                raise _Depends
            if is_cut and how.kind != "same":
                is_slice = how.kind == "slice"
                return (
                    _How(kind="full", dims=(0, how.dims[0] + 1))
                    if is_slice
                    else _How(kind="stack", dims=(0,))
                )
            moved = how.moved(1)
            return moved if is_cut or how.kind != "same" else _How(kind="same", dims=(0, *moved.dims))
        return self._carried(eqn, how, is_cut)

    def _carried(self, eqn: Equation, how: _How, is_cut: bool) -> _How:
        before, entry = self.how[eqn.operands[0]], self._entry(eqn.operands[0])
        everywhere = _How(kind="same", dims=tuple(range(len(self.program.tensors[eqn.results[0]].shape))))
        if is_cut:
            if how.kind != "same" and how != before:
                raise _Depends
            return everywhere
        if before.kind == how.kind == "same":
            union = _How(kind="same", dims=tuple(sorted({*before.dims, *how.dims})))
        elif before.kind == "same" and how.kind in ("slice", "part") and not set(how.dims) & set(before.dims):
            union = how
        else:
            union = before
        if union != before:
            self.carries[entry] = union
        elif how.kind != "same" and how != before:
            raise _Depends
        return union

    def _entry(self, t: int) -> int:
        return next(e.index for e in self.program.equations if t in e.results)

    def _applied(self, eqn: Equation) -> None:
        rule = self.rules[eqn.index]
        kinds = {self.how[t].kind for t in eqn.operands} - {"same"}
        if not kinds:
            varying = self._varying(eqn, rule)
            for t, held in zip(eqn.results, rule.results, strict=True):
                dims = tuple(d for d, factors in enumerate(held) if not varying.isdisjoint(factors))
                self.how[t] = _How(kind="same", dims=dims)
            return
        if rule.family in ("unknown", "user") or getattr(eqn.origin, "effects", None):
            raise _Depends
        if kinds <= {"part", "sum"} or kinds == {"stack"}:
            result = self._summed(eqn, rule)
            self.how.update((t, result) for t in eqn.results)
        elif kinds in ({"full"}, {"slice"}):
            for t, held in zip(eqn.results, rule.results, strict=True):
                self.how[t] = self._mapped(eqn, rule, held)
        else:
            raise _Depends

    def _varying(self, eqn: Equation, rule: OperatorRule) -> set[int]:
        """Factors along which an operand varies that does not depend on the arrangement, or the result by itself."""
        varying, known = set(), set()
        for t, held in zip(eqn.operands, rule.operands, strict=True):
            for d, factors in enumerate(held):
                known.update(factors)
                if self.how[t].kind == "same" and d in self.how[t].dims:
                    varying.update(factors)
        if eqn.name == "broadcast_in_dim":
            return varying
        if eqn.name == "iota":
            return set(rule.results[0][eqn.params["dimension"]])
        return varying | ({f for held in rule.results for factors in held for f in factors} - known)

    def _summed(self, eqn: Equation, rule: OperatorRule) -> _How:
        marked = tuple(i for i, t in enumerate(eqn.operands) if self.how[t].kind != "same")
        hows = {self.how[eqn.operands[i]] for i in marked}
        sums = [how for how in hows if how.kind == "sum"]
        if sums:
            if self._is_identity(eqn):
                return sums[0]
            if eqn.name not in _AFFINE or len(sums) > 1 or (len(marked) > 1 and len(hows) == 1):
                raise _Depends
            if eqn.name == "sub" and self.how[eqn.operands[0]].kind != "sum":
                raise _Depends
            return sums[0]
        if hows == {_How(kind="part")}:
            if eqn.name in _AFFINE or marked in rule.linear:
                return _How(kind="part")
            raise _Depends
        if marked not in rule.linear or len(hows) > 1:
            raise _Depends
        (f,) = {rule.operands[i][self.how[eqn.operands[i]].dims[0]] for i in marked}
        if len(f) != 1 or f[0] in self._varying(eqn, rule):
            raise _Depends
        if rule.factors[f[0]].reducer == "sum":
            return _How(kind="same", dims=tuple(range(len(self.program.tensors[eqn.results[0]].shape))))
        return _How(kind="stack", dims=(self._place(rule.results[0], f[0]),))

    def _is_identity(self, eqn: Equation) -> bool:
        """Whether a result has the numbers of the operand: a copy, or a weak type that becomes strong."""
        of = [self.program.tensors[t].dtype for t in (eqn.operands[0], eqn.results[0])]
        return eqn.name == "copy" or (eqn.name == "convert_element_type" and of[0] == of[1])

    def _mapped(self, eqn: Equation, rule: OperatorRule, held: tuple[tuple[int, ...], ...]) -> _How:
        """How a result depends that is computed of examples, each by itself or summed."""
        marked = [i for i, t in enumerate(eqn.operands) if self.how[t].kind != "same"]
        found = {tuple(rule.operands[i][d] for d in self.how[eqn.operands[i]].dims) for i in marked}
        if len(found) != 1 or any(len(factors) != 1 for factors in next(iter(found))):
            raise _Depends
        named = [factors[0] for factors in next(iter(found))]
        bad = self._varying(eqn, rule) | {f for f, _ in rule.indexed}
        if not bad.isdisjoint(named) or any(rule.factors[f].kind not in ("map", "reduce") for f in named):
            raise _Depends
        summed = [rule.factors[f].kind == "reduce" for f in named]
        if any(rule.factors[f].kind == "reduce" and rule.factors[f].reducer != "sum" for f in named):
            raise _Depends
        if not any(summed):
            return _How(
                kind=self.how[eqn.operands[marked[0]]].kind, dims=tuple(self._place(held, f) for f in named)
            )
        if len(named) == 1:
            return _How(kind="part")
        if all(summed):
            return _How(kind="same", dims=tuple(range(len(held))))
        if summed[1]:
            return _How(kind="stack", dims=(self._place(held, named[0]),))
        raise _Depends

    @staticmethod
    def _place(held: tuple[tuple[int, ...], ...], factor: int) -> int:
        """The dimension that is led by a factor alone."""
        if (factor,) not in held:
            raise _Depends
        return held.index((factor,))


def _freely_joined(program: Program, rules: list[OperatorRule], cuts: frozenset[int]) -> frozenset[int] | None:
    """The reshapes that undo the cuts; None where the arrangement of the examples matters."""
    walk = _Walk(program=program, rules=rules, cuts=cuts)
    for _ in range(_MOST_WALKS):
        before = dict(walk.carries)
        try:
            walk.run()
        except _Again:
            continue
        except _Depends:
            return None
        if before == walk.carries:
            return frozenset(walk.joins)
    return None
