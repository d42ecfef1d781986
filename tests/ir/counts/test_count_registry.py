"""Registering counts: numbers, `jaxplan.Count`, names of callees, errors, and the note on operators without one."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

import jaxplan
from jaxplan import Count, RuleError
from jaxplan.cli._coverage import coverage
from jaxplan.ir import _count_registry, _registry, operator_count
from jaxplan.ir._count_registry import count_kind
from jaxplan.ir.rules import registered_primitives
from jaxplan.tdl import Opaque, Sum

N = 4096
X = jax.ShapeDtypeStruct((N, N), jnp.float32)


@pytest.fixture(autouse=True)
def _restore_registries() -> Iterator[None]:
    registered_primitives()
    count_kind("add")
    before = [dict(t) for t in (_registry._RULES, _registry._LOCAL_PARAMS, _count_registry._COUNTS)]
    yield
    tables = (_registry._RULES, _registry._LOCAL_PARAMS, _count_registry._COUNTS)
    for table, old in zip(tables, before):
        table.clear()
        table.update(old)
    _registry._MEMO.clear()
    _count_registry._MEMO.clear()


def _foreign(x: jax.Array) -> jax.Array:
    return jax.ffi.ffi_call("a_target", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def _plan(fn: Any = _foreign, *args: Any) -> jaxplan.Frontier:
    return jaxplan.plan(fn, *(args or (X,)), topology="h100:1", memory="1TiB", remat=False, progress=False)


def test_an_operator_without_a_count_is_named_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    def step(x: jax.Array) -> jax.Array:
        return jax.ffi.ffi_call("no_count", X)(x)  # here

    jaxplan.register_rule("ffi_call:no_count", lambda x: lambda i, j: Opaque("f")(x[i, :])[j])
    line = inspect.getsourcelines(step)[1] + 1
    with caplog.at_level(logging.WARNING, logger="jaxplan"):
        found = _plan(step)
    (said,) = caplog.messages
    assert f"test_count_registry.py:{line}" in said
    assert "'ffi_call:no_count' (1x" in said and "has no count" in said
    assert "jaxplan.register_count('ffi_call:no_count')" in said
    assert said in found.notes


def test_an_operator_without_a_rule_or_a_count_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="jaxplan"):
        _plan(lambda x: jax.ffi.ffi_call("neither", X)(x))
    (said,) = caplog.messages
    assert "has no rule and no count" in said


def test_a_number_is_flops_of_matrix_products() -> None:
    jaxplan.register_count("ffi_call:a_target")(lambda ins, outs, params: 2 * ins[0].shape[0] ** 3)
    found = _plan()
    assert not [note for note in found.notes if "no count" in note]
    assert 2 * N**3 / 494.7e12 <= found.fastest().compute_seconds <= 2 * 2 * N**3 / 494.7e12


def test_a_count_names_units_and_bytes() -> None:
    jaxplan.register_count("ffi_call:a_target")(lambda ins, outs, params: Count(moved=1e9))
    assert 1e9 / 3.352e12 <= _plan().fastest().compute_seconds <= 1.5e9 / 3.352e12
    jaxplan.register_count("ffi_call:a_target")(lambda ins, outs, params: Count(exact=(("float64", 1e12),)))
    assert _plan().fastest().compute_seconds >= 1e12 / 33.5e12


def test_counts_follow_the_parameters_of_the_call() -> None:
    jaxplan.register_count("ffi_call:a_target")(lambda ins, outs, params: dict(params["attributes"])["n"])
    call = lambda n: lambda x: jax.ffi.ffi_call("a_target", X)(x, n=np.int64(n))  # noqa: E731
    one, many = (_plan(call(n)).fastest().compute_seconds for n in (10**13, 10**14))
    assert many > 5 * one


@pytest.mark.parametrize("given", ["many", float("nan"), -1, {}])
def test_something_else_than_a_count_is_refused(given: Any) -> None:
    jaxplan.register_count("ffi_call:a_target")(lambda ins, outs, params: given)
    with pytest.raises(
        RuleError, match=r"(?s)count of primitive 'ffi_call' is .*number of FLOPs, or a jaxplan.Count"
    ):
        _plan()


@pytest.mark.parametrize(
    "amounts", [{"matrix": 5.0}, {"vector": (("float32", -1),)}, {"moved": float("inf")}]
)
def test_a_count_is_made_of_numbers(amounts: Any) -> None:
    with pytest.raises((RuleError, TypeError), match=r"Count\(|iterable"):
        Count(**amounts)


def test_a_decorator_without_a_name_is_refused() -> None:
    with pytest.raises(RuleError, match="write @register_count"):
        jaxplan.register_count(lambda ins, outs, params: 0)


def _own_primitive(name: str) -> Any:
    primitive = jax.extend.core.Primitive(name)
    compute = lambda a, b: jnp.tanh(a @ b)  # noqa: E731
    primitive.def_abstract_eval(lambda a, b: jax.core.ShapedArray(a.shape[:1] + b.shape[1:], a.dtype))
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=False))
    return primitive


@pytest.mark.parametrize(
    ("description", "operations"),
    [
        (lambda a, b: lambda i, j: Sum(lambda k: a[i, k] * b[k, j]), 2 * 8 * 6 * 10),
        (lambda a, b: lambda i, j: Sum(lambda k: a[i, k] * b[k, j] * b[k, j]), 3 * 8 * 6 * 10),
        (lambda a, b: lambda i, j: Sum(lambda k: 2 * a[i, k] * b[k, j]) + 1, 8 * 6 * (3 * 10 + 1)),
    ],
)
def test_a_description_spells_its_operations_out(description: Any, operations: int) -> None:
    name = f"described_{operations}"
    primitive = _own_primitive(name)
    jaxplan.register_rule(primitive, description)
    avals = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 10), (10, 6), (8, 6))]
    rule = _registry.operator_rule(name, avals[:2], avals[2:], {})
    count = operator_count(name, avals[:2], avals[2:], {}, rule)
    assert count is not None and count.flops == operations


def test_all_operators_of_jax_have_a_count() -> None:
    operators = [entry for entry in coverage() if entry.kind != "elsewhere"]
    assert len(operators) > 200
    assert not [entry.name for entry in operators if not entry.count]
    names = {entry.name for entry in operators}
    assert {
        "bcoo_dot_general",
        "eigh",
        "pallas_call",
        "scatter-add",
        "dot_product_attention_bwd",
        "rnn_fwd",
    } <= names
