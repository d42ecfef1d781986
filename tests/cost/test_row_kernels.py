"""Kernels that hold rows, and kernels at the end of a trip: priced as the profiler of an H200 measured them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxplan
from benchmarks.calibration._again import seconds_by_kind
from benchmarks.calibration._record import Step, read_records
from jaxplan.cost import build_cost_model
from jaxplan.cost._row_kernels import row_factors
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"
H200 = Topology.parse("h200:1")
BATCH, HEADS, LENGTH, WIDTH = 2, 4, 256, 64


def attention(q: jax.Array, k: jax.Array, v: jax.Array, softmax: Callable[..., jax.Array]) -> jax.Array:
    weights = softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def by_hand(scores: jax.Array) -> jax.Array:
    exponentials = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    return exponentials / exponentials.sum(-1, keepdims=True)


def factors(step: Callable[..., Any], *args: Any, topology: Topology = H200) -> dict[tuple[str, tuple[int, ...]], int]:
    """How many arrays of each shape are read or written by kernels of rows that are slower than 1.3 streaming ones."""
    graph = analyse_step(step, args, {}, donate_argnums=(), static_argnums=())
    model = build_cost_model(graph, topology)
    found: dict[tuple[str, tuple[int, ...]], int] = {}
    for (kind, t), factor in row_factors(graph, model.buffers, topology.chip.efficiency).items():
        if factor > 1.3 or kind == "write":
            key = kind, graph.program.tensors[t].shape
            found[key] = found.get(key, 0) + 1
    return found


@pytest.mark.parametrize("softmax", [jax.nn.softmax, by_hand])
def test_scores_and_their_gradient_are_rows(softmax: Callable[..., jax.Array]) -> None:
    """Scores are read, weights written; in the backward pass two arrays of that size are read and one is written."""
    args = [jax.ShapeDtypeStruct((BATCH, LENGTH, HEADS, WIDTH), jnp.bfloat16)] * 3

    def loss(*args: jax.Array) -> jax.Array:
        return jnp.sum(attention(*args, softmax).astype(jnp.float32) ** 2)

    scores = (BATCH, HEADS, LENGTH, LENGTH)
    found = factors(jax.grad(loss, (0, 1, 2)), *args)
    assert found == {("forward", scores): 1, ("write", scores): 2, ("backward", scores): 2}
    assert factors(jax.grad(loss, (0, 1, 2)), *args, topology=Topology.parse("v5e:1")) == {}


def test_norms_and_sums_are_no_softmax() -> None:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        x = x @ w
        x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
        return jnp.sum(jnp.exp(x @ w))

    args = jax.ShapeDtypeStruct((512, 256), jnp.float32), jax.ShapeDtypeStruct((256, 256), jnp.float32)
    assert factors(jax.grad(loss, 1), *args) == {}


def test_arrays_that_leave_a_trip_are_copied_by_kernels_of_their_own() -> None:
    """Four kernels a trip: a dot, a sum, the stack and the carry. Small ones of an LSTM take 1.3 us on an H200."""

    def seconds(trips: int) -> float:
        def step(w: jax.Array, x: jax.Array) -> jax.Array:
            return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum(0)), x[0], x)[1].sum()

        args = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((trips, 8, 64), jnp.float32)
        return jaxplan.plan(step, *args, topology=H200, progress=False).fastest().compute_seconds

    assert seconds(512) - seconds(256) == pytest.approx(4 * 256 * 1.3e-6, rel=0.25)


@pytest.mark.slow
def test_kinds_of_kernels_take_the_seconds_that_were_measured() -> None:
    """Dots and passes by themselves: models with attention, a loop over 256 tokens, and one without either."""
    sizes = ("pythia", "gpt2", "olmo2", "whisper", "lstm", "mixer")
    records = [r for r in read_records(RECORDS / "calibration_h200.jsonl")[1] if isinstance(r, Step)]
    wanted = [r for r in records if r.num_devices == 1 and r.size.startswith(sizes)]
    found = list(seconds_by_kind(iter(wanted), RECORDS / "kernels_h200.tar"))
    assert len(found) == len(sizes)
    for step in found:
        for kind in ("dots", "passes"):
            assert 0.75 < step.predicted[kind] / step.measured[kind] < 1.25, (step.size, kind)
