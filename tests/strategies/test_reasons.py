"""The reasons of strategies that do not apply, on steps of odd kinds, each checked by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.quality._forms import floats
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.strategies import apply_strategies

EXPERTS, TOKENS, WIDTH, HIDDEN = 8, 1024, 256, 512


def descent(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    return lambda p, *data: jax.tree.map(lambda p, g: p - g, p, jax.grad(loss)(p, *data))


def absent(step: Callable[..., Any], *args: Any) -> Mapping[str, str]:
    graph = analyse_step(step, args, {}, donate_argnums=None, static_argnums=())
    return apply_strategies(graph, Topology.parse("h100:8")).absent


def sorted_experts(p: Any, x: jax.Array) -> jax.Array:
    expert = jnp.argmax(x @ p["router"], -1)
    order = jnp.argsort(expert)
    counts = jnp.bincount(expert, length=EXPERTS)
    hidden = jax.nn.relu(jax.lax.ragged_dot(x[order], p["up"], counts))
    return jnp.mean((jax.lax.ragged_dot(hidden, p["down"], counts)[jnp.argsort(order)] - x) ** 2)


@pytest.mark.parametrize("before", [(TOKENS, WIDTH), (8, TOKENS // 8, WIDTH)])
def test_tokens_that_are_sorted_for_ragged_dots_are_no_examples(before: tuple[int, ...]) -> None:
    """A sort moves tokens between devices; experts may be split, each device multiplies the rows of its own."""
    params = {"router": floats(WIDTH, EXPERTS), "up": floats(EXPERTS, WIDTH, HIDDEN)}
    params["down"] = floats(EXPERTS, HIDDEN, WIDTH)
    found = absent(descent(lambda p, x: sorted_experts(p, x.reshape(-1, WIDTH))), params, floats(*before))
    assert found["data"] == found["fsdp"] == found["zero2"]
    assert "'sort'" in found["fsdp"] and found["fsdp"].endswith(f"({TOKENS})")
    assert "experts" not in found
    assert "no attention" in found["context"] and "no attention" in found["megatron_sequence"]


def test_arithmetic_that_leaves_the_examples_alone_is_named() -> None:
    """Nearly all of the work is a power of one matrix; the examples only read it."""

    def loss(p: Any, x: jax.Array) -> jax.Array:
        w = p
        for _ in range(6):
            w = jnp.tanh(w @ w)
        return jnp.mean((x @ w[:, :1]) ** 2)

    reason = absent(descent(loss), floats(2048, 2048), floats(8, 2048))["fsdp"]
    assert reason.startswith("most of the arithmetic, 'dot_general' at ") and reason.endswith("(8)")


def test_a_recurrence_has_neither_a_sequence_nor_experts() -> None:
    def loss(p: Any, x: jax.Array) -> jax.Array:
        cell = lambda h, now: (jnp.tanh(now @ p["w"] + h @ p["u"]), None)  # noqa: E731
        return jnp.mean(jax.lax.scan(cell, jnp.zeros(x.shape[1:]), x)[0] ** 2)

    found = absent(descent(loss), {"w": floats(256, 256), "u": floats(256, 256)}, floats(16, 64, 256))
    assert "no attention" in found["context"] and "no experts" in found["experts"] and "data" not in found


def test_a_matrix_times_its_transpose_has_no_experts() -> None:
    found = absent(lambda a: jnp.linalg.eigh(a @ a.T)[0], floats(256, 256))
    assert "no experts" in found["experts"] and "'dot_general'" in found["data"]


def test_channels_of_a_state_space_are_no_experts() -> None:
    """Each channel weighs its own states: a vector for each, no matrix."""

    def loss(p: Any, x: jax.Array) -> jax.Array:
        drive = jax.nn.silu(x @ p["inputs"])
        states = drive[..., None] * jnp.exp(p["decay"])
        return jnp.mean(jnp.einsum("btds,sd->btd", states, p["outputs"]) ** 2)

    params = {"inputs": floats(64, 64), "decay": floats(64, 16), "outputs": floats(16, 64)}
    assert absent(descent(loss), params, floats(16, 32, 64))["experts"].startswith("the step has no experts")


def test_filters_of_frequencies_are_no_experts() -> None:
    """One number scales each frequency of each channel: a dot that sums nothing."""

    def loss(p: Any, x: jax.Array) -> jax.Array:
        found = jnp.einsum("btc,tc->btc", jnp.fft.rfft(x, axis=1), p["filter"])
        return jnp.mean((jnp.fft.irfft(found, n=64, axis=1) @ p["out"]) ** 2)

    frequencies = jax.ShapeDtypeStruct((33, 64), jnp.complex64)
    found = absent(descent(loss), {"filter": frequencies, "out": floats(64, 64)}, floats(16, 64, 64))
    assert "no experts" in found["experts"] and "data" not in found


def test_a_stencil_has_no_parameters_to_split() -> None:
    found = absent(lambda u: u + jnp.roll(u, 1, 0) + jnp.roll(u, 1, 1), floats(512, 512))
    assert found["megatron"] == "no dot, convolution or look-up reads a parameter"
    assert "mixes" in found["data"] and "(512)" in found["data"]


def test_a_batch_that_divides_but_meets_no_dot_is_said_so() -> None:
    """Examples are the right sides of a triangular solve; the only dot makes the matrix, without them."""

    def solved(a: jax.Array, x: jax.Array) -> jax.Array:
        factor = jnp.linalg.cholesky(a @ a.T + jnp.eye(16))
        return jax.scipy.linalg.solve_triangular(factor, x.T, lower=True)

    reason = absent(solved, floats(16, 16), floats(64, 16))["data"]
    assert "64" in reason and "no dot" in reason and "does not divide" not in reason


def _gauss_newton(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    def residual(w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) - y

    jacobian = jax.jacfwd(residual)(w)
    matrix = jacobian.T @ jacobian + 0.1 * jnp.eye(WIDTH)
    return w - jnp.linalg.solve(matrix, jacobian.T @ residual(w))


def _second_moments(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Gradients whitened by the activations that they are made of, as in K-FAC."""
    gradient = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
    return w - jnp.linalg.solve(x.T @ x / TOKENS + jnp.eye(WIDTH), gradient)


def _correlated_features(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """A loss on the correlations of two views' features, over the examples (Barlow twins)."""

    def loss(w: jax.Array) -> jax.Array:
        correlation = jnp.tanh(x @ w).T @ jnp.tanh(y @ w) / TOKENS
        return jnp.sum((correlation - jnp.eye(HIDDEN)) ** 2)

    return w - jax.grad(loss)(w)


@pytest.mark.parametrize(
    ("step", "shapes"),
    [
        (_gauss_newton, ((WIDTH,), (TOKENS, WIDTH), (TOKENS,))),
        (_second_moments, ((WIDTH, HIDDEN), (TOKENS, WIDTH), (TOKENS, HIDDEN))),
        (_correlated_features, ((WIDTH, HIDDEN), (TOKENS, WIDTH), (TOKENS, WIDTH))),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_matrix_summed_over_examples_is_no_attention(
    step: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]
) -> None:
    found = absent(step, *(floats(*shape) for shape in shapes))
    assert "data" not in found
    assert found["context"] == "the step has no attention over a sequence"
