"""Equations on devices' own pieces: put together again they equal the result of one device.

Every way of splitting factors that must run in a manual region over two or four devices is tried, alone and in pairs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxplan import RuleError
from jaxplan.ir import OperatorRule
from jaxplan.partition._local import run_local, runs_on_pieces
from tests.ir.rules import _more_cases
from tests.ir.rules._cases import Case
from tests.ir.rules._equations import applied, bind, rule_of, single_equation
from tests.partition import test_replay

_NAMES = ("a", "b")


def run_split(
    eqn: Any, rule: OperatorRule, operands: Sequence[Any], split: dict[int, tuple[str, ...]]
) -> list[np.ndarray]:
    """Run an equation in a manual region over a 2 x 2 mesh and put the results together."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), _NAMES)
    spec = lambda dims: PartitionSpec(*(_axes(dim, split) for dim in dims))  # noqa: E731
    out_shapes = [
        tuple(size // 2 ** len(_axes(dim, split) or ()) for size, dim in zip(var.aval.shape, dims))
        for var, dims in zip(eqn.outvars, rule.results)
    ]
    sums = tuple(n for f, names in split.items() if rule.factors[f].reducer == "sum" for n in names)

    def body(*pieces: Any) -> list[Any]:
        on_pieces = lambda params, xs: bind(eqn, params, xs)  # noqa: E731
        named = SimpleNamespace(name=eqn.primitive.name, params=eqn.params)
        results = run_local(named, rule, on_pieces, pieces, split, out_shapes)  # type: ignore[arg-type]
        return [lax.psum(result, sums) if sums else result for result in results]

    specs = tuple(map(spec, rule.operands)), list(map(spec, rule.results))
    found = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False))(
        *operands
    )
    return [np.asarray(result) for result in found]


def _axes(dim: Sequence[int], split: dict[int, tuple[str, ...]]) -> tuple[str, ...] | None:
    """A minor factor cannot be split, so the first one that is says it all."""
    return tuple(name for f in dim for name in split.get(f, ())) or None


def _splits(rule: OperatorRule) -> list[dict[int, tuple[str, ...]]]:
    """One factor over four devices, or two over two each, of those that major places let be split."""
    minor = {f for dims in (*rule.operands, *rule.results) for dim in dims for f in dim[1:]}
    free = [f for f in (*rule.factors_of_kind("map"), *rule.factors_of_kind("reduce")) if f not in minor]
    even = [f for f in free if rule.factors[f].size % 2 == 0]
    alone = [{f: _NAMES} for f in even if rule.factors[f].size % 4 == 0]
    pairs = [{f: ("a",), g: ("b",)} for f, g in itertools.permutations(even, 2)]
    return [split for split in (*alone, *pairs) if runs_on_pieces(rule, split)]


@functools.cache
def _manual_cases() -> list[Case]:
    """Cases of which some split runs in a manual region."""
    families = ("scatter", "gather", "reduce", "dot_general", "conv_general_dilated", "top_k", "igamma")
    others = ("triangular_solve", "tridiagonal_solve", "fft", "regularized_incomplete_beta", "scaled_dot", "ragged_dot")
    return [case for case in _more_cases.PARTS if case.primitive.startswith((*families, *others))]


@pytest.mark.sample(26)
@pytest.mark.parametrize("case", _manual_cases(), ids=str)
def test_pieces_put_together_are_the_whole(case: Case) -> None:
    operands = case.operands()
    fn = lambda *xs: case.fn(case.out_shapes, *xs)  # noqa: E731
    _check_all_splits(fn, case.primitive, operands)


def _check_all_splits(
    fn: Callable[..., Any], primitive: str, operands: Sequence[Any], least: int = 0
) -> None:
    eqn, operands, expected = applied(fn, primitive, *operands)
    rule = rule_of(eqn)
    splits = _splits(rule)
    assert len(splits) >= least
    for split in splits[: 1 if rule.family == "elementwise" else 4]:  # loops take long to compile
        for whole, result in zip(expected, run_split(eqn, rule, operands, split)):
            note = f"{ {rule.factor_name(f): n for f, n in split.items()} } of {rule}"
            np.testing.assert_allclose(result, whole, rtol=2e-5, atol=1e-5, err_msg=note)
            assert result.dtype == whole.dtype


_MODES = ["clip", "fill", "promise_in_bounds"]


