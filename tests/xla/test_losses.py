"""Predictions live until their loss is summed: after the next dot where their gradient is fused with that of a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxplan
from benchmarks.accuracy._references import predict_references
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from tests.versions import H100_DOT_SCRATCH

MIB = 2**20
DEVICES, ROWS = 8, 65536
SIZES = INPUTS, HIDDEN, OUTPUTS = 512, 1024, 4096
RULE = "losses-are-summed-with-gradients-or-late"
Loss = Callable[[jax.Array, jax.Array], jax.Array]


def _mean_squares(z: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((z - y) ** 2)


def _mean_distance(z: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean(jnp.abs(z - y))


def _root(z: jax.Array, y: jax.Array) -> jax.Array:
    """Its gradient is divided by it, so that it is needed at once."""
    return jnp.sqrt(jnp.mean((z - y) ** 2))


def _case(
    loss: Loss = _mean_squares,
    has_bias: bool = True,
    rows: int = ROWS,
    sizes: tuple[int, int, int] = SIZES,
    function: Callable[[jax.Array], jax.Array] = jnp.tanh,
) -> tuple[Any, tuple[Any, ...]]:
    inputs, hidden, outputs = sizes

    def step(params: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            z = function(x @ params["a"]) @ params["b"]
            return loss(z + params["c"] if has_bias else z, y)

        value, grads = jax.value_and_grad(loss_fn)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    shapes = {"a": (inputs, hidden), "b": (hidden, outputs), "c": (outputs,)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    data = (jax.ShapeDtypeStruct((rows, n), jnp.float32) for n in (inputs, outputs))
    return step, (params, *data)


def _more_bytes(step: Any, args: tuple[Any, ...], topology: str = f"h100:{DEVICES}", strategy: str = "data") -> int:
    """By how much a strategy takes more memory with the rule."""
    graph = analyse_step(step, args, {}, donate_argnums=None, static_argnums=())
    by, without = (dict(predict_references(graph, Topology.parse(topology), left)) for left in ((), (RULE,)))
    return by[strategy].memory_bytes - without[strategy].memory_bytes


@pytest.mark.parametrize("loss", [_mean_squares, _mean_distance])
def test_predictions_live_to_the_next_dot(loss: Loss) -> None:
    """Beside its result and its scratch memory, where they died before it: so much is the peak higher."""
    hidden = 4 * ROWS // DEVICES * HIDDEN
    assert _more_bytes(*_case(loss)) == pytest.approx(hidden + H100_DOT_SCRATCH, abs=MIB)


@pytest.mark.parametrize(
    ("case", "topology"),
    [
        (_case(has_bias=False), "h100:8"),  # the loss itself is fused with the gradient
        (_case(rows=16384), "h100:8"),  # a sum over few rows is not split, and not fused
        (_case(_root), "h100:8"),
        (_case(), "v5e:2x4"),
    ],
)
def test_a_loss_that_is_summed_in_time(case: Any, topology: str) -> None:
    assert _more_bytes(*case, topology) == 0


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize("has_bias", [True, False])
def test_compiled_memory_of_a_late_loss(has_bias: bool) -> None:
    """A step in float32: without the rule 13 % of it were missing."""
    step, args = _case(has_bias=has_bias)
    audit = jaxplan.plan(step, *args, topology=f"h100:{DEVICES}", progress=False).references["data"].audit()
    assert audit.predicted_memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=0.01), audit.table()


def _softplus(z: jax.Array, y: jax.Array) -> jax.Array:
    return jax.nn.softplus(z) - y * z


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
    ("loss", "dtype", "saved"),
    [
        (optax.sigmoid_binary_cross_entropy, jnp.bfloat16, 2),  # a logarithm for each class
        (optax.sigmoid_binary_cross_entropy, jnp.float32, 0),
        (_softplus, jnp.bfloat16, 1),
        (_softplus, jnp.float32, 0),
    ],
)
def test_what_is_saved_of_a_loss(loss: Loss, dtype: Any, saved: int) -> None:
    """Beside the predictions and their gradient, which the kernel that sums the loss reads and writes."""

    def step(w: Any, x: Any, y: Any) -> Any:
        value, grad = jax.value_and_grad(lambda w: jnp.mean(loss((x @ w).astype(jnp.float32), y)))(w)
        return w - (0.1 * grad).astype(w.dtype), value

    w, x = jax.ShapeDtypeStruct((INPUTS, OUTPUTS), dtype), jax.ShapeDtypeStruct((ROWS, INPUTS), dtype)
    args = w, x, jax.ShapeDtypeStruct((ROWS, OUTPUTS), jnp.float32)
    audit = jaxplan.plan(step, *args, topology=f"h100:{DEVICES}", progress=False).references["data"].audit()
    size, itemsize = ROWS // DEVICES * OUTPUTS, jnp.dtype(dtype).itemsize
    arguments = (4 + itemsize * INPUTS / OUTPUTS) * size + itemsize * INPUTS * OUTPUTS
    arrays = (2 * itemsize + 4 * saved) * size
    assert audit.compiled_memory_bytes == pytest.approx(arguments + arrays, rel=0.02), audit.table()
    assert audit.predicted_memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=0.03), audit.table()


@pytest.mark.gpu_aot
def test_predictions_that_are_reduced_live_to_the_next_dot() -> None:
    """Under ``megatron`` the last dot makes a partial sum, and the loss reads the copy that is reduced.

    Each device has all rows: 16,384, the sum of which for the bias is split.
    """
    step, args = _case(rows=16384, sizes=(512, 4096, 1024), function=jax.nn.relu)
    audit = jaxplan.plan(step, *args, topology=f"h100:{DEVICES}", progress=False).references["megatron"].audit()
    assert audit.predicted_memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=0.02), audit.table()
