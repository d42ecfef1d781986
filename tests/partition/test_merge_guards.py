"""Queries, keys and values of attention are three dots, so that each dies where it is no longer needed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from tests.partition.edited_plans import with_lowering
from tests.sampling import sampled
from tests.versions import IS_0_12

MIB = 2**20
NUM_LAYERS, HEADS, HEAD_WIDTH, LENGTH = 3, 8, 64, 256
WIDTH = HEADS * HEAD_WIDTH


def _step(layers: Any, x: Any) -> Any:
    """Attention as Flax writes it: biases, scaled queries, values in an order of their own."""

    def loss_fn(layers: Any) -> Any:
        h = x
        for layer in layers:
            projected = {name: jnp.einsum("bsd,dhk->bshk", h, layer[name]) for name in "qkv"}
            q, k, v = (projected[name] + layer["bias_" + name] for name in "qkv")
            scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q / HEAD_WIDTH**0.5, k))
            h = h + jnp.einsum("bhqk,bkhd,hde->bqe", scores, v, layer["out"])
        return jnp.mean(h.astype(jnp.float32) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), layers, jax.grad(loss_fn)(layers))


def _plan(batch_size: int, name: str = "data") -> jaxplan.Plan:
    kernel = jax.ShapeDtypeStruct((WIDTH, HEADS, HEAD_WIDTH), jnp.bfloat16)
    layer: dict[str, Any] = dict.fromkeys("qkv", kernel)
    layer |= {f"bias_{name}": jax.ShapeDtypeStruct((HEADS, HEAD_WIDTH), jnp.bfloat16) for name in "qkv"}
    layer["out"] = jax.ShapeDtypeStruct((HEADS, HEAD_WIDTH, WIDTH), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((batch_size, LENGTH, WIDTH), jnp.bfloat16)
    frontier = jaxplan.plan(_step, [layer] * NUM_LAYERS, x, topology="h100:8", progress=False)
    return frontier.references[name]


@pytest.mark.parametrize(("batch_size", "name"), sampled([(512, "megatron"), (64, "data")]))
def test_three_dots_of_an_operand_are_kept_apart(batch_size: int, name: str) -> None:
    """However large their shared operand is: 128 MiB under Megatron, where a device has one head."""
    plan = _plan(batch_size, name)
    program, guards = plan.require_program().program, plan.lowering.merge_guards
    dots = [program.equations[guard.equation] for guard in guards]
    assert len(dots) == 3 * NUM_LAYERS
    assert len({guard.shared for guard in guards}) == NUM_LAYERS
    assert all(eqn.phase != "backward" for eqn in dots)
    assert all(program.tensors[eqn.results[0]].shape[-2:] == (HEADS, HEAD_WIDTH) for eqn in dots)


def test_large_dots_are_left_to_the_compiler() -> None:
    """1,024 sequences a device: 256 MiB of operand and as much of result, which it would not merge."""
    assert not _plan(8192).lowering.merge_guards


@pytest.mark.slow
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
    ("batch_size", "name", "result"), sampled([(128, "data", 4 * MIB), (512, "megatron", 16 * MIB)])
)
def test_merged_dots_take_more_memory(
    batch_size: int, name: str, result: int
) -> None:
    """A result is 16 x 256 x 512 of two bytes on each device, or 512 x 256 x 64; merged ones are three times that.

    Compilers from JAX 0.12 on split the merged results of the first case at once, into copies in the layouts that the
    backward pass reads: that of one layer is held, not those of all.
    """
    plan = _plan(batch_size, name)
    apart = plan.audit()
    assert apart.compiled_memory_bytes < 1.05 * plan.memory_bytes, apart.table()
    merged = with_lowering(plan, merge_guards=()).audit()
    layers = 1 if IS_0_12 and name == "data" else NUM_LAYERS - 1
    least = apart.compiled_memory_bytes + layers * result
    assert merged.compiled_memory_bytes >= least, merged.table()


def test_a_dot_that_shares_both_operands_reads_each_as_its_own() -> None:
    """The first dot has its rows in common with the second, its weight with the third."""

    def step(w: dict[str, jax.Array], x: jax.Array, z: jax.Array) -> Any:
        def loss(w: dict[str, jax.Array]) -> jax.Array:
            one, two, three = x @ w["a"], x @ w["b"], z @ w["a"]
            return jnp.mean(jnp.tanh(one) * two + jnp.sin(three) * one)

        value, grads = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value

    a, b, x, z = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(8, 16)] * 2 + [(24, 8)] * 2))
    arguments = {"a": a, "b": b}, x, z
    expected = jax.tree.leaves(jax.jit(step)(*arguments))
    frontier = jaxplan.plan(step, *arguments, topology="h100:4", progress=False)
    plans = [*frontier, *frontier.references.values()]
    assert any(len(guard.shared) == 2 for plan in plans for guard in plan.lowering.merge_guards)
    for plan in plans:
        found = jax.tree.leaves(plan.jit(donate_argnums=())(*arguments))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
