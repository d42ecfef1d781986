"""The compiler splits an operator wherever its rule says that it may be, without moving anything between devices.

A mapped factor is split over two devices by constraints on operands and results; the compiled program must hold no
collective, and compute the same as one device. Factors that run in a manual region are tried in
tests/partition/test_local.py.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxplan.ir import OperatorRule
from tests.ir.rules import _cases, _more_cases
from tests.ir.rules._cases import Case
from tests.ir.rules._equations import rule_of, single_equation

_COLLECTIVES = re.compile(r"\b(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\b")
_NUM_PARTS = 2


# The compiler of jax 0.10 cannot lower a sharded `mulhi` at all, whoever shards it.
_NOT_LOWERED = frozenset({"mulhi"})
# Some cases of these have no mapped factor that the compiler is asked to split: they run on a device's own pieces
# (tests/partition/test_local.py), or have reduced factors only.
_ON_PIECES = frozenset(
    (
        *("approx_top_k", "conv_general_dilated", "fft", "ragged_dot_general", "reduce_prod", "top_k"),
        *("triangular_solve", "tridiagonal_solve"),
    )
)
_ELEMENTWISE = [*_cases.ELEMENTWISE, *filter(None, _more_cases.ELEMENTWISE)]
_OTHERS = [case for case in _more_cases.WHOLES if case not in _ELEMENTWISE]


@pytest.mark.sample(52)
@pytest.mark.parametrize("case", _OTHERS, ids=str)
def test_compiler_splits_mapped_factors(case: Case) -> None:
    rule = rule_of(single_equation(function_of(case), case.primitive, *case.operands()))
    factors = split_by_the_compiler(rule)
    if not factors:
        assert case.primitive in _ON_PIECES
        return
    _check([(case, rule, factor) for factor in factors])


def test_compiler_splits_elementwise_operators() -> None:
    """All in one program: each has operands of its own."""
    variants = []
    for case in _ELEMENTWISE:
        rule = rule_of(single_equation(function_of(case), case.primitive, *case.operands()))
        factors = split_by_the_compiler(rule)
        if factors and case.primitive not in _NOT_LOWERED:
            variants.append((case, rule, factors[0]))
    assert len(variants) > len(_ELEMENTWISE) * 0.9
    _check(variants)


def function_of(case: Case) -> Any:
    return lambda *xs: case.fn(case.out_shapes, *xs)


def _check(variants: list[tuple[Case, OperatorRule, int]]) -> None:
    """Compile the variants together; operands of their own keep the compiler from merging them."""
    mesh = Mesh(np.array(jax.devices()[:_NUM_PARTS]), ("d",))
    operands = [case.operands() for case, _, _ in variants]

    def split(operands: Any) -> list[Any]:
        return [
            _constrained(mesh, rule, factor, function_of(case), xs)
            for (case, rule, factor), xs in zip(variants, operands)
        ]

    compiled = jax.jit(split).lower(operands).compile()
    found = sorted(set(_COLLECTIVES.findall(compiled.as_text())))
    assert not found, f"{found} in the program of {[str(rule) for _, rule, _ in variants]}"
    for (case, rule, factor), xs, results in zip(variants, operands, compiled(operands)):
        for result, whole in zip(results, jax.tree.leaves(function_of(case)(*xs))):
            note = f"{case}: {rule.factor_name(factor)} of {rule}"
            np.testing.assert_allclose(result, whole, rtol=2e-5, atol=1e-5, err_msg=note)


def split_by_the_compiler(rule: OperatorRule) -> list[int]:
    """Mapped factors that the compiler splits by itself, and evenly."""
    if rule.manual:
        return []
    dims = [dim for tensor in (*rule.operands, *rule.results) for dim in tensor]
    minor = {f for dim in dims for f in dim[1:]} | {f for f, _ in rule.indexed}
    return [
        f for f in rule.factors_of_kind("map") if f not in minor and rule.factors[f].size % _NUM_PARTS == 0
    ]


def _constrained(mesh: Mesh, rule: OperatorRule, factor: int, fn: Any, xs: Any) -> list[Any]:
    """Results with every tensor split where it carries the factor, sizes permitting."""

    def pin(x: Any, dims: Any) -> Any:
        if np.ndim(x) != len(dims):  # keys: the test adds or takes away their words
            return x
        spec = PartitionSpec(*("d" if factor in dim[:1] else None for dim in dims))
        return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    results = jax.tree.leaves(fn(*(pin(x, dims) for x, dims in zip(xs, rule.operands))))
    return [pin(result, dims) for result, dims in zip(results, rule.results)]
