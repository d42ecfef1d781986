"""How the batch flows through one equation: kept per example, summed over, or mixed.

A value inside of a loop or branch is one of four: the same for every slice (`SAME`), zero (`ZERO`), per example
(`EACH`), or a sum over examples to which each slice adds its own (`SUM`). A value computed of a sum in any way that is
not linear is `MIXED`: a loop over slices cannot make it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from jaxplan.core import _compat
from jaxplan.ir._registry import operator_rule
from jaxplan.ir.microbatch._pairs import CALLEE_PARAMS, batch_dim, inner_jaxprs, not_separable


class Flow(enum.IntEnum):
    """The role of a value in a loop over slices of the batch."""

    ZERO = 0
    SAME = 1
    SUM = 2
    EACH = 3
    MIXED = 4


UNIFORM = frozenset({"broadcast_in_dim", "full_like", "empty", "empty2"})
"""Equations that make the same number for every example."""
_MOST_ROUNDS = 8


def flow_of(full: Any, small: Any, operands: Sequence[Flow]) -> list[Flow]:
    """The roles of an equation's results, from those of its operands.

    Args:
      full, small: the equation on the whole batch and on a slice.

    Raises:
      NotSeparableError: it mixes examples, or joins them in another way than by a sum.
    """
    if all(of in (Flow.ZERO, Flow.SAME) for of in operands) and not _carries(full, small):
        return [_constant_flow(full, operands)] * len(full.outvars)
    name = full.primitive.name
    if name == "scan":
        return _scan_flow(full, small, operands)
    if name == "while":
        return _while_flow(full, small, operands)
    if name == "cond":
        return _cond_flow(full, small, operands)
    if any(True for _ in inner_jaxprs(full.params)) and any(p in full.params for p in CALLEE_PARAMS):
        if name in ("checkpoint", "remat", "remat2", "jit", "pjit", "closed_call", "core_call", "name") or (
            name.startswith("custom_") and name != "custom_linear_solve"
        ):
            param = next(p for p in CALLEE_PARAMS if p in full.params)
            return _inside(full.params[param], small.params[param], operands)
        if name == "shard_map":
            raise not_separable("jax.shard_map fixes its pieces", full)
    return _operator_flow(full, small, operands)


def _carries(full: Any, small: Any) -> bool:
    """Whether an operand or result carries the batch."""
    pairs = zip((*full.invars, *full.outvars), (*small.invars, *small.outvars), strict=True)
    return any(batch_dim(a.aval, b.aval, full) is not None for a, b in pairs)


def _reads_batch(full: Any, small: Any) -> bool:
    """Whether an operand carries the batch."""
    return any(batch_dim(a.aval, b.aval, full) is not None for a, b in zip(full.invars, small.invars, strict=True))


def _has_inner(eqn: Any) -> bool:
    return any(True for _ in inner_jaxprs(eqn.params))


def _constant_flow(eqn: Any, operands: Sequence[Flow]) -> Flow:
    """Of values that are the same in every slice: zero where that is plain to see."""
    shapes_only = ("broadcast_in_dim", "reshape", "transpose", "convert_element_type", "squeeze", "copy", "neg")
    is_zero = operands and all(of == Flow.ZERO for of in operands) and eqn.primitive.name in shapes_only
    return Flow.ZERO if is_zero else Flow.SAME


def atom_flow(atom: Any) -> Flow:
    """The role of a literal."""
    value = atom.val
    return Flow.ZERO if not getattr(value, "shape", ()) and not isinstance(value, bool) and value == 0 else Flow.SAME


def _operator_flow(full: Any, small: Any, operands: Sequence[Flow]) -> list[Flow]:
    """Of an operator with a factor rule: the factor whose size follows the batch says."""
    factor = batch_factor(full, small)
    if factor is None:
        return [_linear(full, operands)] * len(full.outvars)
    if Flow.SUM in operands or Flow.MIXED in operands:
        raise not_separable("examples depend on a sum over the batch inside of a loop or branch", full)
    rule = operator_rule(full.primitive.name, *_avals(full), full.params)
    results = []
    for dims in rule.results:
        if any(factor in of for of in dims):
            if rule.factors[factor].kind != "map":
                raise not_separable("it mixes examples along the batch", full)
            results.append(Flow.EACH)
        elif rule.factors[factor].reducer == "sum":
            results.append(_summed(full, rule, operands))
        else:
            raise not_separable("it joins the examples of the batch in another way than by a sum", full)
    return results


def _summed(full: Any, rule: Any, operands: Sequence[Flow]) -> Flow:
    """A sum over examples; one that is added to something takes that in once for each slice, so it must be zero."""
    if rule.family == "scatter":
        start = operands[0]
        if start is not Flow.ZERO:
            raise not_separable("it adds examples to a value that is not zero", full)
    return Flow.SUM


def batch_factor(full: Any, small: Any) -> int | None:
    """The factor of an operator's rule whose size follows the batch; None where no operand or result carries it.

    Raises:
      NotSeparableError: several do, or a dimension that carries the batch is taken apart otherwise.
    """
    if not _carries(full, small):
        return None
    rule = operator_rule(full.primitive.name, *_avals(full), full.params)
    other = operator_rule(small.primitive.name, *_avals(small), small.params)
    if len(rule.factors) != len(other.factors) or rule.operands != other.operands or rule.results != other.results:
        raise not_separable("it takes the batch apart in another way for other sizes", full)
    found = [f for f, (a, b) in enumerate(zip(rule.factors, other.factors, strict=True)) if a.size != b.size]
    if len(found) != 1:
        raise not_separable("it relates examples to each other", full)
    (factor,) = found
    for side, small_side, dims in (
        (full.invars, small.invars, rule.operands),
        (full.outvars, small.outvars, rule.results),
    ):
        for a, b, of in zip(side, small_side, dims, strict=True):
            dim = batch_dim(a.aval, b.aval, full)
            if dim is not None and factor not in of[dim]:
                raise not_separable("it mixes examples along the batch", full)
    return factor


def outer_size(full: Any, small: Any, position: int) -> int:
    """Elements outside of the batch in the dimension of a result that carries it: 1 where the batch is major."""
    factor = batch_factor(full, small)
    rule = operator_rule(full.primitive.name, *_avals(full), full.params)
    outer = 1
    for dims in rule.results[position]:
        if factor in dims:
            for f in dims[: dims.index(factor)]:
                outer *= rule.factors[f].size
    return outer


def _linear(full: Any, operands: Sequence[Flow]) -> Flow:
    """The result's role where an operator reads sums over examples and no examples."""
    touched = [i for i, of in enumerate(operands) if of in (Flow.SUM, Flow.MIXED)]
    if not touched:
        return Flow.SAME
    if any(operands[i] is Flow.MIXED for i in touched):
        return Flow.MIXED
    rule = operator_rule(full.primitive.name, *_avals(full), full.params)
    for together in rule.linear:
        inside = all(operands[i] in (Flow.SUM, Flow.ZERO) for i in together)
        if inside and set(touched) <= set(together):
            return Flow.SUM
    return Flow.MIXED


