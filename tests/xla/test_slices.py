"""Buffers of associative scans on TPUs; expectations are those of compiled programs."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from jaxplan.ir import StepGraph, analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Target, analyse_buffers

B, T, D = 4, 16, 8


def _after(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    return first[0] * second[0], second[0] * first[1] + second[1]


def _scan() -> StepGraph:
    def step(decay: jax.Array, added: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(decay: jax.Array, added: jax.Array) -> jax.Array:
            _, states = jax.lax.associative_scan(_after, (jnp.exp(decay), jnp.sin(added)), axis=1)
            return jnp.square(states).sum()

        return jax.grad(loss, argnums=(0, 1))(decay, added)

    return analyse(trace(step, [jax.ShapeDtypeStruct((B, T, D), jnp.float32)] * 2, {}))


def _saved(graph: StepGraph, topology: str) -> Counter[tuple[int, str]]:
    """Steps and operators of values that are saved for the backward pass."""
    buffers = analyse_buffers(graph, Target.of(Topology.parse(topology).chip))
    tensors, equations = graph.program.tensors, graph.program.equations
    large = [t for t in buffers.saved if len(tensors[t].shape) == 3 and tensors[t].shape[1] > 2]
    return Counter((tensors[t].shape[1], equations[graph.values.producer[t]].name) for t in large)


def test_every_level_of_a_scan_saves_what_it_combines_and_both_halves_of_its_result() -> None:
    """A compiled Mamba held, of 256 steps: decays and summands; of each level below, two dots of pairs and two
    arrays that are padded between their elements, and no slices."""
    saved = _saved(_scan(), "v5e:2x4")
    assert saved[T, "exp"] == saved[T, "sin"] == 1
    for steps in (T // 2, T // 4):
        assert saved[steps, "mul"] + saved[steps, "add"] == 2, saved
        assert saved[steps, "pad"] == 2, saved
    assert not any(name == "slice" for _, name in saved)


def test_slices_are_saved_on_gpus_as_they_are_read() -> None:
    assert any(name == "slice" for _, name in _saved(_scan(), "h100:8"))


@pytest.mark.parametrize(("part", "steps"), [(slice(0, T - 1), {T}), (slice(0, 4), {4})])
def test_a_slice_is_not_saved_beside_nearly_the_same(part: slice, steps: set[int]) -> None:
    """A value of which all tokens but one are read again is kept as it is; of four tokens, those."""

    def step(x: jax.Array, w: jax.Array, head: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(w: jax.Array, head: jax.Array) -> jax.Array:
            tokens = x @ w
            return jnp.square(tokens[:, part] @ head).sum()

        return jax.grad(loss, argnums=(0, 1))(w, head)

    shapes = ((B, T, D), (D, D), (D, 2))
    graph = analyse(trace(step, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes], {}))
    buffers = analyse_buffers(graph, Target.of(Topology.parse("v5e:2x4").chip))
    tensors = graph.program.tensors
    assert {tensors[t].shape[1] for t in buffers.saved if tensors[t].shape[2:] == (D,)} == steps
