"""A parameter that is changed before a dot reads it is sharded, gathered and split as one that is read as stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from benchmarks.quality._forms import Case, floats, momentum
from benchmarks.quality.references import draw
from jaxplan.search._traced import analyse_step
from tests.strategies.small_models import Sizes, gpt_case, gpt_loss, momentum_step

WIDTH, HIDDEN, ROWS = 256, 1024, 512
KERNEL = 4 * WIDTH * HIDDEN
SMALL = KERNEL // 8
"""Norms of columns, means and maxima are below; a gathered kernel and a scattered gradient are not."""
ACTIVATION = 4 * ROWS * WIDTH

Change = Callable[[jax.Array], jax.Array]


def rounded(w: jax.Array) -> jax.Array:
    """Quantisation-aware training: 8 bits, one scale a column, straight through."""
    scale = jnp.max(jnp.abs(w), axis=0, keepdims=True) / 127
    return w + jax.lax.stop_gradient(jnp.round(w / scale) * scale - w)


CHANGES: dict[str, Change] = {
    "stored": lambda w: w,
    "transposed": lambda w: jnp.transpose(1.5 * jnp.transpose(w)),
    "weight-norm": lambda w: w / jnp.linalg.norm(w, axis=0, keepdims=True),
    "standardised": lambda w: (w - w.mean(0)) / (w.std(0) + 1e-5),
    "rounded": rounded,
    "masked": lambda w: jnp.where(jnp.abs(w) > 0.1, w, 0.0),
    "softmax": lambda w: jax.nn.softmax(w, axis=0),
    "centred": lambda w: w - w.mean(),
}
STEPS = ["sliced", *CHANGES]


def loss_of(step: str) -> tuple[Callable[..., jax.Array], dict[str, tuple[int, ...]]]:
    """Two dense layers, changed or cut out of a stack, and the shapes of their parameters."""
    if step == "sliced":

        def sliced(p: Any, x: jax.Array) -> jax.Array:
            for i in range(2):
                x = x + jax.nn.relu(x @ p["up"][i]) @ p["down"][i]
            return jnp.mean(x**2)

        return sliced, {"up": (2, WIDTH, HIDDEN), "down": (2, HIDDEN, WIDTH)}

    def loss(p: Any, x: jax.Array) -> jax.Array:
        up, down = (CHANGES[step](p[name]) for name in ("up", "down"))
        return jnp.mean((jax.nn.relu(x @ up) @ down) ** 2)

    return loss, {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}


def case(step: str) -> Case:
    loss, shapes = loss_of(step)
    params = {name: floats(*shape) for name, shape in shapes.items()}
    return momentum(loss), (params, params, floats(ROWS, WIDTH))


def moved(plan: jaxplan.Plan) -> dict[str, int]:
    """Kind -> bytes of all collectives that are no statistics."""
    found: dict[str, int] = {}
    for c in plan.prediction.collectives:
        if c.num_bytes >= SMALL:
            found[c.kind] = found.get(c.kind, 0) + c.num_bytes * c.count
    return found


@pytest.mark.parametrize("step", STEPS)
def test_fsdp_gathers_for_each_pass_and_scatters_gradients(step: str) -> None:
    """Four layers, or two; the first is not read backward, as the rows have no gradient."""
    layers = 4 if step == "sliced" else 2
    plans = draw(case(step), "h100:8", ("zero1", "zero2", "fsdp"))
    scattered = {"reduce-scatter": layers * KERNEL}
    assert moved(plans["fsdp"]) == {"all-gather": (2 * layers - 1) * KERNEL} | scattered
    assert moved(plans["zero2"]) == {"all-gather": layers * KERNEL} | scattered
    assert plans["fsdp"].memory_parts["parameters"] == layers * KERNEL // 8


@pytest.mark.parametrize("step", STEPS)
def test_megatron_splits_columns_then_rows_and_sums_once_a_pair(step: str) -> None:
    """The sum behind each pair of layers; backward that in front of each but the first."""
    pairs = 2 if step == "sliced" else 1
    plan = draw(case(step), "h100:8", ("megatron",))["megatron"]
    assert moved(plan) == {"all-reduce": (2 * pairs - 1) * ACTIVATION}
    up, down = plan.in_specs[0]["up"], plan.in_specs[0]["down"]
    assert up[-1] and not up[-2] and down[-2]  # rows of ``down`` are columns of ``up``


@pytest.mark.sample(8)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
def test_numbers_are_those_of_one_device(strategy: str, step: str) -> None:
    loss, shapes = loss_of(step)
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(rng.normal(size=s) / 16, jnp.float32) for name, s in shapes.items()}
    x = jnp.asarray(rng.normal(size=(ROWS, WIDTH)), jnp.float32)
    args = (params, jax.tree.map(jnp.zeros_like, params), x)
    run = draw((momentum(loss), args), "cpu:8", (strategy,))[strategy].jit()
    for found, wanted in zip(
        jax.tree.leaves(run(*jax.tree.map(jnp.copy, args))),
        jax.tree.leaves(jax.jit(momentum(loss))(*args)),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-4 * float(jnp.max(jnp.abs(wanted))))


@pytest.mark.slow
def test_a_kernel_that_is_changed_by_hundreds_of_operators_is_a_parameter() -> None:
    """Rows and columns of a kernel normalised in turn, written out (Sinkhorn)."""

    def loss(p: Any, x: jax.Array) -> jax.Array:
        up = p["up"]
        for _ in range(300):
            up = up - jnp.mean(up, axis=0, keepdims=True)
            up = up - jnp.mean(up, axis=1, keepdims=True)
        return jnp.mean((jax.nn.relu(x @ up) @ p["down"]) ** 2)

    params = {"up": floats(WIDTH, HIDDEN), "down": floats(HIDDEN, WIDTH)}
    plan = draw((momentum(loss), (params, params, floats(ROWS, WIDTH))), "h100:8", ("megatron",))["megatron"]
    assert plan.in_specs[0]["up"][1] and plan.in_specs[0]["down"][0]


def test_learned_queries_are_no_parameters_of_the_attention_that_reads_them() -> None:
    """Latents times a kernel are computed: attention between them and data sums over the size of its heads."""

    def loss(p: Any, x: jax.Array) -> jax.Array:
        queries = (p["latents"] @ p["query"]).reshape(16, 8, 32)
        keys, values = ((x @ p[name]).reshape(*x.shape[:2], 8, 32) for name in ("key", "value"))
        scores = jax.nn.softmax(jnp.einsum("qhd,bshd->bhqs", queries, keys) / 32**0.5)
        mixed = jnp.einsum("bhqs,bshd->bqhd", scores, values).reshape(x.shape[0], 16, 256)
        return jnp.mean((mixed @ p["out"]) ** 2)

    params = {"latents": floats(16, 256)} | {name: floats(256, 256) for name in ("query", "key", "value", "out")}
    plan = draw((momentum(loss), (params, params, floats(16, 64, 256))), "h100:8", ("megatron",))["megatron"]
    for name in ("query", "key", "value"):
        assert plan.in_specs[0][name][1] and not plan.in_specs[0][name][0], name
    assert plan.in_specs[0]["out"][0] and not plan.in_specs[0]["out"][1]


@pytest.mark.parametrize("change", ["weight-norm", "standardised", "masked"])
def test_dimensions_of_a_transformer_keep_their_names_behind_a_change(change: str) -> None:
    sizes = Sizes()

    def changed(p: Any, batch: Any) -> jax.Array:
        return gpt_loss(sizes, {name: CHANGES[change](w) for name, w in p.items()}, batch)

    step, args = gpt_case(sizes)
    names = [_names(loss, args) for loss in (step, momentum_step(changed))]
    assert {"batch", "heads", "head_dim", "hidden", "sequence", "vocabulary"} <= names[0]
    assert names[0] == names[1]


def _names(step: Any, args: Any) -> set[str]:
    graph = analyse_step(step, args, {}, donate_argnums=None, static_argnums=())
    return {d.name for d in graph.named.dimensions if not d.name.rpartition(".")[2].isdigit()}
