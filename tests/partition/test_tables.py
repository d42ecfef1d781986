"""Models that are mostly tables: whole tables and their gradients are there one at a time, and results are the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.audit import compile_plan
from jaxplan.audit._hlo_liveness import peak_temporaries
from jaxplan.audit._hlo_text import parse_module

NUM_TABLES, ROWS, WIDTH, BATCH = 6, 2**18, 32, 2048
TABLE_BYTES = 4 * ROWS * WIDTH


def _step(params: Any, batch: Any) -> tuple[Any, Any]:
    def loss_fn(params: Any) -> Any:
        rows = [table[batch["ids"][:, i]] for i, table in enumerate(params["tables"])]
        hidden = jnp.tanh(jnp.concatenate(rows, axis=1) @ params["dense"])
        return jnp.mean((hidden - batch["y"]) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def _arguments(rows: int, dtype: Any) -> tuple[Any, Any]:
    keys = iter(jax.random.split(jax.random.key(0), NUM_TABLES + 3))
    params = {
        "tables": [jax.random.normal(next(keys), (rows, WIDTH), dtype) for _ in range(NUM_TABLES)],
        "dense": jax.random.normal(next(keys), (NUM_TABLES * WIDTH, WIDTH), dtype),
    }
    ids = jax.random.randint(next(keys), (BATCH, NUM_TABLES), 0, rows)
    return params, {"ids": ids, "y": jax.random.normal(next(keys), (BATCH, WIDTH), dtype)}


@pytest.mark.gpu_aot
def test_tables_are_gathered_and_reduced_one_at_a_time() -> None:
    arguments = jax.eval_shape(lambda: _arguments(ROWS, jnp.float32))
    frontier = jaxplan.plan(_step, *arguments, topology="h100:8", donate_argnums=(0,))
    plan = frontier.references["zero2"]
    audit = plan.audit()
    assert audit.collectives_ok, audit.table()
    # Not all six tables at once, nor all of their gradients; shards of the gradients are there together.
    shards = NUM_TABLES * TABLE_BYTES / 8
    assert audit.compiled_memory_bytes < 2 * shards + 3 * TABLE_BYTES, audit.table()
    assert audit.memory_ok, audit.table()


@pytest.mark.slow
def test_results_are_those_of_one_device() -> None:
    """With tables that are large enough to take turns."""
    rows = 16384
    with jax.enable_x64(True):
        params, batch = _arguments(rows, jnp.float64)
        expected, expected_loss = jax.jit(_step)(params, batch)
        frontier = jaxplan.plan(_step, params, batch, topology="cpu:8", donate_argnums=())
        for name in ("zero2", "data"):
            found, loss = frontier.choose(name).jit()(params, batch)
            np.testing.assert_allclose(float(loss), float(expected_loss), rtol=1e-12)
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-12)


def test_a_table_that_is_read_twice_is_gathered_once() -> None:
    """By an encoder and a decoder: the second look-up does not wait for rows of the first."""

    def step(params: Any, batch: Any) -> tuple[Any, Any]:
        def loss_fn(params: Any) -> Any:
            rows = [params["table"].astype(jnp.bfloat16)[ids] for ids in batch["ids"]]
            hidden = jnp.tanh(rows[0] @ params["dense"]) * rows[1]
            return jnp.mean(hidden.astype(jnp.float32) ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    shape = jax.ShapeDtypeStruct
    params = {"table": shape((ROWS, WIDTH), jnp.float32), "dense": shape((WIDTH, WIDTH), jnp.bfloat16)}
    ids = (shape((BATCH,), jnp.int32), shape((BATCH,), jnp.int32))
    plan = jaxplan.plan(step, params, {"ids": ids}, topology="h100:8", progress=False).references["zero2"]
    program = plan.require_program().program
    table = next(t for t in program.inputs if program.tensors[t].shape == (ROWS, WIDTH))
    assert not any(table in guard.parameters for guard in plan.lowering.gather_guards)


def _normed_rows(params: Any, ids: Any) -> tuple[Any, Any]:
    """Rows of a table behind a norm and a wide perceptron; activations of the perceptron are the peak."""

    def loss_fn(params: Any) -> Any:
        x = params["table"].astype(jnp.bfloat16)[ids]
        squares = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
        h = (x * jax.lax.rsqrt(squares + 1e-6)).astype(jnp.bfloat16) * params["scale"].astype(jnp.bfloat16)
        h = x + jax.nn.gelu(h @ params["up"].astype(jnp.bfloat16)) @ params["down"].astype(jnp.bfloat16)
        return jnp.mean(jnp.square(h.astype(jnp.float32)))

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


@pytest.mark.gpu_aot
def test_a_gathered_table_is_dropped_behind_its_rows() -> None:
    """It was looked up again, in the norm's backward fusion, and kept until there."""
    rows, width, wide = 2**17, 64, 2048
    shapes = {"table": (rows, width), "scale": (width,), "up": (width, wide), "down": (wide, width)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    ids = jax.ShapeDtypeStruct((2**16,), jnp.int32)
    plan = jaxplan.plan(_normed_rows, params, ids, topology="h100:8", donate_argnums=(0,)).references["zero2"]
    report = compile_plan(plan)
    held = peak_temporaries(parse_module(report.hlo_text)).holdings
    assert any(f"{wide}]" in h.array for h in held)  # the peak is in the perceptron
    assert not any(f"[{rows},{width}]" in h.array for h in held), held
