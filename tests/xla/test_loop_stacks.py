"""Stacks that one loop writes and another reads in other orders of dimensions: by hand, and compiled for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxplan
from benchmarks.accuracy._references import predict_references
from jaxplan import Plan
from jaxplan.ir import REGION_IN, REGION_OUT, StepGraph, analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Target, analyse_buffers
from jaxplan.xla.rules.gpu.transposed import OrderedCopy
from tests.partition.scanned_steps import recomputed_layers
from tests.sampling import sampled

LAYERS, BATCH, TOKENS, HEADS, WIDTH = 6, 16, 1024, 16, 32
QUERIES_BY_KEYS, KEYS_BY_QUERIES = ("bthk,bshk->bhts", "bhts,bshk->bthk"), ("btghk,bsgk->bghts", "bghts,bsgk->btghk")
KEYS_FIRST = "bshk,bthk->bhst", "bhst,bshk->bthk"


def _step(einsums: Sequence[str], groups: int) -> Callable[..., Any]:
    """Layers of attention in a loop, and their gradients; ``groups`` queries share a key, 0: no such dimension."""

    def layer(x: jax.Array, params: Any) -> Any:
        query, key, value, out = (w.astype(x.dtype) for w in params)
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, w) for w in (query, key, value))
        q = q.reshape(*q.shape[:2], HEADS // groups, groups, -1) if groups else q
        scores = jnp.einsum(einsums[0], *((k, q) if einsums == KEYS_FIRST else (q, k)))
        weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-2 if einsums == KEYS_FIRST else -1)
        y = jnp.einsum(einsums[1], weights.astype(x.dtype), v).reshape(*x.shape[:2], HEADS, -1)
        return x + jnp.einsum("bthk,hkd->btd", y, out), None

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.sum(lax.scan(layer, x, params)[0].astype(jnp.float32) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    return step


def _arguments(groups: int) -> tuple[Any, ...]:
    kv_heads = HEADS // max(groups, 1)
    shapes = [(WIDTH * HEADS, HEADS, WIDTH), *[(WIDTH * HEADS, kv_heads, WIDTH)] * 2, (HEADS, WIDTH, WIDTH * HEADS)]
    params = tuple(jax.ShapeDtypeStruct((LAYERS, *dims), jnp.float32) for dims in shapes)
    return params, jax.ShapeDtypeStruct((BATCH, TOKENS, WIDTH * HEADS), jnp.bfloat16)


def _copies_of_scores(graph: StepGraph, scattered: frozenset[int] = frozenset()) -> list[OrderedCopy]:
    found = analyse_buffers(graph, Target.of(Topology.parse("h100:8").chip)).found.of(OrderedCopy)
    stacks = {e.results[0] for e in graph.program.equations if e.name == REGION_OUT and e.params["role"] == "y"}
    slices = {e.results[0] for e in graph.program.equations if e.name == REGION_IN and e.params["role"] == "x"}
    tensors, trip = graph.program.tensors, BATCH * HEADS * TOKENS**2
    of_scores = [c for c in found if c.tensor in stacks | slices and tensors[c.tensor].num_elements >= trip]
    return [c for c in of_scores if c.is_there(lambda t: tensors[t].shape, True, scattered)]


@pytest.mark.parametrize(
    ("einsums", "groups", "copies"),
    [(QUERIES_BY_KEYS, 0, 0), (KEYS_FIRST, 0, 0), (KEYS_BY_QUERIES, 1, 2), (KEYS_BY_QUERIES, 2, 2)],
)
def test_a_stack_in_another_order_is_transposed_between_the_loops(
    einsums: Sequence[str], groups: int, copies: int
) -> None:
    """Scores in float32 and weights in bfloat16 are stacked; `einsum` computes grouped scores as keys times queries.
    A dot without groups writes its result in the order of the values that it meets."""
    graph = analyse(trace(_step(einsums, groups), _arguments(groups), {}))
    found = _copies_of_scores(graph)
    assert sorted(c.itemsize for c in found) == [2, 4][:copies]
    backward = graph.program.regions[1]
    assert all(backward.start <= c.first < c.last == backward.stop - 1 for c in found)


def test_a_first_trip_in_front_of_the_loop_transposes_a_slice_of_each() -> None:
    """That is so where the loop scatters a gradient that it stacks; no dot of scores or activations makes it so."""
    graph = analyse(trace(_step(KEYS_BY_QUERIES, 2), _arguments(2), {}))
    dots = [e.results[0] for e in graph.program.equations if e.name == "dot_general" and e.region == 1]
    tensors = graph.program.tensors
    gradients = frozenset(t for t in dots if TOKENS not in tensors[t].shape)
    assert len(gradients) == 4  # of the four kernels of a layer
    copied = sorted(tensors[c.tensor].num_bytes for c in _copies_of_scores(graph, gradients))
    scores = BATCH * HEADS * TOKENS**2
    assert copied == sorted([2 * scores, 4 * scores, 2 * LAYERS * scores, 4 * LAYERS * scores])
    assert len(_copies_of_scores(graph, frozenset(dots) - gradients)) == 2


def _perceptrons(layers: int, width: int, hidden: int, examples: int) -> Plan:
    """Recomputed layers in a loop, with `zero2`: gradients are scattered in each trip."""

    def layer(x: jax.Array, weights: Any) -> jax.Array:
        return x + jax.nn.silu(x @ weights[0]) @ weights[1]

    shapes = (layers, width, hidden), (layers, hidden, width), (examples, width)
    *params, x = (jax.ShapeDtypeStruct(dims, jnp.float32) for dims in shapes)
    step = recomputed_layers(layer)
    return jaxplan.plan(step, tuple(params), x, topology="h100:8", progress=False, verify=False).references["zero2"]


@pytest.mark.gpu_aot
def test_a_reduce_scatter_of_a_trip_runs_in_the_next() -> None:
    """So at the peak, where the gradient of the hidden layer is computed, three partial sums of the size of a kernel
    are live, and only one of them was computed in the trip."""
    width, hidden, examples = 1024, 8192, 65536
    plan = _perceptrons(4, width, hidden, examples)
    rule = "reduce-scatters-of-a-trip-run-in-the-next"
    found, without = (
        dict(predict_references(plan.graph, plan.topology, left_out))["zero2"].memory_bytes for left_out in ([], [rule])
    )
    kernel = 4 * width * hidden
    assert plan.memory_bytes == found == without + 3 * kernel
    audit = plan.audit()
    compiled = audit.compiled_memory_bytes  # with JAX 0.12 the first reduce-scatter ends before the peak
    assert 0.99 * (without + 2 * kernel) <= compiled <= 1.01 * plan.memory_bytes, audit.table()


@pytest.mark.slow
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
    ("einsums", "groups"),
    sampled([(KEYS_BY_QUERIES, 2), (KEYS_FIRST, 0), (QUERIES_BY_KEYS, 0), (KEYS_BY_QUERIES, 1)]),
)
@pytest.mark.parametrize("strategy", sampled(["fsdp", "data"]))
def test_both_orders_are_live_at_the_peak(einsums: Sequence[str], groups: int, strategy: str) -> None:
    """Without the copies grouped heads were a quarter low. Where gradients are scattered, the order of copies and first
    reads is not always the one that is predicted: 12 %."""
    frontier = jaxplan.plan(
        _step(einsums, groups), *_arguments(groups), topology="h100:8", donate_argnums=(0,), progress=False
    )
    audit = frontier.references[strategy].audit()
    within = 0.12 if strategy == "fsdp" else 0.05
    assert audit.predicted_memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=within)
