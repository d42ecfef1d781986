"""Primitives of other packages are inlined as the program that they are lowered to; others of their name are kept."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

import jaxplan
from jaxplan.ir import trace

SIZE = 16


def _primitive(name: str, package: str) -> Primitive:
    """A primitive as Equinox makes them: one function is its implementation and its lowering."""

    def implementation(x: Any) -> Any:
        return jnp.any(x > 1)

    implementation.__module__ = f"{package}._unvmap"
    primitive = Primitive(name)
    primitive.def_impl(implementation)
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray((), jnp.bool_))
    mlir.register_lowering(primitive, mlir.lower_fun(implementation, multiple_results=False))
    return primitive


def _step(primitive: Primitive) -> Any:
    return lambda x: x * jnp.where(primitive.bind(x), 2.0, 1.0)


def test_an_equinox_primitive_is_its_program() -> None:
    step = _step(_primitive("unvmap_any", "equinox"))
    program = trace(step, (jax.ShapeDtypeStruct((SIZE,), jnp.float32),))
    found = [e.name for e in program.equations]
    assert "unvmap_any" not in found
    assert {"gt", "reduce_or", "select_n", "mul"} <= set(found)


def test_somebody_elses_primitive_of_that_name_is_kept() -> None:
    step = _step(_primitive("unvmap_any", "somebody"))
    program = trace(step, (jax.ShapeDtypeStruct((SIZE,), jnp.float32),))
    assert "unvmap_any" in [e.name for e in program.equations]


@pytest.mark.parametrize("largest", [0.5, 3.0])
def test_split_result_equals_the_unsplit_one(largest: float) -> None:
    step = _step(_primitive("unvmap_any", "equinox"))
    value = np.linspace(0, largest, SIZE, dtype=np.float32)
    frontier = jaxplan.plan(step, value, topology="cpu:8", memory="1GiB", progress=False)
    assert not any("no rule" in note for note in frontier.notes)
    np.testing.assert_allclose(frontier.fastest().jit()(value), step(value))
