"""Idioms beyond a stack of layers: dispatch to experts, ensembles under vmap, attention in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec

import jaxplan

TOKENS, WIDTH, HIDDEN, EXPERTS, CAPACITY = 64, 16, 32, 8, 16
BATCH, HEADS, LENGTH, HEAD_WIDTH, BLOCK = 8, 4, 16, 8, 4


def _normal(number: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(number).normal(size=shape) / 4, jnp.float32)


def _descent(loss_fn: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step of gradient descent."""

    def step(params: Any, *batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_fn)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

    return step


def _expert_params() -> dict[str, jax.Array]:
    return {
        "router": _normal(0, WIDTH, EXPERTS),
        "up": _normal(1, EXPERTS, WIDTH, HIDDEN),
        "down": _normal(2, EXPERTS, HIDDEN, WIDTH),
    }


def _by_einsum(params: Any, x: jax.Array) -> jax.Array:
    """Tokens reach experts by dots with one-hot rows (Shazeer et al., 2018, section 3)."""
    gates = jax.nn.softmax(x @ params["router"])
    chosen = jax.nn.one_hot(jnp.argmax(gates, axis=1), EXPERTS)
    place = jnp.cumsum(chosen, axis=0) * chosen - 1
    dispatch = jax.nn.one_hot(place.astype(jnp.int32), CAPACITY) * chosen[..., None]
    inputs = jnp.einsum("tec,td->ecd", dispatch, x)
    outputs = jnp.einsum(
        "ech,ehd->ecd", jax.nn.gelu(jnp.einsum("ecd,edh->ech", inputs, params["up"])), params["down"]
    )
    return jnp.mean((jnp.einsum("tec,ecd,te->td", dispatch, outputs, gates) - x) ** 2)


def _by_sorting(params: Any, x: jax.Array) -> jax.Array:
    """Tokens are sorted by their expert, go through ragged dots, and back."""
    gates = jax.nn.softmax(x @ params["router"])
    expert = jnp.argmax(gates, axis=1)
    order = jnp.argsort(expert)
    counts = jnp.bincount(expert, length=EXPERTS)
    hidden = jax.nn.gelu(jax.lax.ragged_dot(x[order], params["up"], counts))
    rows = jax.lax.ragged_dot(hidden, params["down"], counts)
    outputs = jnp.zeros_like(x).at[order].set(rows)
    return jnp.mean((outputs * jnp.max(gates, axis=1, keepdims=True) - x) ** 2)


def _perceptron(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - x) ** 2)


