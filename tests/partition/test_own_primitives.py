"""Operators that jaxplan does not know: replicated with one warning, and split by five lines of description.

Their split results are compared with one device: an own primitive, a foreign function, a Pallas kernel, and one
with `custom_partitioning`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding

import jaxplan
from jaxplan.ir import StepGraph, _registry
from jaxplan.ir.rules import operator_rule, registered_primitives
from jaxplan.search._operator_notes import operator_notes
from jaxplan.search._traced import analyse_step
from jaxplan.tdl import Opaque, Sum
from tests.ir.rules._equations import rule_of, single_equation
from tests.partition.test_local import run_split


@pytest.fixture(autouse=True)
def _restore_registry() -> Iterator[None]:
    registered_primitives()
    before, local = dict(_registry._RULES), dict(_registry._LOCAL_PARAMS)
    yield
    _registry._RULES.clear()
    _registry._RULES.update(before)
    _registry._LOCAL_PARAMS.clear()
    _registry._LOCAL_PARAMS.update(local)
    _registry._MEMO.clear()


def _own_primitive(name: str) -> Primitive:
    """A "valid" correlation along the last dimension, as `conv1d` of the paper; lowered to ordinary operators."""
    primitive = Primitive(name)

    def compute(data: Any, filters: Any) -> Any:
        width = data.shape[2] - filters.shape[2] + 1
        windows = jnp.stack([data[:, :, d : d + width] for d in range(filters.shape[2])], axis=-1)
        return jnp.einsum("bcxd,cod->box", windows, filters)

    primitive.def_impl(compute)
    primitive.def_abstract_eval(
        lambda a, b: jax.core.ShapedArray(jax.eval_shape(compute, a, b).shape, a.dtype)
    )
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=False))
    return primitive


def _conv1d(data: Any, filters: Any) -> Any:
    return lambda b, co, x: Sum(lambda ci, dx: data[b, ci, x + dx] * filters[ci, co, dx])


def _arguments() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(8, 8, 10)).astype(np.float32), rng.normal(size=(8, 16, 3)).astype(np.float32)


def _graph(step: Any, *args: Any) -> StepGraph:
    return analyse_step(step, args, {}, donate_argnums=(), static_argnums=())


def test_unknown_primitive_runs_replicated_and_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    primitive = _own_primitive("unknown_conv")

    def step(data: Any, filters: Any) -> Any:
        return jnp.tanh(primitive.bind(data, filters)) + primitive.bind(data, filters)

    plan = jaxplan.plan(step, *_arguments(), topology="cpu:8").fastest()
    ours = [record.getMessage() for record in caplog.records if "unknown_conv" in record.getMessage()]
    assert len(ours) == 1
    assert "test_own_primitives.py" in ours[0] and "register_rule" in ours[0]
    np.testing.assert_allclose(plan.jit()(*_arguments()), step(*_arguments()), rtol=1e-5, atol=1e-5)


def test_five_lines_split_an_own_primitive(caplog: pytest.LogCaptureFixture) -> None:
    primitive = _own_primitive("described_conv")
    jaxplan.register_rule(primitive, _conv1d)
    step = lambda data, filters: jnp.tanh(primitive.bind(data, filters))  # noqa: E731
    data, filters = _arguments()
    frontier = jaxplan.plan(step, data, filters, topology="cpu:8")
    assert not caplog.records
    for plan in frontier.points:
        np.testing.assert_allclose(plan.jit()(data, filters), step(data, filters), rtol=1e-5, atol=1e-5)
    split = {axis for sharding in frontier.fastest().input_shardings for dim in sharding.dims for axis in dim}
    assert split
    graph = _graph(step, data, filters)
    assert not graph.unknown and graph.rules[0].manual
    assert [cls.sizes for cls in graph.spaces[0].classes] == [(8,), (16,), (8,)]  # b, co, ci


def test_every_split_of_an_own_primitive_is_right() -> None:
    primitive = _own_primitive("tried_conv")
    jaxplan.register_rule(primitive, _conv1d)
    data, filters = _arguments()
    eqn = single_equation(lambda a, b: primitive.bind(a, b), "tried_conv", data, filters)
    rule = rule_of(eqn)
    expected = primitive.bind(data, filters)
    for split in (
        {0: ("a", "b")},
        {0: ("a",), 1: ("b",)},
        {1: ("b", "a")},
        {3: ("a", "b")},
        {3: ("a",), 0: ("b",)},
    ):
        (found,) = run_split(eqn, rule, [data, filters], split)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=str(split))


def test_description_that_does_not_fit_is_named_at_first_use() -> None:
    primitive = _own_primitive("wrong_conv")
    jaxplan.register_rule(
        primitive, lambda data, filters: lambda b, co, x: Sum(lambda k: data[b, k, x] * filters[k, co, x])
    )
    with pytest.raises(jaxplan.RuleError) as caught:
        jaxplan.plan(lambda a, b: primitive.bind(a, b), *_arguments(), topology="cpu:8")
    text = str(caught.value)
    for part in (
        "'wrong_conv'",
        "index x ranges over 8",
        "over 10 in dimension 2 of data",
        "float32[8,8,10]",
    ):
        assert part in text
    assert "test_own_primitives.py" in text


def test_description_must_be_a_function() -> None:
    with pytest.raises(jaxplan.RuleError, match="expected a function of operands"):
        jaxplan.register_rule("some_primitive", 3)


def _softmax_rows(x: Any) -> Any:
    return jax.ffi.ffi_call("rows_softmax", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_foreign_function_is_described_by_its_target() -> None:
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    eqn = single_equation(_softmax_rows, "ffi_call", x)
    assert rule_of(eqn).family == "unknown"
    (note,) = operator_notes(_graph(_softmax_rows, x))
    assert "register_rule('ffi_call:rows_softmax'" in note and "test_own_primitives.py" in note
    jaxplan.register_rule("ffi_call:rows_softmax", lambda x: lambda i, j: Opaque()(x[i, :])[j])
    rule = rule_of(eqn)
    assert str(rule) == "i w -> i j {j: whole, w: whole}" and rule.manual
    params = _registry.local_params("ffi_call", eqn.params, [(2, 16)], [(2, 16)])
    assert [aval.shape for aval in params["result_avals"]] == [(2, 16)]


def _kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2 + y_ref[...]


def _pallas(kernel: Any, x_map: Any, y_map: Any, out_map: Any, **options: Any) -> Any:
    """x: (8, 16) and y: (2, 16) in blocks of (2, 4), on a grid of 4 x 4."""
    return lambda x, y: pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 16), jnp.float32),
        grid=(4, 4),
        in_specs=[pl.BlockSpec((2, 4), x_map), pl.BlockSpec((2, 4), y_map)],
        out_specs=pl.BlockSpec((2, 4), out_map),
        interpret=True,
        **options,
    )(x, y)


_IJ, _0J = (lambda i, j: (i, j)), (lambda i, j: (0, j))


def _kernel_operands() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(8, 16)).astype(np.float32), rng.normal(size=(2, 16)).astype(np.float32)


def test_pallas_kernel_is_split_along_its_grid() -> None:
    call, operands = _pallas(_kernel, _IJ, _0J, _IJ), _kernel_operands()
    eqn = single_equation(call, "pallas_call", *operands)
    rule = rule_of(eqn)
    grid = {rule.factor_name(f): f for f in rule.factors_of_kind("map")}
    assert {name: rule.factors[f].size for name, f in grid.items()} == {"g0": 4, "g1": 4}
    for split in (
        {grid["g0"]: ("a", "b")},
        {grid["g1"]: ("a", "b")},
        {grid["g0"]: ("b",), grid["g1"]: ("a",)},
    ):
        (found,) = run_split(eqn, rule, operands, split)
        np.testing.assert_allclose(found, call(*operands), rtol=1e-6)


def test_planned_pallas_kernel_computes_the_same() -> None:
    call, operands = _pallas(_kernel, _IJ, _0J, _IJ), _kernel_operands()
    step = lambda x, y: jnp.sin(call(jnp.cos(x), y))  # noqa: E731
    frontier = jaxplan.plan(step, *operands, topology="cpu:4")
    assert not frontier.fastest().require_program().unknown
    for plan in frontier.points:
        np.testing.assert_allclose(plan.jit()(*operands), step(*operands), rtol=1e-5)


def _asks_position(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * pl.program_id(0) + y_ref[...]


@pytest.mark.parametrize(
    "kernel, x_map, y_map, out_map, expected",
    [
        (_asks_position, _IJ, _0J, _IJ, {"g1"}),
        (_kernel, lambda i, j: (3 - i, j), _0J, _IJ, {"g1"}),  # the other way round
        (_kernel, lambda i, j: (i, j // 2), _0J, _IJ, {"g0"}),  # not affine
        (_kernel, lambda i, j: (i * j // 4, j), _0J, _IJ, set()),
        (_kernel, lambda i, j: (j, i), _0J, _IJ, {"g0", "g1"}),  # transposed
        (_kernel, _IJ, _0J, lambda i, j: (i, 0), {"g0"}),  # a block that is written again and again
    ],
)
def test_grid_dimensions_that_are_not_split(
    kernel: Any, x_map: Any, y_map: Any, out_map: Any, expected: set[str]
) -> None:
    eqn = single_equation(_pallas(kernel, x_map, y_map, out_map), "pallas_call", *_kernel_operands())
    rule = rule_of(eqn)
    assert {rule.factor_name(f) for f in rule.factors_of_kind("map")} == expected, rule


def test_kernel_with_scratch_memory_is_split_only_where_it_says_parallel() -> None:
    def kernel(x_ref: Any, y_ref: Any, out_ref: Any, scratch_ref: Any) -> None:
        scratch_ref[...] = x_ref[...]
        out_ref[...] = scratch_ref[...] + y_ref[...]

    call = _pallas(
        kernel,
        _IJ,
        _0J,
        _IJ,
        scratch_shapes=[pl.MemoryRef(jax.core.ShapedArray((2, 4), jnp.float32), pl.ANY)],
    )
    eqn = single_equation(call, "pallas_call", *_kernel_operands())
    assert not rule_of(eqn).factors_of_kind("map")


@custom_partitioning
def _row_norms(x: Any) -> Any:
    return x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))


_row_norms.def_partition(
    partition=lambda mesh, args, result: (
        mesh,
        lambda x: x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True)),
        NamedSharding(mesh, result.sharding.spec),
        (NamedSharding(mesh, args[0].sharding.spec),),
    ),
    infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
    sharding_rule="... i -> ... i",
    need_replication_factors=("i",),
)


def test_custom_partitioning_brings_its_rule() -> None:
    x = np.random.default_rng(2).normal(size=(8, 4, 16)).astype(np.float32)
    eqn = single_equation(_row_norms, "custom_partitioning", x)
    rule = rule_of(eqn)
    assert [rule.factors[f].kind for (f,) in rule.operands[0]] == ["map", "map", "whole"]
    assert rule.operands == rule.results
    frontier = jaxplan.plan(lambda x: jnp.tanh(_row_norms(jnp.sin(x))), x, topology="cpu:8")
    found = frontier.fastest().jit()(x)
    np.testing.assert_allclose(found, np.tanh(_row_norms(np.sin(x))), rtol=1e-5)


def test_named_rules_do_not_reach_other_callees() -> None:
    jaxplan.register_rule("ffi_call:rows_softmax", lambda x: lambda i, j: Opaque()(x[i, :])[j])
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    rule = operator_rule("ffi_call", [x], [x], {"target_name": "something_else"})
    assert not rule.factors_of_kind("map")
