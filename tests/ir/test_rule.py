"""Invariants of rules, and factor strings."""

from __future__ import annotations

import re

import jax.numpy as jnp
import pytest
from jax import lax

from jaxplan import RuleError
from jaxplan.ir.rules import Factor, OperatorRule, factor_rule
from tests.ir.rules._equations import rule_of, single_equation

_I, _J = Factor(size=4), Factor(size=6)


def _rule(
    *factors: Factor, operands: tuple = (((0,),),), results: tuple = (((0,),),), **options: tuple
) -> OperatorRule:
    return OperatorRule(factors=factors, operands=operands, results=results, family="elementwise", **options)


def test_factor_string_gives_the_rule_of_a_batched_dot() -> None:
    rule = factor_rule(
        "b i k, b k j -> b i j",
        {"b": 2, "i": 4, "k": 6, "j": 8},
        reduce={"k": "sum"},
        linear=((0,), (1,)),
    )
    assert rule.operands == (((0,), (1,), (2,)), ((0,), (2,), (3,)))
    assert rule.results == (((0,), (1,), (3,)),)
    assert [factor.kind for factor in rule.factors] == ["map", "map", "reduce", "map"]
    rule.check([(2, 4, 6), (2, 6, 8)], [(2, 4, 8)])


@pytest.mark.parametrize(
    "notation",
    ["b i k, b k j -> b i j {k: sum}", "(h w) c -> h w c", "i j, () -> i j", "i 1 -> i j", "-> i j"],
)
def test_rules_print_as_the_string_they_were_read_from(notation: str) -> None:
    string = notation.partition("{")[0].strip()
    sizes = dict.fromkeys(re.findall(r"[a-z]+", string), 2)
    assert str(factor_rule(string, sizes, reduce={"k": "sum"})) == notation


def test_names_of_size_one_are_dropped() -> None:
    rule = factor_rule("(i j) k -> i j k", {"i": 4, "j": 1, "k": 6})
    assert rule.operands == (((0,), (1,)),)
    assert rule.results == (((0,), (), (1,)),)


@pytest.mark.parametrize(
    "notation, message",
    [
        ("i j", "exactly one '->'"),
        ("i -> j -> k", "exactly one '->'"),
        ("i (j -> i j", "not closed"),
        ("i j) -> i j", "unexpected"),
        ("i + j -> i j", "cannot read"),
        ("i,, j -> i j", "empty"),
        ("i z -> i z", "no size for"),
        ("i j -> i", "is in no result"),
        ("i i -> i", "carries a factor twice"),
    ],
)
def test_malformed_factor_strings_are_explained(notation: str, message: str) -> None:
    with pytest.raises(RuleError, match=re.escape(message)):
        factor_rule(notation, {"i": 4, "j": 6, "k": 2})


def test_kinds_and_reducers_belong_together() -> None:
    with pytest.raises(RuleError, match="exactly 'reduce' has one"):
        Factor(size=4, kind="reduce")
    with pytest.raises(RuleError, match="exactly 'reduce' has one"):
        Factor(size=4, reducer="sum")
    with pytest.raises(RuleError, match="size 1"):
        Factor(size=1)


def test_inconsistent_rules_are_refused() -> None:
    with pytest.raises(RuleError, match="is in no dimension"):
        _rule(_I, _J)
    with pytest.raises(RuleError, match="not among the 1"):
        _rule(_I, operands=(((3,),),))
    with pytest.raises(RuleError, match="in a result"):
        _rule(Factor(size=4, kind="reduce", reducer="sum"))
    with pytest.raises(RuleError, match="map factor 'i' is in no result"):
        _rule(_I, results=((),))
    with pytest.raises(RuleError, match="linear names operand 1 of 1"):
        _rule(_I, linear=((1,),))


@pytest.mark.parametrize(
    "in_shapes, out_shapes, message",
    [
        ([(4,), (4,)], [(4,)], "the rule has 1 operands"),
        ([(4, 1)], [(4,)], "operand 0 has rank 1"),
        ([(4,)], [(5,)], "dimension 0 of result 0 has size 5, its factors multiply to 4"),
    ],
)
def test_check_compares_with_shapes(in_shapes: list, out_shapes: list, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        _rule(_I).check(in_shapes, out_shapes)


def test_window_dimensions_may_be_multiples() -> None:
    rule = factor_rule("h -> h", {"h": 16}, window=["h"])
    rule.check([(32,)], [(16,)])
    with pytest.raises(RuleError, match="size 40"):
        rule.check([(40,)], [(16,)])


def test_a_reshape_that_transposes_first_follows_the_transposed_operand() -> None:
    x = jnp.arange(4 * 6 * 8).reshape(4, 6, 8)
    rule = rule_of(single_equation(lambda x: lax.reshape(x, (24, 8), (1, 0, 2)), "reshape", x))
    assert str(rule) == "j i k -> (i j) k"
    half = lax.reshape(x[:, :3], (12, 8), (1, 0, 2))  # the first half of the major part of the result
    assert (half == lax.reshape(x, (24, 8), (1, 0, 2))[:12]).all()