def _indices(rng: np.random.Generator, mode: str, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Some of them outside, unless that is promised not to happen."""
    low, high = (0, size) if mode == "promise_in_bounds" else (-3, size + 4)
    return rng.integers(low, high, shape, dtype=np.int32)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
@pytest.mark.parametrize("mode", _MODES)
def test_rows_of_a_split_table(mode: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    table, ids = rng.integers(0, 9, (8, 4)).astype(dtype), _indices(rng, mode, (4, 6), 8)
    numbers = lax.GatherDimensionNumbers(offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,))
    fn = lambda t, i: lax.gather(t, i, numbers, (1, t.shape[1]), mode=mode)  # noqa: E731
    _check_all_splits(fn, "gather", [table, ids[..., None]], least=4)


@pytest.mark.parametrize("index_dtype", [np.uint8, np.uint32, np.int8, np.int32])
def test_rows_are_found_by_indices_of_any_type(index_dtype: Any) -> None:
    """A table of more rows than the smallest types can count, some of the indices outside of it."""
    rng = np.random.default_rng(4)
    table = rng.normal(size=(288, 2)).astype(np.float32)
    ids = rng.integers(0, np.iinfo(index_dtype).max // 2**24 * 2**23 + 120, (12, 1)).astype(index_dtype)
    ids[0] = np.iinfo(index_dtype).max
    numbers = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    for mode in ("clip", "fill"):
        fn = lambda t, i, mode=mode: lax.gather(t, i, numbers, (1, t.shape[1]), mode=mode)  # noqa: E731
        eqn, operands, (expected,) = applied(fn, "gather", table, ids)
        rule = rule_of(eqn)
        (found,) = run_split(eqn, rule, operands, {rule.indexed[0][0]: ("a", "b")})
        np.testing.assert_array_equal(found, expected, err_msg=mode)


@pytest.mark.parametrize("mode", _MODES)
def test_elements_of_a_table_split_along_two_indexed_dimensions(mode: str) -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(8, 4, 6)).astype(np.float32)
    ids = np.stack([_indices(rng, mode, (10,), 4), _indices(rng, mode, (10,), 8)], axis=1)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(0,), collapsed_slice_dims=(0, 1), start_index_map=(1, 0)
    )
    fn = lambda t, i: lax.gather(t, i, numbers, (1, 1, t.shape[2]), mode=mode)  # noqa: E731
    eqn = single_equation(fn, "gather", table, ids)
    rule = rule_of(eqn)
    assert {rule.factors[f].size for f, _ in rule.indexed} == {4, 8}
    (expected,) = jax.tree.leaves(jax.jit(fn)(table, ids))
    split = {f: (name,) for (f, _), name in zip(rule.indexed, _NAMES)}
    (found,) = run_split(eqn, rule, [table, ids], split)
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(found).any() == (mode == "fill")


@pytest.mark.sample(6)
@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("kind", [lax.scatter, lax.scatter_add, lax.scatter_mul, lax.scatter_max])
def test_updates_of_a_split_table(kind: Callable[..., Any], mode: str) -> None:
    rng = np.random.default_rng(2)
    table = rng.uniform(0.5, 1.5, (8, 4)).astype(np.float32)
    ids = _indices(rng, mode, (6, 1), 8)
    if kind is lax.scatter:  # which of several updates of one row wins is not said
        ids = rng.permutation(8).astype(np.int32)[:6, None] + (0 if mode != "fill" else 3)
    updates = rng.uniform(0.5, 1.5, (6, 4)).astype(np.float32)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    fn = lambda t, i, u: kind(t, i, u, numbers, mode=mode)  # noqa: E731
    primitive = jax.make_jaxpr(fn)(table, ids, updates).jaxpr.eqns[-1].primitive.name
    _check_all_splits(fn, primitive, [table, ids, updates], least=3)


def test_products_of_narrow_integers_stay_narrow() -> None:
    """With 64-bit types on, NumPy's product of 32-bit integers has 64 bits."""
    x = np.arange(1, 33, dtype=np.int32).reshape(8, 4)
    with jax.enable_x64(True):
        _check_all_splits(lambda x: lax.reduce_prod(x, (0,)), "reduce_prod", [x], least=1)


def test_parameters_that_hold_a_split_size_are_found_out() -> None:
    """An iota depends on its position, so nothing adapts the sizes of one to a piece."""
    eqn = single_equation(lambda x: x + lax.broadcasted_iota(jnp.int32, (4, 6), 1), "iota", jnp.ones((4, 6)))
    with pytest.raises(RuleError, match=r"(?s)'iota'.*\(4, 6\).*says \[\(2, 6\)\].*local_params"):
        run_split(eqn, rule_of(eqn), [], {0: ("a",)})


def test_plans_with_a_split_table_compute_the_same() -> None:
    """An embedding and its gradient, drawn plans: the rows over two, four and eight devices."""
    values, (expected_loss, expected_gradient) = test_replay._expected("embedding")
    seen: set[int] = set()
    for seed in range(100):
        plan = test_replay._draw("embedding", seed)
        num_parts = _num_parts_of_rows(plan)
        if num_parts == 1 or num_parts in seen:
            continue
        seen.add(num_parts)
        loss, gradient = plan.jit()(*values)
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-4)
    assert seen == {2, 4, 8}


def _num_parts_of_rows(plan: Any) -> int:
    """Into how many parts the configuration of the look-up splits the rows that its indices address."""
    graph = plan.require_program()
    eqn = next(e for e in graph.program.equations if e.name == "gather")
    ((factor, _),) = graph.rules[eqn.index].indexed
    group = graph.grouping.equation_group[eqn.index]
    axes = plan.configurations[group][graph.spaces[group].factor_class[eqn.index][factor]]
    return 2 ** len(axes)
