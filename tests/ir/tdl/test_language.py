"""Malformed descriptions are refused, and the text names the fault and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from jaxplan import RuleError
from jaxplan.tdl import Max, Opaque, Sum, analyse, padded


@pytest.mark.parametrize(
    "description, message",
    [
        (lambda a: lambda i, j: a[i, j], r"operands \['a'\], and the operator has 2"),
        (lambda a, b, c: lambda i, j: a[i, j], r"operands \['a', 'b', 'c'\], and the operator has 2"),
        (lambda a, b: lambda i: a[i, i], r"result 0 is described with index variables \['i'\], and it has rank 2"),
        (lambda a, b: lambda i, j: a[i], r"operand 'a' is read with 1 indices, and it has rank 2"),
        (lambda a, b: lambda i, j: a[..., i, i, j], "operand 'a' of rank 2 is read with 4 indices"),
        (lambda a, b: [lambda i, j: a[i, j]] * 2, "returns 2 results, and the operator has 1"),
        (lambda a, b: 3, "result 0 is described by int"),
        (lambda a, b: lambda i, j: a, "contains <.*Operand.*expected a number, an element"),
        (lambda a, b: lambda i, j: a[i, :], "a slice stands outside of an Opaque call"),
        (lambda a, b: lambda i, j: a[j, i], "ranges over 6 in dimension 1 of result 0 and over 4 in dimension 0 of a"),
        (lambda a, b: lambda i, j: Sum(lambda k: a[i, k] * b[k, j]), "ranges over 6 in dimension 1 of a and over 4"),
        (lambda a, b: lambda i, j: a[i + 1, j], r"a\[i \+ 1\] reads elements 1 to 4 of dimension 0 of size 4"),
        (lambda a, b: lambda i, j: a[i - 1, j], r"a\[i - 1\] reads elements -1 to 2.*padded\(a\)"),
        (lambda a, b: lambda i, j: Max(lambda d: padded(a)[i + d, j]), "range of index d is unknown.*d=3"),
        (lambda a, b: lambda i, j: Max(lambda d: a[i, j], e=3), r"ranges of \['e'\], and its variables are \['d'\]"),
        (lambda a, b: lambda i, j: Sum(a[i, j]), "expected a function of index variables"),
        (lambda a, b: lambda i, j: Sum(lambda k=1, **more: a[i, k]), "expected plain names"),
        (lambda a, b: lambda i, j: a[i, j] if a[i, j] > 0 else 0, "asked whether a value is true"),
        (lambda a, b: lambda i, j: sum(a), "cannot be looped over"),
        (lambda a, b: lambda i, j: sum(a[i, j]), "cannot be unpacked or looped over"),
    ],
)  # fmt: skip
def test_mistake_is_explained(description: Any, message: str) -> None:
    with pytest.raises(RuleError, match=f"(?s){message}"):
        analyse(description, [(4, 6), (4, 6)], [(4, 6)])


@pytest.mark.parametrize(
    "description, index",
    [
        (lambda a: lambda i, j: a[i * j], r"\(i \* j\)"),
        (lambda a: lambda i, j: a[i // 2], r"f\(i, 2\)"),
        (lambda a: lambda i, j: a[(i + j) % 4], r"f\(i \+ j, 4\)"),
        (lambda a: lambda i, j: a[i / 2], r"\(i / 2\)"),
        (lambda a: lambda i, j: a[0.5 * i], r"\(0.5 \* i\)"),
        (lambda a: lambda i, j: a[i**2 + 1], r"\(f\(i, 2\) \+ 1\)"),
    ],
)
def test_index_that_is_not_affine_is_refused(description: Any, index: str) -> None:
    with pytest.raises(RuleError, match=f"the index {index} is not affine.*expected sums"):
        analyse(description, [(64,)], [(4, 4)])


def test_an_index_that_is_not_affine_may_be_opaque() -> None:
    """The way out that the error names: the whole dimension is read."""
    analysis = analyse(lambda a: lambda i, j: Opaque("pick")(a[i, :], j), [(4, 6)], [(4, 6)])
    assert [strategy.variable for strategy in analysis.strategies] == ["i"]


def test_parameters_of_the_equation_are_keyword_only() -> None:
    def pool(image: Any, *, window: int, stride: int) -> Any:
        return lambda b, x: Max(lambda d: image[b, stride * x + d], d=window)

    shapes = [(4, 16)], [(4, 8)]
    assert (
        str(analyse(pool, *shapes, {"window": 2, "stride": 2, "other": 0}).rule)
        == "b (x d) -> b x {d: whole}"
    )
    with pytest.raises(RuleError, match=r"asks for parameters \['stride'\]; the operator has \['window'\]"):
        analyse(pool, *shapes, {"window": 2})


def test_shapes_may_be_asked_for() -> None:
    description = lambda a: lambda i, j: a[i, a.shape[1] - 1 - j]  # noqa: E731
    assert [s.variable for s in analyse(description, [(4, 6)], [(4, 6)]).strategies] == ["i"]