def _avals(eqn: Any) -> tuple[list[Any], list[Any]]:
    return [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars]


def _inside(full: Any, small: Any, operands: Sequence[Flow]) -> list[Flow]:
    """The roles of a called jaxpr's results."""
    outer, _ = _compat.open_jaxpr(full)
    inner, _ = _compat.open_jaxpr(small)
    if len(outer.eqns) != len(inner.eqns):
        raise not_separable("its operators depend on the size of the batch")
    known: dict[Any, Flow] = dict(zip(outer.invars, operands, strict=True))
    known.update(dict.fromkeys(outer.constvars, Flow.SAME))

    def read(atom: Any) -> Flow:
        return atom_flow(atom) if isinstance(atom, _compat.Literal) else known[atom]

    for a, b in zip(outer.eqns, inner.eqns, strict=True):
        if a.primitive.name != b.primitive.name:
            raise not_separable("its operators depend on the size of the batch", a)
        if a.primitive.name not in UNIFORM and not _reads_batch(a, b) and _carries(a, b) and not _has_inner(a):
            raise not_separable("it numbers or draws along the batch inside of a loop, branch or checkpoint", a)
        known.update(zip(a.outvars, flow_of(a, b, [read(atom) for atom in a.invars]), strict=True))
    return [read(atom) for atom in outer.outvars]


def _join(a: Flow, b: Flow, eqn: Any) -> Flow:
    """Either of two values."""
    if a == b:
        return a
    low, high = sorted((a, b))
    if low is Flow.ZERO:
        return high
    if high is Flow.EACH and low is Flow.SAME:
        return Flow.EACH
    return Flow.MIXED


def _scan_flow(full: Any, small: Any, operands: Sequence[Flow]) -> list[Flow]:
    params = full.params
    if params["length"] != small.params["length"]:
        raise not_separable("a loop goes from example to example", full)
    num_consts, num_carry = _compat.scan_counts(params, len(full.invars))
    consts, carry = list(operands[:num_consts]), list(operands[num_consts : num_consts + num_carry])
    scanned = list(operands[num_consts + num_carry :])
    for atom, other in zip(
        (*full.invars[num_consts + num_carry :], *full.outvars[num_carry:]),
        (*small.invars[num_consts + num_carry :], *small.outvars[num_carry:]),
        strict=True,
    ):
        if batch_dim(atom.aval, other.aval, full) == 0:
            raise not_separable("a loop goes from example to example", full)
    for _ in range(_MOST_ROUNDS):
        results = _inside(params["jaxpr"], small.params["jaxpr"], [*consts, *carry, *scanned])
        joined = [_join(a, b, full) for a, b in zip(carry, results[:num_carry], strict=True)]
        if joined == carry:
            break
        carry = joined
    return [*carry, *results[num_carry:]]


def _while_flow(full: Any, small: Any, operands: Sequence[Flow]) -> list[Flow]:
    params, other = full.params, small.params
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond, body = list(operands[:num_cond]), list(operands[num_cond : num_cond + num_body])
    carry = list(operands[num_cond + num_body :])
    for _ in range(_MOST_ROUNDS):
        results = _inside(params["body_jaxpr"], other["body_jaxpr"], [*body, *carry])
        joined = [_join(a, b, full) for a, b in zip(carry, results, strict=True)]
        if joined == carry:
            break
        carry = joined
    (goes_on,) = _inside(params["cond_jaxpr"], other["cond_jaxpr"], [*cond, *carry])
    if goes_on not in (Flow.SAME, Flow.ZERO):
        raise not_separable("the number of trips of a loop depends on the batch", full)
    return carry


def _cond_flow(full: Any, small: Any, operands: Sequence[Flow]) -> list[Flow]:
    if operands[0] not in (Flow.SAME, Flow.ZERO):
        raise not_separable("which branch is taken depends on the batch", full)
    branches = [
        _inside(a, b, operands[1:])
        for a, b in zip(full.params["branches"], small.params["branches"], strict=True)
    ]
    found = branches[0]
    for other in branches[1:]:
        found = [_join(a, b, full) for a, b in zip(found, other, strict=True)]
    return found
