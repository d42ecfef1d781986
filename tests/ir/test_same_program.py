"""Traces of closures that were defined again are one program, and two as soon as a number in them differs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import Mesh, PartitionSpec

from jaxplan.ir import first_difference, trace

W = X = jax.ShapeDtypeStruct((8, 8), jnp.float32)
Step = Callable[[Any, Any], Any]


def scan(k: float) -> Step:
    rows = jnp.arange(8.0)
    return lambda w, x: lax.scan(lambda c, _: (jnp.tanh(c @ w) * k + rows, c.sum()), x, None, length=3)


def constant_in_scan(k: float) -> Step:
    rows = np.arange(8, dtype=np.float32) * k
    return lambda w, x: lax.scan(lambda c, a: (c @ w + rows * a, None), x, jnp.arange(3.0))[0]


def branches(k: float) -> Step:
    return lambda w, x: lax.cond(x.sum() > 1, lambda y: y @ w, lambda y: y * k, x)


def loop(k: float) -> Step:
    return lambda w, x: lax.while_loop(lambda c: c.sum() < k, lambda c: c @ w + 1, x)


def custom_vjp_in_scan(k: float) -> Step:
    @jax.custom_vjp
    def sine(x: Any) -> Any:
        return jnp.sin(x)

    sine.defvjp(lambda x: (sine(x), x), lambda r, g: (g * jnp.cos(r) * k,))

    def loss(w: Any, x: Any) -> Any:
        return lax.scan(lambda c, _: (sine(c @ w), None), x, None, length=2)[0].sum()

    return jax.grad(loss)


def shard_map(k: float) -> Step:
    mesh, rows = Mesh(np.array(jax.devices()[:8]), ("d",)), PartitionSpec("d")
    inner = jax.shard_map(lambda x: x * k, mesh=mesh, in_specs=rows, out_specs=rows)
    return lambda w, x: inner(x @ w)


def pallas(k: float) -> Step:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * k

    call = pl.pallas_call(kernel, out_shape=W, interpret=True)
    return lambda w, x: x @ w + call(x)


def callback(k: float) -> Step:
    return lambda w, x: jax.pure_callback(lambda a: np.asarray(a) * k, W, x @ w)


def closed_over(k: float) -> Step:
    array = np.full((8, 8), k, np.float32)
    return lambda w, x: x @ w + array


def key(k: float) -> Step:
    seed = jax.random.key(int(k))
    return lambda w, x: x @ w + jax.random.normal(seed, (8, 8))


def reducer(k: float) -> Step:
    return lambda w, x: x @ w + lax.reduce(x, np.float32(0), lambda a, b: a + b * np.float32(k), (0,))


def precision(k: float) -> Step:
    return lambda w, x: jnp.matmul(x, w, precision="highest" if k > 2 else "default")


def constant_result(k: float) -> Step:
    return lambda w, x: (x @ w, k)


def optimizer(make: Callable[[float], optax.GradientTransformation], k: float) -> Step:
    update = make(k / 100)

    def step(w: Any, x: Any) -> Any:
        grads = jax.grad(lambda v: jnp.mean(jnp.tanh(x @ v) ** 2))(w)
        updates, state = update.update(grads, update.init(w), w)
        return optax.apply_updates(w, updates), state

    return step


OPTIMIZERS: dict[str, Callable[[float], Any]] = {
    "adamw": optax.adamw,
    "lion": optax.lion,
    "adafactor": optax.adafactor,
    "muon": optax.contrib.muon,
    "schedule": lambda rate: optax.adam(optax.warmup_cosine_decay_schedule(rate, 2 * rate, 3, 10)),
    "clipped": lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(rate, momentum=0.9)),
    "several steps": lambda rate: optax.MultiSteps(optax.adam(rate), 2).gradient_transformation(),
}
FORMS: dict[str, Callable[[float], Step]] = {
    form.__name__: form
    for form in (scan, constant_in_scan, branches, loop, custom_vjp_in_scan, shard_map, pallas, callback)
}
FORMS |= {form.__name__: form for form in (closed_over, key, reducer, precision, constant_result)}
FORMS |= {name: partial(optimizer, make) for name, make in OPTIMIZERS.items()}


@pytest.mark.parametrize("form", FORMS)
def test_equal_numbers_are_one_program_and_others_another(form: str) -> None:
    first, again, other = (trace(FORMS[form](k), (W, X)) for k in (2.0, 2.0, 3.0))
    assert first_difference(first, again) is None
    assert first_difference(first, other) is not None


def test_names_lines_and_paths_do_not_count() -> None:
    def one(state: dict[str, Any]) -> Any:
        with jax.named_scope("one"):
            return jnp.sin(state["a"]) @ state["a"]

    def two(state: dict[str, Any]) -> Any:
        return jax.jit(lambda x: jnp.sin(x) @ x)(state["b"])

    assert first_difference(trace(one, ({"a": W},)), trace(two, ({"b": W},))) is None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            lambda w, x: jnp.tanh(x @ w) * 3,
            r"the literal 3\.0 in place of 2\.0 as an operand of mul, at .*\.py:\d+",
        ),
        (lambda w, x: jnp.sin(x @ w) * 2, r"computes sin where the plan has tanh"),
        (lambda w, x: jnp.tanh(w @ x) * 2, r"another value as an operand of dot_general"),
        (lambda w, x: jnp.tanh(x @ w) * 2 + 1, r"has 4 operators, and 3 in the plan"),
        (lambda w, x: (jnp.tanh(x @ w) * 2, x), r"returns 2 arrays, and 1 in the plan"),
        (lambda w, x: jnp.tanh(x @ w) * jnp.arange(8), r"mul|convert"),
    ],
)
def test_the_first_difference_is_told(other: Step, message: str) -> None:
    found = first_difference(trace(lambda w, x: jnp.tanh(x @ w) * 2, (W, X)), trace(other, (W, X)))
    assert found is not None
    assert re.search(message, found)


def test_other_arguments_are_told_by_path() -> None:
    half = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    found = first_difference(
        trace(lambda a: a["w"] * 2, ({"w": W},)), trace(lambda a: a["w"] * 2, ({"w": half},))
    )
    assert found == "takes bfloat16[8,8] as [0]['w'], and float32[8,8] in the plan"


def test_python_numbers_count_as_arrays_of_their_dtype() -> None:
    """A counter that starts as 0 comes back as an array."""

    def count(state: dict[str, Any]) -> Any:
        return {"w": state["w"] * 2, "count": state["count"] + 1, "scaled": state["count"] * 0.5}

    first, later = (trace(count, ({"w": W, "count": value},)) for value in (0, jnp.int32(0)))
    assert first_difference(first, later) is None
