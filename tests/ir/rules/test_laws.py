"""The promises of rules, executed: map factors concatenate, reduce factors reduce, linear operands add up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxplan.ir.rules import OperatorRule, operator_rule
from tests.ir.rules import _more_cases
from tests.ir.rules._cases import Case
from tests.ir.rules._equations import rule_of, single_equation

_NUM_PARTS = 2
_NEUTRAL = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}
_JOIN = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_TOLERANCE = {"rtol": 2e-5, "atol": 1e-5}


def _rule(case: Case) -> OperatorRule:
    fn = lambda *operands: case.fn(case.out_shapes, *operands)  # noqa: E731
    return rule_of(single_equation(fn, case.primitive, *case.operands()))


def _run(
    case: Case, operands: Sequence[np.ndarray], out_shapes: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    results = case.fn(out_shapes, *map(jnp.asarray, operands))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


def _part(rule: OperatorRule, dims: Any, shape: Sequence[int], factor: int, part: int) -> tuple[Any, ...]:
    """NumPy index arrays of the elements of a tensor with an index of ``factor`` in one part."""
    parts = []
    for indices, size in zip(dims, shape):
        positions = np.arange(size)
        if factor in indices:
            sizes = [rule.factors[index].size for index in indices]
            coordinate = np.unravel_index(positions, sizes)[indices.index(factor)]
            positions = positions[coordinate // (rule.factors[factor].size // _NUM_PARTS) == part]
        parts.append(positions)
    return np.ix_(*parts) if parts else ()


def _free(rule: OperatorRule) -> list[int]:
    """Factors of the right operand of a dot that its result carries too."""
    carried = {f for dim in rule.results[0] for f in dim}
    return [f for dim in rule.operands[1] for f in dim if f in carried]


@pytest.mark.sample(96)
@pytest.mark.parametrize("case", _more_cases.PARTS, ids=str)
def test_splitting_any_factor_gives_the_whole_result(case: Case) -> None:
    rule, operands = _rule(case), case.operands()
    whole = _run(case, operands, case.out_shapes)
    # A part needs its own indices, or the counts of all groups: tests/partition/test_local.py.
    indexed = {factor for factor, _ in rule.indexed}
    if case.primitive == "ragged_dot_general":
        indexed |= set(range(len(rule.factors))) - {f for dim in rule.operands[0] for f in dim} - set(_free(rule))
    for factor in rule.factors_of_kind("map") + rule.factors_of_kind("reduce"):
        if factor in indexed:
            continue
        assembled = _run_in_parts(case, rule, factor, operands, whole)
        for expected, actual in zip(whole, assembled):
            note = f"factor {rule.factor_name(factor)} of {rule}"
            np.testing.assert_allclose(actual, expected, err_msg=note, **_TOLERANCE)


def _run_in_parts(
    case: Case, rule: OperatorRule, factor: int, operands: list[np.ndarray], whole: list[np.ndarray]
) -> list[np.ndarray]:
    """Results put together from runs on the parts of one factor."""
    assembled = [np.zeros_like(result) for result in whole]
    reducer = rule.factors[factor].reducer
    for part in range(_NUM_PARTS):
        places = [_part(rule, dims, t.shape, factor, part) for dims, t in zip(rule.results, whole)]
        local = [t[_part(rule, dims, t.shape, factor, part)] for dims, t in zip(rule.operands, operands)]
        if reducer and rule.family == "scatter" and part:
            local[0] = np.full_like(local[0], _NEUTRAL[reducer])  # the operand counts once
        results = _run(case, local, [result[place].shape for result, place in zip(whole, places)])
        for target, place, result in zip(assembled, places, results):
            target[place] = _JOIN[reducer](target[place], result) if reducer and part else result
    return assembled


@pytest.mark.parametrize("case", _more_cases.PARTS, ids=str)
def test_linear_operands_carry_partial_sums(case: Case) -> None:
    first = case.operands(seed=1)
    for linear in _rule(case).linear:
        second = [
            other if i in linear else same for i, (same, other) in enumerate(zip(first, case.operands(2)))
        ]
        both = [same + other if i in linear else same for i, (same, other) in enumerate(zip(first, second))]
        runs = [_run(case, operands, case.out_shapes) for operands in (first, second, both)]
        for one, two, total in zip(*runs):
            tolerance = {"rtol": 2e-3} if total.dtype == np.float16 else _TOLERANCE
            np.testing.assert_allclose(one + two, total, **tolerance)


def _shapes_of(num_elements: int, max_rank: int) -> list[tuple[int, ...]]:
    sizes = [size for size in range(1, num_elements + 1) if num_elements % size == 0]
    ranks = range(1, max_rank + 1)
    shapes = itertools.chain.from_iterable(itertools.product(sizes, repeat=rank) for rank in ranks)
    return [shape for shape in shapes if math.prod(shape) == num_elements]


@pytest.mark.parametrize("num_elements, max_rank", [(24, 3), (36, 2), (7, 2)])
def test_every_reshape_moves_parts_of_map_factors_as_they_are(num_elements: int, max_rank: int) -> None:
    shapes = _shapes_of(num_elements, max_rank)
    for before, after in itertools.product(shapes, repeat=2):
        values = np.arange(num_elements)
        avals = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (before, after)]
        rule = operator_rule("reshape", avals[:1], avals[1:], {"new_sizes": after, "dimensions": None})
        for factor in rule.factors_of_kind("map"):
            if rule.factors[factor].size % _NUM_PARTS:
                continue
            for part in range(_NUM_PARTS):
                source = values.reshape(before)[_part(rule, rule.operands[0], before, factor, part)]
                target = values.reshape(after)[_part(rule, rule.results[0], after, factor, part)]
                np.testing.assert_array_equal(source.ravel(), target.ravel())
