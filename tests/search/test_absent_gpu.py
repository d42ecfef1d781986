"""Every form of a step with fused attention is traced for GPUs that are not present."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from tests.ir.local_sorts.routed import WIDTH, parameters, sorted_back

LAYERS, BATCH, LENGTH, HEADS, SIZE = 2, 16, 128, 2, 64


def attend(w, x):
    heads = (x @ w).reshape(*x.shape[:2], HEADS, SIZE).astype(jnp.bfloat16)
    attended = jax.nn.dot_product_attention(heads, heads, heads, is_causal=True, implementation="cudnn")
    return x + attended.astype(jnp.float32).reshape(*x.shape[:2], -1) @ w.T


def step_of(loss):
    def step(params, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return step


def in_a_loop(params, x):
    return jnp.mean(jax.lax.scan(lambda x, w: (attend(w, x), None), x, params)[0] ** 2)


def with_experts(params, x):
    weights, experts = params
    x = attend(weights[0], x)
    return jnp.mean((x.reshape(-1, WIDTH) + sorted_back(experts, x.reshape(-1, WIDTH))) ** 2)


def floats(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.float32)


WEIGHTS, X = floats(LAYERS, WIDTH, HEADS * SIZE), floats(BATCH, LENGTH, WIDTH)


def plan(loss, params, **options):
    return jaxplan.plan(step_of(loss), params, X, topology="h100:8", progress=False, **options)


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [{"microbatches": 2}, {"remat": True}], ids=str)
def test_slices_of_the_batch_and_layers_that_are_recomputed(options):
    assert plan(in_a_loop, WEIGHTS, **options).points


def test_another_batch():
    assert plan(in_a_loop, WEIGHTS).what_if(batch=2 * BATCH).points


@pytest.mark.slow
def test_rows_sorted_in_blocks():
    frontier = plan(with_experts, (WEIGHTS, jax.eval_shape(parameters)))
    assert frontier.references["data"].sort_blocks is not None


def test_a_step_that_asks_nothing_about_gpus_is_traced_once_for_all_machines():
    traces = []

    def step(w, x):
        traces.append(None)
        return w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    traced = jaxplan.trace(step, jnp.ones((64, 64)), jnp.ones((64, 64)))
    for topology in ("h100:8", "a100:8", "v5e:2x4", "cpu:8"):
        traced.plan(topology=topology, progress=False)
    assert len(traces) == 1
