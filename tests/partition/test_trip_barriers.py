"""Dots of a loop of the backward pass: near the peak they run in the order of the program."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from tests.partition.edited_plans import with_schedule
from tests.partition.scanned_steps import recomputed_layers
from tests.sampling import sampled


def perceptron(x: Any, p: Any) -> Any:
    return x + jnp.tanh(x @ p["up"]) @ p["down"]


def attention(x: Any, p: Any) -> Any:
    q, k, v = (jnp.einsum("bsd,dhk->bhsk", x, p[name]) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("bhqk,bhsk->bhqs", q, k) / 8, -1)
    return x + jnp.einsum("bhqs,bhsk,hkd->bqd", weights, v, p["out"])


def gated_pair(x: Any, p: Any) -> Any:
    """A loop inside of the body, over two halves of the gate."""
    halves = jnp.stack(jnp.split(p["up"], 2, -1))
    y, _ = jax.lax.scan(lambda y, w: (jnp.tanh(y + x @ w), None), jnp.zeros((*x.shape[:-1], halves.shape[-1])), halves)
    return x + y @ p["down"][: y.shape[-1]]


def shapes(block: Any, layers: int, width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    if block is attention:
        heads = hidden // 64
        inner = dict.fromkeys("qkv", (width, heads, 64))
        return {name: (layers, *shape) for name, shape in {**inner, "out": (heads, 64, width)}.items()}
    return {"up": (layers, width, hidden), "down": (layers, hidden, width)}


def arguments(block: Any, *, layers: int, width: int, hidden: int, x: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
    keys = iter(jax.random.split(jax.random.key(0), 8))
    of = shapes(block, layers, width, hidden).items()
    p = {name: jax.random.normal(next(keys), dims, dtype) / math.prod(dims[1:-1]) ** 0.5 for name, dims in of}
    return p, jax.random.normal(next(keys), x, dtype)


@pytest.mark.parametrize("backend", ["jit", "shard_map"])
@pytest.mark.parametrize("block", sampled([attention, perceptron, gated_pair]))
def test_steps_whose_dots_wait_equal_one_device(block: Any, backend: Any) -> None:
    with jax.enable_x64(True):
        args = arguments(block, layers=3, width=16, hidden=128, x=(16, 24, 16), dtype=jnp.float64)
        step = recomputed_layers(block)
        frontier = jaxplan.plan(step, *args, topology="cpu:8", donate_argnums=(), progress=False)
        plans = [frontier.references[name] for name in ("data", "zero2", "fsdp") if name in frontier.references]
        for plan in (frontier.leanest(), *plans):
            found, expected = plan.jit(backend=backend)(*args), jax.jit(step)(*args)
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-12)
        assert any(plan.lowering.schedule.trip_barriers for plan in plans) or block is gated_pair


@pytest.mark.slow
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
    ("block", "width", "hidden", "x", "dtype", "array"),
    [
        pytest.param(perceptron, 1024, 8192, (32768, 1024), jnp.float32, (4096, 8192), id="hidden"),
        pytest.param(attention, 256, 256, (16, 2048, 256), jnp.bfloat16, (2, 4, 2048, 2048), id="probabilities"),
    ],
)
def test_an_array_fewer_is_live_in_the_trip(
    block: Any, width: int, hidden: int, x: Any, dtype: Any, array: tuple[int, ...]
) -> None:
    """Without the barriers the compiler keeps an operand of a gradient beside values computed from it later; with them,
    at most two gradients of a layer's kernels are live there that were computed later before."""
    args = jax.eval_shape(lambda: arguments(block, layers=4, width=width, hidden=hidden, x=x, dtype=dtype))
    frontier = jaxplan.plan(recomputed_layers(block), *args, topology="h100:8", progress=False, verify=False)
    plan = frontier.references["zero2"]
    assert plan.lowering.schedule.trip_barriers
    audit, beside = plan.audit(), with_schedule(plan, trip_barriers=()).audit()
    itemsize = jnp.dtype(dtype).itemsize
    kernel = max(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(args[0])) * itemsize
    saved = math.prod(array) * itemsize - 2 * kernel
    assert beside.compiled_memory_bytes >= audit.compiled_memory_bytes + 0.9 * saved, beside.table()


def test_no_dot_waits_in_a_loop_over_micro_batches() -> None:
    """Its trips run both passes."""

    def step(p: Any, x: Any) -> tuple[Any, Any]:
        def loss(p: Any, x: Any) -> Any:
            return jnp.mean(perceptron(perceptron(x, p), p) ** 2)

        def accumulate(total: Any, x: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(p, x)), None

        total, _ = jax.lax.scan(accumulate, jax.tree.map(jnp.zeros_like, p), x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, total), None

    p, x = arguments(perceptron, layers=1, width=16, hidden=256, x=(4, 256, 16), dtype=jnp.float32)
    args = {name: w[0] for name, w in p.items()}, x
    plan = jaxplan.plan(step, *args, topology="cpu:8", donate_argnums=(), progress=False).references["data"]
    assert not plan.lowering.schedule.trip_barriers
