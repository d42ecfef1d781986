"""Keys that are cut out of one dot with queries and values, and padded, are written by themselves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from tests.partition.edited_plans import with_lowering

MIB = 2**20
NUM_LAYERS, HEADS, HEAD_WIDTH, WINDOWS = 3, 3, 32, 64
WIDTH = HEADS * HEAD_WIDTH


def _step(layers: Any, x: Any) -> Any:
    """Attention in windows with one dot for queries, keys and values."""

    def loss_fn(layers: Any) -> Any:
        h = x
        for layer in layers:
            qkv = jnp.einsum("bwsd,dchk->bwschk", h, layer["qkv"]) + layer["bias"]
            q, k, v = jnp.moveaxis(qkv, 3, 0)
            scores = jax.nn.softmax(jnp.einsum("bwqhd,bwkhd->bwhqk", q, k) * HEAD_WIDTH**-0.5)
            h = h + jnp.einsum("bwhqk,bwkhd,hde->bwqe", scores, v, layer["out"])
        return jnp.mean(h.astype(jnp.float32) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), layers, jax.grad(loss_fn)(layers))


def _plan(topology: str, tokens: int, batch_size: int = 512) -> jaxplan.Plan:
    layer = {
        "qkv": jax.ShapeDtypeStruct((WIDTH, 3, HEADS, HEAD_WIDTH), jnp.bfloat16),
        "bias": jax.ShapeDtypeStruct((3, HEADS, HEAD_WIDTH), jnp.bfloat16),
        "out": jax.ShapeDtypeStruct((HEADS, HEAD_WIDTH, WIDTH), jnp.bfloat16),
    }
    x = jax.ShapeDtypeStruct((batch_size, WINDOWS, tokens, WIDTH), jnp.bfloat16)
    frontier = jaxplan.plan(_step, [layer] * NUM_LAYERS, x, topology=topology, progress=False)
    return frontier.references["data"]


def test_the_keys_alone() -> None:
    """Scores read them with the contracted dimension as rows, the gradient of the queries with that as columns."""
    plan = _plan("h100:8", tokens=49)
    program, written = plan.require_program().program, plan.lowering.written
    forward = [e for e in program.equations if e.name == "dot_general" and e.phase != "backward"]
    keys = {e.operands[1] for e in forward if e.params["dimension_numbers"][0] == ((4,), (4,))}
    assert len(keys) == NUM_LAYERS
    assert {t for e in written for t in program.equations[e].results} >= keys
    assert len(written) == NUM_LAYERS


@pytest.mark.parametrize(("topology", "tokens"), [("h100:8", 48), ("v5e:2x4", 49), ("k80:8", 49)])
def test_where_nothing_is_padded_nothing_is_written(topology: str, tokens: int) -> None:
    """48 tokens fill the library's matrices; TPUs have none; tensor cores, which the padding is for, a K80 neither."""
    assert not _plan(topology, tokens).lowering.written


@pytest.mark.slow
@pytest.mark.gpu_aot
def test_left_alone_the_compiler_keeps_what_the_keys_were_cut_out_of() -> None:
    """64 x 64 windows of 49 tokens a device: 110 MiB of queries, keys and values, and 37 of keys instead.

    All layers wait but the last, which comes first in the backward pass, with theirs.
    """
    plan = _plan("h100:8", tokens=49)
    apart = plan.audit()
    assert 0.95 * apart.compiled_memory_bytes < plan.memory_bytes < 1.08 * apart.compiled_memory_bytes, apart.table()
    left = with_lowering(plan, written=frozenset()).audit()
    assert left.compiled_memory_bytes >= apart.compiled_memory_bytes + (NUM_LAYERS - 1) * 60 * MIB, left.table()
