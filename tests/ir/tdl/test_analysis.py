"""Rules, strategies and regions against the paper's figures and against running descriptions element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxplan.ir import OperatorRule
from jaxplan.tdl import Analysis, Max, Min, Opaque, Prod, Sum, analyse, padded
from tests.ir.tdl._evaluate import Evaluator


def conv1d(data: Any, filters: Any) -> Any:
    """Tofu, figure 3."""
    return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])


def shift_two(A: Any) -> Any:
    """Tofu, section 3.2."""
    return lambda i: A[i + 2]


def batch_cholesky(batch_mat: Any) -> Any:
    """Tofu, figure 4."""
    cholesky = Opaque("Cholesky")
    return lambda b, i, j: cholesky(batch_mat[b, :, :])[i, j]


_CONV = ([(4, 6, 18), (6, 8, 3)], [(4, 8, 16)])


def _kinds(analysis: Analysis) -> dict[str, str]:
    return {strategy.variable: strategy.kind for strategy in analysis.strategies}


def test_conv1d_has_the_strategies_of_figure_2_and_a_window() -> None:
    analysis = analyse(conv1d, *_CONV)
    assert str(analysis.rule) == "b ci x, ci co dx -> b co x {x: window, ci: sum, dx: whole}"
    assert _kinds(analysis) == {"b": "map", "co": "map", "x": "window", "ci": "reduce"}
    half_of_data = (((0, 2), (0, 6), (0, 18)), ((0, 6), (0, 8), (0, 3)))
    assert analysis.strategy("b").input_regions(0, 2) == half_of_data
    ci = analysis.strategy("ci")
    assert ci.reducer == "sum"
    assert ci.input_regions(1, 2) == (((0, 4), (3, 6), (0, 18)), ((3, 6), (0, 8), (0, 3)))
    assert "x + dx" in analysis.refused["dx"] and "overlap" in analysis.refused["dx"]
    assert analysis.rule.linear == ((0,), (1,))


def test_conv1d_split_in_space_reads_a_halo_of_the_filter_less_one() -> None:
    """16 outputs from 18 inputs: worker 0 of 2 computes 0..7, reads 0..9, and owns 0..8."""
    x = analyse(conv1d, *_CONV).strategy("x")
    assert x.input_regions(0, 2)[0] == ((0, 4), (0, 6), (0, 10))
    assert x.input_regions(1, 2)[0] == ((0, 4), (0, 6), (8, 18))
    assert x.halo(0, 2) == ((0, 0), (0, 0), (1, 1))
    assert x.halo(1, 2) == ((0, 0), (0, 0), (0, 0))


def test_shift_two_reads_two_elements_further() -> None:
    analysis = analyse(shift_two, [(18,)], [(16,)])
    strategy = analysis.strategy("i")
    assert strategy.kind == "window"
    assert str(strategy.symbolic_region(0, 0, 2)[0]) == "[2, I/2 + 2)"
    assert str(strategy.symbolic_region(0, 1, 2)[0]) == "[I/2 + 2, I + 2)"
    assert strategy.input_regions(0, 2) == (((2, 10),),)
    assert strategy.input_regions(1, 2) == (((10, 18),),)


def test_batch_cholesky_is_split_along_the_batch_alone() -> None:
    analysis = analyse(batch_cholesky, [(8, 3, 3)], [(8, 3, 3)])
    assert _kinds(analysis) == {"b": "map"}
    assert analysis.strategy("b").input_regions(3, 4) == (((6, 8), (0, 3), (0, 3)),)
    assert "Cholesky" in analysis.refused["i"] and "Cholesky" in analysis.refused["j"]
    assert analysis.rule.factors_of_kind("map") == (0,)
    assert analysis.rule.linear == ()


# Description, operand shapes, result shapes, the dimensions that may be split and how.
_EXECUTED: list[tuple[Any, list, list, dict[str, str]]] = [
    (conv1d, [(2, 4, 10), (4, 2, 3)], [(2, 2, 8)], {"b": "map", "co": "map", "x": "window", "ci": "reduce"}),
    (shift_two, [(10,)], [(8,)], {"i": "window"}),
    (
        lambda a, b: lambda i, j: Sum(lambda k: a[i, k] * b[k, j]),
        [(4, 6), (6, 2)],
        [(4, 2)],
        {"i": "map", "j": "map", "k": "reduce"},
    ),
    (
        lambda a, b: lambda n, i, j: Sum(lambda k, m: a[n, i, k, m] * b[m, j, n, k]),
        [(2, 4, 2, 6), (6, 4, 2, 2)],
        [(2, 4, 4)],
        {"n": "map", "i": "map", "j": "map", "k": "reduce", "m": "reduce"},
    ),
    # Pooling: side by side, overlapping, dilated, padded.
    (lambda a: lambda b, x: Max(lambda dx: a[b, 2 * x + dx], dx=2), [(2, 8)], [(2, 4)], {"b": "map", "x": "map"}),
    (lambda a: lambda x: Sum(lambda dx: a[2 * x + dx], dx=3), [(10,)], [(4,)], {"x": "window"}),
    (lambda a: lambda x: Min(lambda dx: a[x + 2 * dx], dx=2), [(10,)], [(8,)], {"x": "window"}),
    (lambda a: lambda x: Max(lambda d: padded(a, -9)[2 * x + d - 1], d=3), [(8,)], [(4,)], {"x": "window"}),
    # Every second element; nothing reads the gaps.
    (lambda a: lambda x: a[2 * x], [(8,)], [(4,)], {"x": "map"}),
    # Merged dimensions: i is major, j minor.
    (lambda a: lambda i, j: a[4 * i + j], [(24,)], [(6, 4)], {"i": "map", "j": "map"}),
    (lambda a: lambda j: Sum(lambda i: a[4 * i + j], i=6), [(24,)], [(4,)], {"i": "reduce", "j": "map"}),
    (lambda a: lambda i: Prod(lambda j: a[4 * i + j], j=4), [(24,)], [(6,)], {"i": "map"}),
    # An operation after a reduction must let it be taken last.
    (lambda a: lambda i: 3 * Sum(lambda k: a[i, k]) / 2, [(4, 6)], [(4,)], {"i": "map", "k": "reduce"}),
    (lambda a, b: lambda i: Sum(lambda k: a[i, k]) * b[i], [(4, 6), (4,)], [(4,)], {"i": "map", "k": "reduce"}),
    (lambda a, b: lambda i: Sum(lambda k: a[i, k]) + b[i], [(4, 6), (4,)], [(4,)], {"i": "map"}),
    (lambda a: lambda i: -1 * Max(lambda k: a[i, k]), [(4, 6)], [(4,)], {"i": "map"}),
    (
        lambda a: lambda i: Max(lambda j: Max(lambda k: a[i, j, k])),
        [(4, 2, 6)],
        [(4,)],
        {"i": "map", "j": "reduce", "k": "reduce"},
    ),
    (lambda a: lambda i: Max(lambda j: Sum(lambda k: a[i, j, k])), [(4, 2, 6)], [(4,)], {"i": "map", "j": "reduce"}),
    (
        lambda a, b: lambda i: Sum(lambda k: a[i, k]) / Sum(lambda m: b[i, m]),
        [(4, 6), (4, 2)],
        [(4,)],
        {"i": "map", "k": "reduce"},
    ),
    (lambda a, b: lambda i: Sum(lambda k: a[i, k] + b[i]), [(4, 6), (4,)], [(4,)], {"i": "map", "k": "reduce"}),
    # Softmax without exp: j is read along with all of its kind.
    (lambda a: lambda i, j: a[i, j] / Sum(lambda k: a[i, k]), [(4, 6)], [(4, 6)], {"i": "map"}),
    # Diagonals, transposes, reversals, positions, outer products, broadcasts.
    (lambda a: lambda i: a[i, i], [(4, 4)], [(4,)], {}),
    (lambda a: lambda i, j: a[j, i], [(4, 6)], [(6, 4)], {"i": "map", "j": "map"}),
    (lambda a: lambda i, j: a[i, j] + a[j, i], [(4, 4)], [(4, 4)], {}),
    (lambda a: lambda i: a[3 - i], [(4,)], [(4,)], {}),
    (lambda a: lambda i, j: i * a[i, j], [(4, 6)], [(4, 6)], {"j": "map"}),
    (lambda a, b: lambda i, j: a[i] * b[j], [(4,), (6,)], [(4, 6)], {"i": "map", "j": "map"}),
    (lambda a: lambda i, j: a[0, j], [(1, 6)], [(4, 6)], {"i": "map", "j": "map"}),
    (lambda a: lambda i: a[i] + a[i + 4], [(8,)], [(4,)], {}),
    (lambda a: lambda i: padded(a)[i] + padded(a)[i + 1], [(8,)], [(8,)], {"i": "window"}),
    # Several results.
    (
        lambda a: ((lambda i: Sum(lambda k: a[i, k])), (lambda i: Sum(lambda k: 2 * a[i, k]))),
        [(4, 6)],
        [(4,), (4,)],
        {"i": "map", "k": "reduce"},
    ),
    (
        lambda a: ((lambda i: Sum(lambda k: a[i, k])), (lambda i: Max(lambda k: a[i, k]))),
        [(4, 6)],
        [(4,), (4,)],
        {"i": "map"},
    ),
    (lambda a: ((lambda i: a[i, 0]), (lambda i: a[i, 1])), [(4, 2)], [(4,), (4,)], {"i": "map"}),
]  # fmt: skip


def _operands(shapes: list) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.uniform(0.5, 1.5, shape) for shape in shapes]


@pytest.mark.parametrize("description, in_shapes, out_shapes, expected", _EXECUTED)
def test_expected_variables_may_be_split(
    description: Any, in_shapes: list, out_shapes: list, expected: dict[str, str]
) -> None:
    analysis = analyse(description, in_shapes, out_shapes)
    assert _kinds(analysis) == expected, analysis
    analysis.rule.check(in_shapes, out_shapes)


@pytest.mark.parametrize("description, in_shapes, out_shapes, expected", _EXECUTED)
def test_workers_read_just_the_regions_that_the_analysis_gives(
    description: Any, in_shapes: list, out_shapes: list, expected: dict[str, str]
) -> None:
    """The bounding box of the elements that each worker reads, found by running it, is its input region."""
    for strategy in analyse(description, in_shapes, out_shapes).strategies:
        for part in range(2):
            evaluator = Evaluator(description, _operands(in_shapes), out_shapes)
            size = _range_of(evaluator, strategy.variable)
            evaluator.results({strategy.variable: range(part * size // 2, (part + 1) * size // 2)})
            for operand, region in enumerate(strategy.input_regions(part, 2)):
                positions = [p for i, p in evaluator.reads if i == operand]
                box = tuple((min(axis), max(axis) + 1) for axis in zip(*positions))
                assert region == box, f"{strategy.variable} of operand {operand}"


def _range_of(evaluator: Evaluator, name: str) -> int:
    return next(size for variable, size in evaluator.sizes.items() if variable.name == name)


_JOIN = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("description, in_shapes, out_shapes, expected", _EXECUTED)
def test_running_the_operator_on_parts_gives_the_whole(
    description: Any, in_shapes: list, out_shapes: list, expected: dict[str, str]
) -> None:
    """Map factors side by side, reduce factors joined, on the pieces that the rule gives to each worker."""
    operands = _operands(in_shapes)
    whole = Evaluator(description, operands, out_shapes).results()
    rule = analyse(description, in_shapes, out_shapes).rule
    declared = any(
        v.size for v in Evaluator(description, operands, out_shapes).sizes if v.kind == "reduction"
    )
    for factor in rule.factors_of_kind("map") + (() if declared else rule.factors_of_kind("reduce")):
        if _is_minor(rule, factor):
            continue  # these descriptions hold the sizes of minor factors
        joined = [np.full_like(result, np.nan) for result in whole]
        for part in range(2):
            local = [x[_part(rule, dims, x.shape, factor, part)] for dims, x in zip(rule.operands, operands)]
            places = [_part(rule, dims, x.shape, factor, part) for dims, x in zip(rule.results, whole)]
            results = Evaluator(description, local, [x[p].shape for x, p in zip(whole, places)]).results()
            reducer = rule.factors[factor].reducer
            for target, place, result in zip(joined, places, results):
                target[place] = _JOIN[reducer](target[place], result) if reducer and part else result
        for expected_result, result in zip(whole, joined):
            np.testing.assert_allclose(
                result, expected_result, err_msg=f"{rule.factor_name(factor)} of {rule}"
            )


def _is_minor(rule: OperatorRule, factor: int) -> bool:
    return any(factor in dim[1:] for dims in rule.operands for dim in dims)


def _part(rule: OperatorRule, dims: Any, shape: tuple[int, ...], factor: int, part: int) -> Any:
    positions = []
    for indices, size in zip(dims, shape):
        axis = np.arange(size)
        if factor in indices:
            sizes = [rule.factors[i].size for i in indices]
            coordinate = np.unravel_index(axis, sizes)[indices.index(factor)]
            axis = axis[coordinate // (rule.factors[factor].size // 2) == part]
        positions.append(axis)
    return np.ix_(*positions) if positions else ()


def test_look_up_by_data_keeps_the_table_whole() -> None:
    analysis = analyse(lambda table, ids: lambda b, d: table[ids[b], d], [(10, 4), (8,)], [(8, 4)])
    assert _kinds(analysis) == {"b": "map", "d": "map"}
    assert analysis.rule.linear == ((0,),)
    assert analysis.strategy("b").input_regions(0, 2) == (((0, 10), (0, 4)), ((0, 4),))


def test_opaque_functions_of_elements_are_split_freely() -> None:
    """Any rank: a star stands for all index variables."""
    analysis = analyse(lambda *xs: lambda *i: Opaque("gelu")(*(x[i] for x in xs)), [(4, 6)] * 2, [(4, 6)])
    assert str(analysis.rule) == "i0 i1, i0 i1 -> i0 i1"
    assert analysis.rule.linear == ()


def test_argument_of_an_opaque_function_may_be_written_as_a_function() -> None:
    """``m[b, :, :]`` is short for ``lambda r, c: m[b, r, c]`` (section 3.1)."""
    description = lambda m: lambda b, i: Opaque()(lambda r, c: m[b, r, c])[i]  # noqa: E731
    analysis = analyse(description, [(4, 3, 3)], [(4, 3)])
    assert _kinds(analysis) == {"b": "map"}


@pytest.mark.parametrize(
    "description, num_operands, linear",
    [
        (lambda a, b: lambda i: a[i] + b[i], 2, ((0, 1),)),
        (lambda a, b: lambda i: 2 * a[i] - b[i] / 3, 2, ((0, 1),)),
        (lambda a, b: lambda i: a[i] * b[i], 2, ((0,), (1,))),
        (lambda a, b: lambda i: a[i] / b[i], 2, ((0,),)),
        (lambda a, b: lambda i: a[i] + 1, 2, ()),
        (lambda a, b: lambda i: a[i] * a[i], 2, ()),
        (lambda a, b, c: lambda i: (a[i] + b[i]) * c[i], 3, ((2,), (0, 1))),
        (lambda a, b: lambda i: abs(a[i]), 2, ()),
        (lambda a, b: lambda i: padded(a)[i] + padded(b, 1)[i], 2, ()),
    ],
)
def test_linear_sets(description: Any, num_operands: int, linear: Any) -> None:
    assert analyse(description, [(4,)] * num_operands, [(4,)]).rule.linear == linear


@pytest.mark.parametrize(
    "description, in_shapes, out_shapes, family",
    [
        (
            lambda a, b: lambda i, j: Sum(lambda k: a[i, k] * b[k, j]),
            [(4, 6), (6, 2)],
            [(4, 2)],
            "contraction",
        ),
        (conv1d, *_CONV, "window"),
        (batch_cholesky, [(4, 3, 3)], [(4, 3, 3)], "opaque"),
        (lambda a: lambda i: Sum(lambda k: a[i, k]), [(4, 6)], [(4,)], "reduction"),
        (lambda a: lambda i, j: a[i, j] + 1, [(4, 6)], [(4, 6)], "elementwise"),
        (lambda a: lambda i, j: a[j, i], [(6, 4)], [(4, 6)], "shape"),
    ],
)
def test_family(description: Any, in_shapes: list, out_shapes: list, family: str) -> None:
    assert analyse(description, in_shapes, out_shapes).rule.family == family