def _attention_kernel(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
    """A block of queries against all keys, with a running maximum and sum (Dao et al., 2022, algorithm 1)."""
    q = q_ref[0, 0]

    def one_block(i: jax.Array, carry: Any) -> Any:
        most, total, out = carry
        keys = k_ref[0, 0, pl.ds(i * BLOCK, BLOCK), :]
        scores = q @ keys.T / np.sqrt(HEAD_WIDTH).astype(np.float32)
        new = jnp.maximum(most, scores.max(axis=1, keepdims=True))
        weights, scale = jnp.exp(scores - new), jnp.exp(most - new)
        values = v_ref[0, 0, pl.ds(i * BLOCK, BLOCK), :]
        return new, total * scale + weights.sum(axis=1, keepdims=True), out * scale + weights @ values

    start = jnp.full((BLOCK, 1), -jnp.inf), jnp.zeros((BLOCK, 1)), jnp.zeros((BLOCK, HEAD_WIDTH))
    _, total, out = jax.lax.fori_loop(0, LENGTH // BLOCK, one_block, start)
    o_ref[0, 0] = out / total


@jax.custom_vjp
def _flash_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """[B, H, T, D], in one kernel; the backward pass computes the scores again."""
    queries = pl.BlockSpec((1, 1, BLOCK, HEAD_WIDTH), lambda b, h, i: (b, h, i, 0))
    whole = pl.BlockSpec((1, 1, LENGTH, HEAD_WIDTH), lambda b, h, i: (b, h, 0, 0))
    return pl.pallas_call(
        _attention_kernel,
        grid=(q.shape[0], q.shape[1], LENGTH // BLOCK),
        in_specs=[queries, whole, whole],
        out_specs=queries,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        interpret=True,
    )(q, k, v)


def _plain_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(HEAD_WIDTH)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)


_flash_attention.defvjp(
    lambda *qkv: (_flash_attention(*qkv), qkv), lambda qkv, g: jax.vjp(_plain_attention, *qkv)[1](g)
)


def _attending(params: Any, x: jax.Array) -> jax.Array:
    q, k, v = (jnp.einsum("btd,dhk->bhtk", x, params[name]) for name in "qkv")
    return jnp.mean((jnp.einsum("bhtk,hkd->btd", _flash_attention(q, k, v), params["out"]) - x) ** 2)


STEPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "experts by einsum": (_descent(_by_einsum), (_expert_params(), _normal(3, TOKENS, WIDTH))),
    "experts by sorting": (_descent(_by_sorting), (_expert_params(), _normal(3, TOKENS, WIDTH))),
    "an ensemble": (
        jax.vmap(_descent(_perceptron)),
        ({"up": _normal(4, 8, WIDTH, HIDDEN), "down": _normal(5, 8, HIDDEN, WIDTH)}, _normal(6, 8, TOKENS, WIDTH)),
    ),
    "attention in one kernel": (
        _descent(_attending),
        (
            {name: _normal(n, WIDTH, HEADS, HEAD_WIDTH) for n, name in enumerate("qkv", 7)}
            | {"out": _normal(10, HEADS, HEAD_WIDTH, WIDTH)},
            _normal(11, BATCH, LENGTH, WIDTH),
        ),
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", STEPS)
def test_plans_compute_what_the_step_does(name: str, caplog: pytest.LogCaptureFixture) -> None:
    step, args = STEPS[name]
    frontier = jaxplan.plan(step, *args, topology="cpu:8", progress=False, donate_argnums=())
    assert not frontier.points[0].require_program().unknown and "no rule" not in caplog.text
    expected = jax.jit(step)(*args)
    for plan in {id(p): p for p in (frontier.fastest(), frontier.choose("fsdp"))}.values():
        found = plan.jit()(*args)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6, err_msg=plan.name)


def test_members_of_an_ensemble_do_not_talk() -> None:
    """The dimension that vmap adds is one like any other: with a member on each device nothing is communicated."""
    step, _ = STEPS["an ensemble"]
    params = {
        "up": jax.ShapeDtypeStruct((8, 1024, 4096), jnp.float32),
        "down": jax.ShapeDtypeStruct((8, 4096, 1024), jnp.float32),
    }
    x = jax.ShapeDtypeStruct((8, 512, 1024), jnp.float32)
    plan = jaxplan.plan(step, params, x, topology="h100:8", progress=False).fastest()
    assert not plan.prediction.collectives
    assert plan.memory_parts["parameters"] == 2 * 4 * 1024 * 4096


def test_a_kernel_is_split_over_batch_and_heads() -> None:
    """Opaque inside, and still every dimension of its grid that is outside of the sum over keys may be split."""
    step, args = STEPS["attention in one kernel"]
    graph = jaxplan.plan(step, *args, topology="cpu:8", progress=False).points[0].require_program()
    (kernel,) = (e for e in graph.program.equations if e.name == "pallas_call")
    rule = graph.rules[kernel.index]
    assert [rule.factors[dim[0]].kind for dim in rule.results[0]][:2] == ["map", "map"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("backend", ["jit", "shard_map"])
@pytest.mark.parametrize("skew", [0.0, 50.0], ids=["spread", "one-expert"])
def test_experts_of_ragged_dots_are_split(backend: Any, skew: float) -> None:
    """Each device multiplies the rows of its own experts, also where all rows are those of one; weights stay apart."""
    params, x = _expert_params(), jnp.abs(_normal(3, TOKENS, WIDTH))
    params["router"] = params["router"].at[:, 1].add(skew)
    step = _descent(_by_sorting)
    frontier = jaxplan.plan(step, params, x, topology="cpu:4", progress=False, donate_argnums=())
    plan = frontier.choose("experts")
    for name in ("up", "down"):
        assert plan.in_specs[0][name] == PartitionSpec(("cpu0", "cpu1"), None, None)
    run = plan.jit(backend=backend)
    found, expected = run(params, x), jax.jit(step)(params, x)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
    program = run.lower(params, x).compile().as_text()
    assert "all-gather" not in program  # no device ever has the experts of another
