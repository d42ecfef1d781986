"""Rules that no CPU can execute, against the documentation of the operators."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxplan.ir import OperatorRule
from jaxplan.ir.rules import operator_rule
from tests.ir.rules._rule_cases import RULE_CASES, RuleCase


def _splittable(rule: OperatorRule) -> list[str]:
    """Such as ``map 4`` and ``sum 6``, of factors that are the major one wherever they are."""
    factors = rule.factors_of_kind("map") + rule.factors_of_kind("reduce")
    return sorted(f"{rule.factors[f].reducer or 'map'} {rule.factors[f].size}" for f in factors)


@pytest.mark.parametrize("case", RULE_CASES, ids=str)
def test_splittable_factors(case: RuleCase) -> None:
    operands, results = case.sides()
    rule = operator_rule(case.primitive, operands, results, case.params)
    assert rule.family != "unknown"
    assert _splittable(rule) == sorted(filter(None, case.rule.split(", "))), rule


def test_heads_of_attention_line_up() -> None:
    """Groups of query heads are minor to the head of the keys that they share, in tensors and statistics."""
    case = RULE_CASES[0]
    rule = operator_rule(case.primitive, *case.sides(), case.params)
    query, key, value = (dims[2] for dims in rule.operands[:3])
    assert query[:1] == key == value
    assert rule.results[0][2][:1] == key and rule.results[1][1][:1] == key
    assert {dims[0] for dims in (*rule.operands[:3], *rule.results)} == {rule.operands[0][0]}


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_random_numbers_are_split_only_if_they_depend_on_their_position(implementation: str) -> None:
    key = jax.eval_shape(lambda: jax.random.key(0, impl=implementation))
    bits = jax.ShapeDtypeStruct((4, 6), jnp.uint32)
    rule = operator_rule("random_bits", [key], [bits], {"bit_width": 32, "shape": (4, 6)})
    assert len(rule.factors_of_kind("map")) == (2 if implementation == "threefry2x32" else 0)


def test_random_numbers_are_whole_without_the_partitionable_generator() -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    bits = jax.ShapeDtypeStruct((4, 6), jnp.uint32)
    with jax.threefry_partitionable(False):
        rule = operator_rule("random_bits", [key], [bits], {"bit_width": 32, "shape": (4, 6)})
    assert not rule.factors_of_kind("map")
