"""A strategy is the same of one model however it is written: time first, in micro-batches, scanned over its layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.quality._forms import Case, accumulations, floats, momentum, variants
from benchmarks.quality.references import Compiler, compare_forms, draw
from jaxplan import Plan

MIB = 2**20
LAYERS, WIDTH, TOKENS = 6, 512, 1024
LAYER_BYTES = 4 * 2 * WIDTH * 4 * WIDTH


def _layer(w: Any, x: jax.Array) -> jax.Array:
    return x + jax.nn.relu(x @ w["up"]) @ w["down"]


def _narrow_layer(w: Any, x: jax.Array) -> jax.Array:
    return _layer(jax.tree.map(lambda p: p.astype(jnp.bfloat16), w), x.astype(jnp.bfloat16)).astype(x.dtype)


def scanned(remat: bool, layer: Any = _layer) -> Case:
    layer = jax.checkpoint(layer) if remat else layer

    def loss(layers: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.lax.scan(lambda h, w: (layer(w, h), None), x, layers)[0] ** 2)

    stack = {"up": floats(LAYERS, WIDTH, 4 * WIDTH), "down": floats(LAYERS, 4 * WIDTH, WIDTH)}
    return momentum(loss), (stack, stack, floats(TOKENS, WIDTH))


def counts(plan: Plan, kind: str) -> dict[int, int]:
    """Bytes -> how many collectives of a kind, of those that are at least half a kernel."""
    found: dict[int, int] = {}
    for c in plan.prediction.collectives:
        if c.kind == kind and c.num_bytes >= LAYER_BYTES // 4:
            found[c.num_bytes] = found.get(c.num_bytes, 0) + c.count
    return found


@pytest.mark.parametrize("remat", [False, True])
def test_fsdp_of_a_stack_gathers_and_scatters_one_layer_in_each_trip(remat: bool) -> None:
    """Two kernels of each layer, gathered for each pass; nothing of the size of the stack is sent or held.

    On a device a trip has both kernels, and three gradients of one: two are handed on by the trip before, as in the
    compiled program, which takes 72.8 MiB with recomputed layers.
    """
    plan = draw(scanned(remat), "h100:8", ("fsdp",))["fsdp"]
    assert counts(plan, "all-gather") == {LAYER_BYTES // 2: 2 * 2 * LAYERS}
    assert counts(plan, "reduce-scatter") == {LAYER_BYTES // 2: 2 * LAYERS}
    stored = 2 * LAYERS * LAYER_BYTES // 8
    saved = LAYERS * 4 * TOKENS // 8 * WIDTH * (1 if remat else 6)
    copies = LAYER_BYTES * 2 + LAYER_BYTES // 2 * 3
    assert plan.memory_bytes < stored + saved + copies + 40 * MIB  # 32 MiB are the library's
    (up, down), *_ = [[leaf["up"], leaf["down"]] for leaf in plan.in_specs[:1]]
    assert up[0] is None and down[0] is None  # never the layers


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("strategy", ["zero1", "zero2", "fsdp"])
def test_gradients_that_a_trip_casts_are_scattered_in_it(strategy: str, remat: bool) -> None:
    """As they are computed, in 16 bits: two bytes an element."""
    plan = draw(scanned(remat, _narrow_layer), "h100:8", (strategy,))[strategy]
    assert counts(plan, "reduce-scatter") == {LAYER_BYTES // 4: 2 * LAYERS}
    assert counts(plan, "all-reduce") == {}


def test_zero2_gathers_a_stack_once_unless_its_layers_are_computed_again() -> None:
    kept = draw(scanned(False), "h100:8", ("zero2",))["zero2"]
    again = draw(scanned(True), "h100:8", ("zero2",))["zero2"]
    assert counts(kept, "all-gather") == {LAYERS * LAYER_BYTES // 2: 2}
    assert counts(again, "all-gather") == {LAYER_BYTES // 2: 2 * 2 * LAYERS}


@pytest.mark.parametrize("model", ["convolutions", "attention"])
def test_where_the_batch_stands_changes_nothing(model: str) -> None:
    for line in compare_forms(variants()[model], model, Compiler("h100:8", compiles=False)):
        assert line.ratios == (pytest.approx(1, rel=0.05), pytest.approx(1, rel=0.05)), line


@pytest.mark.parametrize("form", ["stacked", "reshape", "slices"])
def test_accumulation_splits_each_micro_batch_and_sums_once(form: str) -> None:
    def loss(p: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ p["up"]) @ p["down"]) ** 2)

    params = {"up": floats(WIDTH, 4 * WIDTH), "down": floats(4 * WIDTH, WIDTH)}
    case = accumulations(loss, params, 4, (4 * TOKENS, WIDTH))[form]
    plans = draw(case, "h100:8")
    assert counts(plans["data"], "all-reduce") == {LAYER_BYTES // 2: 2}
    for plan in plans.values():
        assert plan.summary.startswith("data 8")
        assert plan.prediction.flops == 2 * 4 * TOKENS * WIDTH * 4 * WIDTH * 5 / 8


def test_fsdp_of_micro_batches_gathers_for_each_pass_of_each() -> None:
    def loss(p: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ p["up"]) @ p["down"]) ** 2)

    params = {"up": floats(WIDTH, 4 * WIDTH), "down": floats(4 * WIDTH, WIDTH)}
    plan = draw(accumulations(loss, params, 4, (4 * TOKENS, WIDTH))["stacked"], "h100:8", ("fsdp",))["fsdp"]
    assert counts(plan, "all-gather") == {LAYER_BYTES // 2: 4 * 3}  # the first layer is not read backward


def test_frozen_weights_are_sharded_by_fsdp_and_megatron() -> None:
    """A low-rank update beside two kernels that are not trained."""

    def loss(p: Any, base: Any, x: jax.Array) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ base["up"] + (x @ p["a"]) @ p["b"]) @ base["down"]) ** 2)

    def step(p: Any, base: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda p, g: p - g, p, jax.grad(loss)(p, base, x))

    base = {"up": floats(WIDTH, 4 * WIDTH), "down": floats(4 * WIDTH, WIDTH)}
    adapter = {"a": floats(WIDTH, 64), "b": floats(64, 4 * WIDTH)}
    plans = draw((step, (adapter, base, floats(TOKENS, WIDTH))), "h100:8", ("data", "fsdp", "megatron"))
    held = {name: plan.memory_parts["parameters"] for name, plan in plans.items()}
    assert held["data"] == LAYER_BYTES + 4 * 64 * 5 * WIDTH
    assert held["fsdp"] == held["data"] // 8
    assert held["megatron"] < held["data"] / 4


SEQUENCES, LENGTH, HEADS, SIZE = 64, 512, 8, 64
CACHE_BYTES = 4 * SEQUENCES * LENGTH * HEADS * SIZE


def _decoding() -> Case:
    """A token of attention against caches that are state, with frozen parameters."""

    def step(cache: Any, at: jax.Array, params: Any, x: jax.Array) -> Any:
        query, key, value = ((x @ params[name]).reshape(-1, 1, HEADS, SIZE) for name in "qkv")
        keys, values = (
            jax.lax.dynamic_update_slice(cache[name], now, (0, at, 0, 0)) for name, now in (("k", key), ("v", value))
        )
        scores = jnp.where(jnp.arange(LENGTH) <= at, jnp.einsum("bqhd,bkhd->bhqk", query, keys), -1e9)
        out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values).reshape(-1, HEADS * SIZE)
        return {"k": keys, "v": values}, at + 1, out @ params["o"]

    width = HEADS * SIZE
    cache = {name: floats(SEQUENCES, LENGTH, HEADS, SIZE) for name in "kv"}
    params = {name: floats(width, width) for name in "qkvo"}
    return step, (cache, jax.ShapeDtypeStruct((), jnp.int32), params, floats(SEQUENCES, width))


@pytest.mark.parametrize("strategy", ["data", "zero2", "fsdp", "data4_tensor2", "data2_tensor4", "megatron"])
def test_caches_are_split_as_their_sequences_are(strategy: str) -> None:
    """By sequences or heads, over all devices in all strategies: a device keeps its eighth, and sends nothing of it."""
    plan = draw(_decoding(), "h100:8", (strategy,))[strategy]
    assert plan.memory_parts["optimizer state"] == 2 * CACHE_BYTES // 8
    assert max((c.num_bytes for c in plan.prediction.collectives), default=0) < CACHE_BYTES // 16
    batch, _, heads, _ = plan.in_specs[0]["k"]
    tensor = {"data4_tensor2": 1, "data2_tensor4": 2, "megatron": 3}.get(strategy, 0)
    assert [len([of] if isinstance(of, str) else of or ()) for of in (batch, heads)] == [3 - tensor, tensor]


def test_environments_are_split_as_the_batch_is() -> None:
    """State that each environment has, beside a policy that all have."""

    def step(params: Any, env: jax.Array, goal: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.mean((jnp.tanh(env @ params) - goal) ** 2)

        return params - jax.grad(loss)(params), env + jnp.tanh(env @ params)

    plan = draw((step, (floats(WIDTH, WIDTH), floats(TOKENS, WIDTH), floats(TOKENS, WIDTH))), "h100:8", ("data",))
    assert [spec[0] for spec in plan["data"].in_specs] == [None, *(("gpu0", "gpu1", "gpu2"),) * 2]
    assert counts(plan["data"], "all-gather") == {}
