"""Proof that it does not matter which examples are in which micro-batch.

One walk over the program tells how each value depends on the arrangement: not at all, as examples do (``examples``), or
as a summand of which only the sum over all micro-batches is the same (``part``, and ``stack``: stacked over their
numbers). Micro-batches are entered by the trips of a loop, or read by their numbers; of those, the same must be
computed of each, which `jaxplan.ir._signatures` tells. All else, such as a statistic of a micro-batch that meets its
examples, random bits, or an optimizer's step after each, matters.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from jaxplan.ir._arranged import LOOP, Again, Depends, How, Place, Term, same
from jaxplan.ir._program import REGION_IN, REGION_OUT, Equation, Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._signatures import Signatures

_AFFINE = frozenset({"add", "sub", "add_any"})
_MOST_WALKS = 12


def freely_joined(program: Program, rules: list[OperatorRule], cuts: frozenset[int]) -> frozenset[int] | None:
    """The reshapes that undo cuts; None where the arrangement of the examples matters."""
    walk = _Walk(program=program, rules=rules, cuts=cuts)
    for _ in range(_MOST_WALKS):
        before = dict(walk.carries)
        try:
            walk.run()
        except Again:
            continue
        except Depends:
            return None
        if before == walk.carries:
            return frozenset(walk.joins)
    return None


def is_taken_apart(program: Program, whole: int, parts: int) -> bool:
    """Whether leading dimensions of an array are that of another, taken apart."""
    wholes, parts_ = program.tensors[whole].shape, program.tensors[parts].shape
    more = len(parts_) - len(wholes)
    if more < 1 or not wholes:
        return False
    return parts_[more + 1 :] == wholes[1:] and math.prod(parts_[: more + 1]) == wholes[0]


def is_element(program: Program, eqn: Equation) -> bool:
    """Whether an equation reads one element of an array along dimension 0, at a fixed place."""
    if eqn.name != "slice":
        return False
    whole, part = (program.tensors[t].shape for t in (eqn.operands[0], eqn.results[0]))
    return bool(whole) and part == (1, *whole[1:])


@dataclass(kw_only=True)
class _Walk:
    """One walk over the program; entries of loops that turn out to differ are put right for the next."""

    program: Program
    rules: list[OperatorRule]
    cuts: frozenset[int]
    carries: dict[int, How] = field(default_factory=dict)
    loops: set[int] = field(default_factory=set)
    how: dict[int, How] = field(default_factory=dict)
    constant: set[int] = field(default_factory=set)  # carries that every trip hands on as they are
    joins: set[int] = field(default_factory=set)  # reshapes that put examples back in the order of the batch
    is_numbered: bool = field(init=False)  # whether single micro-batches may be read
    signatures: Signatures = field(init=False)

    def __post_init__(self) -> None:
        exits = [
            eqn for eqn in self.program.equations if eqn.name == REGION_OUT and eqn.params["role"] == "carry"
        ]
        self.constant |= {eqn.operands[0] for eqn in exits if eqn.operands[0] == eqn.operands[1]}
        self.is_numbered = any(is_element(self.program, eqn) for eqn in self.program.equations)

    def run(self) -> None:
        self.signatures = Signatures(self.program)
        for tensor in self.program.tensors:
            if tensor.kind != "computed":
                self.how[tensor.index] = same(tensor.shape)
        for eqn in self.program.equations:
            self._step(eqn)
        ends = [t for r in self.program.regions for t in (r.selector, r.predicate) if t is not None]
        self._check_same([*self.program.outputs, *ends])

    def _step(self, eqn: Equation) -> None:
        is_index = False
        if eqn.index in self.cuts:
            self.how[eqn.results[0]] = self._cut(eqn)
        elif self._is_join(eqn):
            self.joins.add(eqn.index)
            self.how[eqn.results[0]] = self._joined(eqn)
        elif eqn.name == REGION_IN:
            self.how[eqn.results[0]] = self._entered(eqn, self.how[eqn.operands[0]])
        elif eqn.name == REGION_OUT:
            self.how[eqn.results[0]] = self._left(eqn)
        elif is_index := self._is_index(eqn):
            self.how[eqn.results[0]] = self._numbered(eqn, self.how[eqn.operands[0]])
        else:
            self._applied(eqn)
        if self.is_numbered:
            self.signatures.add(eqn, is_index=is_index)

    def _shape(self, t: int) -> tuple[int, ...]:
        return self.program.tensors[t].shape

    def _check_same(self, tensors: Iterable[int]) -> None:
        if any(self.how[t].kind != "same" for t in tensors):
            raise Depends

    # examples are cut, joined, and read by numbers

    def _cut(self, eqn: Equation) -> How:
        (whole,), (parts,) = eqn.operands, eqn.results
        levels, how = len(self._shape(parts)) - len(self._shape(whole)), self.how[whole]
        family, sizes = (), self._shape(parts)[: levels + 1]
        if how.kind == "examples" and how.dims == (0,):
            family = how.family[:-1]
        elif how.kind != "same":
            raise Depends
        dims = tuple(range(levels + 1))
        return How(kind="examples", dims=dims, family=(*family, *sizes), entered=how.entered)

    def _is_join(self, eqn: Equation) -> bool:
        """Whether a reshape makes one leading dimension of micro-batches and their examples."""
        how = self.how[eqn.operands[0]] if eqn.operands else None
        if eqn.name != "reshape" or how is None or how.kind != "examples" or len(how.dims) < 2:
            return False
        joined = is_taken_apart(self.program, eqn.results[0], eqn.operands[0])
        levels = len(self._shape(eqn.operands[0])) - len(self._shape(eqn.results[0]))
        return joined and how.dims == tuple(range(levels + 1))

    def _joined(self, eqn: Equation) -> How:
        how, shape = self.how[eqn.operands[0]], self._shape(eqn.results[0])
        if not how.entered:
            return same(shape)
        return replace(how, dims=(0,), family=(*how.family[: -len(how.dims)], shape[0]))

    def _is_index(self, eqn: Equation) -> bool:
        how = self.how[eqn.operands[0]] if is_element(self.program, eqn) else None
        return how is not None and how.kind == "examples" and len(how.dims) > 1 and how.dims[0] == 0

    def _numbered(self, eqn: Equation, how: How) -> How:
        place = self._shape(eqn.operands[0])[0], int(eqn.params["start_indices"][0])
        return replace(how, dims=how.dims[1:], entered=(*how.entered, place))

    # loops and branches

    def _entered(self, eqn: Equation, how: How) -> How:
        role, region = eqn.params["role"], eqn.params["region"]
        if role == "carry":
            if region in self.loops:
                return self._carry(eqn, how)
            return self._one_term(eqn, self.carries.get(eqn.index, how))
        if role != "x":
            return how
        if how.kind == "examples" and len(how.dims) > 1 and how.dims[0] == 0:
            if region not in self.loops:
                self.loops.add(region)
                raise Again
            return replace(how, entered=(*how.entered, (LOOP, region)), dims=how.dims[1:]).moved(-1)
        if how.kind == "same" and not (region in self.loops and 0 in how.dims):
            return How(kind="same", dims=tuple(d - 1 for d in how.dims if d))
        if region not in self.loops and (how.kind == "part" or (how.kind == "examples" and 0 not in how.dims)):
            return self._one_term(eqn, how.moved(-1))
        raise Depends

    def _carry(self, eqn: Equation, how: How) -> How:
        """The carry of a loop over micro-batches, as its body reads it."""
        if eqn.results[0] in self.constant or how.kind == "sum":
            return how
        if how.kind == "same" or (how.kind == "part" and not how.terms):
            return How(kind="sum", dims=(eqn.index,), entered=how.entered)
        raise Depends

    def _left(self, eqn: Equation) -> How:
        role, region = eqn.params["role"], eqn.params["region"]
        if role == "branch":
            self._check_same(eqn.operands)
            return same(self._shape(eqn.results[0]))
        how = self.how[eqn.operands[-1]]
        if role == "carry":
            return self._carried(eqn, how)
        if how.kind == "sum":
            raise Depends
        if region not in self.loops or how.kind == "same":
            moved = how.moved(1)
            if how.kind == "same" and region not in self.loops:
                return How(kind="same", dims=(0, *moved.dims))
            return self._one_term(eqn, moved)
        if (LOOP, region) not in how.entered or len({places for _, places in how.terms}) > 1:
            raise Depends
        entered = tuple(place for place in how.entered if place != (LOOP, region))
        kind = "examples" if how.kind == "examples" else "stack"
        dims = (0, *how.moved(1).dims) if how.kind != "part" else (0,)
        return replace(how, kind=kind, dims=dims, entered=entered, terms=())

    def _carried(self, eqn: Equation, how: How) -> How:
        before, region = self.how[eqn.operands[0]], eqn.params["region"]
        if region in self.loops:
            return self._carried_over(eqn, how, before, region)
        if before.kind == how.kind == "same":
            union = How(kind="same", dims=tuple(sorted({*before.dims, *how.dims})))
        elif before.kind == "same" and how.kind in ("examples", "part") and not set(how.dims) & set(before.dims):
            union = how
        else:
            union = before
        if replace(union, terms=()) != replace(before, terms=()):
            self.carries[self._entry(eqn.operands[0])] = union
        elif how.kind != "same" and replace(how, terms=()) != replace(before, terms=()):
            raise Depends
        return self._one_term(eqn, how if how.kind == "part" else union)

    def _carried_over(self, eqn: Equation, how: How, before: How, region: int) -> How:
        """The carry of a loop over micro-batches, behind it."""
        shape = self._shape(eqn.results[0])
        if how.kind == "sum" and how.dims == before.dims:
            entered = tuple(place for place in how.entered if place != (LOOP, region))
            if before.dims[0] != self._entry(eqn.operands[0]):  # of a loop around this one
                if how.terms != before.terms:
                    raise Depends
                return replace(how, entered=entered)
            if len({places for _, places in how.terms}) > 1:
                raise Depends
            return self._summand(eqn, entered)
        if how.kind != "same" and how != before:
            raise Depends
        return same(shape) if how.kind == "same" else how

    def _one_term(self, eqn: Equation, how: How) -> How:
        """Summands of one micro-batch as one, at the border of a loop."""
        if not how.terms:
            return how
        places = {places for _, places in how.terms}
        if len(places) > 1:
            raise Depends
        return replace(how, terms=((self.signatures.of(eqn), next(iter(places))),))

    def _entry(self, t: int) -> int:
        return next(e.index for e in self.program.equations if t in e.results)

    def _summand(self, eqn: Equation, entered: tuple[Place, ...]) -> How:
        """A result that is a sum over all examples of the micro-batches that it is of."""
        if not entered:
            return same(self._shape(eqn.results[0]))
        numbered = tuple(place for place in entered if place[0] != LOOP)
        terms = ((self.signatures.of(eqn), numbered),) if numbered else ()
        return How(kind="part", entered=entered, terms=terms)

    # operators

    def _applied(self, eqn: Equation) -> None:
        rule = self.rules[eqn.index]
        kinds = {self.how[t].kind for t in eqn.operands} - {"same"}
        if not kinds:
            varying = self._varying(eqn, rule)
            for t, held in zip(eqn.results, rule.results, strict=True):
                dims = tuple(d for d, factors in enumerate(held) if not varying.isdisjoint(factors))
                self.how[t] = How(kind="same", dims=dims)
            return
        if rule.family in ("unknown", "user") or getattr(eqn.origin, "effects", None):
            raise Depends
        if kinds <= {"part", "sum"}:
            self.how.update((t, self._summed(eqn, rule)) for t in eqn.results)
        elif kinds == {"stack"}:
            self.how.update((t, self._unstacked(eqn, rule)) for t in eqn.results)
        elif kinds == {"examples"}:
            for t, held in zip(eqn.results, rule.results, strict=True):
                self.how[t] = self._mapped(eqn, rule, held)
        else:
            raise Depends

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

    def _summed(self, eqn: Equation, rule: OperatorRule) -> How:
        """A result of summands."""
        marked = tuple(i for i, t in enumerate(eqn.operands) if self.how[t].kind != "same")
        hows = [self.how[eqn.operands[i]] for i in marked]
        sums = {how.dims for how in hows if how.kind == "sum"}
        is_affine = eqn.name in _AFFINE
        if sums and not self._is_identity(eqn):
            if not is_affine or len(sums) > 1 or [how.kind for how in hows].count("sum") > 1:
                raise Depends
            if eqn.name == "sub" and self.how[eqn.operands[0]].kind != "sum":
                raise Depends
        elif not sums and not is_affine and marked not in rule.linear:
            raise Depends
        terms = [
            (
                term if is_affine and not (i and eqn.name == "sub") else self.signatures.through(eqn, i, marked, term),
                places,
            )
            for i, how in zip(marked, hows, strict=True)
            for term, places in how.terms
        ]
        if sums and self._is_identity(eqn):
            terms = list(hows[0].terms)
        entered = tuple(sorted({place for how in hows for place in how.entered}))
        found = How(
            kind="sum" if sums else "part",
            dims=next(iter(sums), ()),
            entered=entered,
            terms=tuple(sorted(terms)),
        )
        return self._completed(eqn, found)

    def _completed(self, eqn: Equation, how: How) -> How:
        """A sum without its terms where those of all numbered micro-batches are in it."""
        if not how.terms or not _are_all_there(how.terms):
            return how
        entered = tuple(place for place in how.entered if place[0] == LOOP)
        if how.kind == "part" and not entered:
            return same(self._shape(eqn.results[0]))
        return replace(how, entered=entered, terms=())

    def _is_identity(self, eqn: Equation) -> bool:
        """Whether a result has the numbers of the operand: a copy, or a weak type that becomes strong."""
        of = [self.program.tensors[t].dtype for t in (eqn.operands[0], eqn.results[0])]
        return eqn.name == "copy" or (eqn.name == "convert_element_type" and of[0] == of[1])

    def _unstacked(self, eqn: Equation, rule: OperatorRule) -> How:
        """A result of summands that are stacked over the numbers of their micro-batches."""
        marked = tuple(i for i, t in enumerate(eqn.operands) if self.how[t].kind != "same")
        hows = {self.how[eqn.operands[i]] for i in marked}
        named = {tuple(rule.operands[i][d] for d in self.how[eqn.operands[i]].dims) for i in marked}
        if marked not in rule.linear or len(hows) > 1 or len(named) > 1:
            raise Depends
        (how,), (factors,) = hows, named
        if any(len(f) != 1 for f in factors) or not self._varying(eqn, rule).isdisjoint(f for (f,) in factors):
            raise Depends
        left = tuple(self._place(rule.results[0], f) for (f,) in factors if rule.factors[f].reducer != "sum")
        return replace(how, dims=left) if left else self._summand(eqn, how.entered)

    def _mapped(self, eqn: Equation, rule: OperatorRule, held: tuple[tuple[int, ...], ...]) -> How:
        """How a result depends that is computed of examples, each by itself or summed."""
        marked = [i for i, t in enumerate(eqn.operands) if self.how[t].kind != "same"]
        hows = {replace(self.how[eqn.operands[i]], dims=()) for i in marked}
        found = {tuple(rule.operands[i][d] for d in self.how[eqn.operands[i]].dims) for i in marked}
        if len(found) != 1 or len(hows) != 1 or any(len(factors) != 1 for factors in next(iter(found))):
            raise Depends
        (how,), named = hows, [factors[0] for factors in next(iter(found))]
        bad = self._varying(eqn, rule) | {f for f, _ in rule.indexed}
        if not bad.isdisjoint(named) or any(rule.factors[f].kind not in ("map", "reduce") for f in named):
            raise Depends
        summed = [rule.factors[f].kind == "reduce" for f in named]
        if any(rule.factors[f].kind == "reduce" and rule.factors[f].reducer != "sum" for f in named):
            raise Depends
        if not any(summed):
            return replace(how, dims=tuple(self._place(held, f) for f in named))
        if all(summed):
            return self._summand(eqn, how.entered)
        if not summed[-1]:
            raise Depends
        dims = tuple(self._place(held, f) for f, is_summed in zip(named, summed, strict=True) if not is_summed)
        return How(kind="stack", dims=dims, entered=how.entered)

    @staticmethod
    def _place(held: tuple[tuple[int, ...], ...], factor: int) -> int:
        """The dimension that is led by a factor alone."""
        if (factor,) not in held:
            raise Depends
        return held.index((factor,))


def _are_all_there(terms: Sequence[Term]) -> bool:
    """Whether each summand occurs for every one of its numbered micro-batches, equally often."""
    counts = Counter(terms)
    by_signature: dict[int, dict[tuple[Place, ...], int]] = {}
    for (signature, places), count in counts.items():
        by_signature.setdefault(signature, {})[places] = count
    for found in by_signature.values():
        numbers = {tuple(number for number, _ in places) for places in found}
        if len(numbers) > 1 or len(set(found.values())) > 1:
            return False
        every = itertools.product(*(range(number) for number in next(iter(numbers))))
        if {tuple(k for _, k in places) for places in found} != set(every):
            return False
    return True
