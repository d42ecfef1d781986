"""Micro-batches of loops inside of loops, and of loops of Python, are cut out of each device's own examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.quality.references import draw
from jaxplan.ir import CUT, trace

EXAMPLES, WIDTH = 64, 8
OUTER, INNER = 2, 4
NUMBER = OUTER * INNER
PART = EXAMPLES // NUMBER
Params = dict[str, jax.Array]


def _values() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    params = {
        "up": rng.normal(size=(WIDTH, 16), scale=0.3).astype(np.float32),
        "down": rng.normal(size=(16, WIDTH), scale=0.3).astype(np.float32),
    }
    x = rng.normal(size=(EXAMPLES, WIDTH)).astype(np.float32)
    return params, x, rng.uniform(size=(EXAMPLES,)).astype(np.float32)


def _loss(p: Params, x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.mean((jax.nn.relu(x @ p["up"]) @ p["down"]) ** 2 * weight[:, None])


def _grad(p: Params, *part: jax.Array) -> Params:
    return jax.grad(_loss)(p, *part)


def _zeros(p: Params) -> Params:
    return jax.tree.map(jnp.zeros_like, p)


def _add(g: Params, h: Params) -> Params:
    return jax.tree.map(jnp.add, g, h)


def _scan(p: Params, start: Params, parts: Any) -> Params:
    return lax.scan(lambda g, part: (_add(g, _grad(p, *part)), None), start, parts)[0]


def _cut(*numbers: int) -> Callable[[tuple[jax.Array, ...]], tuple[jax.Array, ...]]:
    return lambda data: tuple(x.reshape(*numbers, -1, *x.shape[1:]) for x in data)


def in_python(p: Params, *data: jax.Array) -> Params:
    g = _zeros(p)
    for i in range(NUMBER):
        g = _add(g, _grad(p, *(x[i * PART : (i + 1) * PART] for x in data)))
    return g


def in_python_from_zero(p: Params, *data: jax.Array) -> Params:
    parts = [_grad(p, *part) for part in zip(*(jnp.split(x, NUMBER) for x in data))]
    return jax.tree.map(lambda *g: sum(g), *parts)


def in_python_scaled(p: Params, *data: jax.Array) -> Params:
    parts = [_grad(p, *part) for part in zip(*(jnp.split(x, NUMBER) for x in data))]
    return jax.tree.map(lambda *g: sum(x / NUMBER for x in g), *parts)


def differentiated_sum(p: Params, *data: jax.Array) -> Params:
    stacks = _cut(NUMBER)(data)
    return jax.grad(lambda p: sum(_loss(p, *(x[i] for x in stacks)) for i in range(NUMBER)))(p)


def two_scans(p: Params, *data: jax.Array) -> Params:
    return lax.scan(lambda g, parts: (_scan(p, g, parts), None), _zeros(p), _cut(OUTER, INNER)(data))[0]


def inner_sum_of_its_own(p: Params, *data: jax.Array) -> Params:
    def add(g: Params, parts: Any) -> tuple[Params, None]:
        return _add(g, _scan(p, _zeros(p), _cut(INNER)(parts))), None

    return lax.scan(add, _zeros(p), _cut(OUTER)(data))[0]


def two_counters(p: Params, *data: jax.Array) -> Params:
    def rows(i: Any, j: Any) -> list[jax.Array]:
        return [lax.dynamic_slice_in_dim(x, (i * INNER + j) * PART, PART) for x in data]

    def outer(i: Any, g: Params) -> Params:
        return lax.fori_loop(0, INNER, lambda j, g: _add(g, _grad(p, *rows(i, j))), g)

    return lax.fori_loop(0, OUTER, outer, _zeros(p))


def python_in_a_scan(p: Params, *data: jax.Array) -> Params:
    def add(g: Params, parts: Any) -> tuple[Params, None]:
        for i in range(INNER):
            g = _add(g, _grad(p, *(x[i * PART : (i + 1) * PART] for x in parts)))
        return g, None

    return lax.scan(add, _zeros(p), _cut(OUTER)(data))[0]


def scaled_in_a_scan(p: Params, *data: jax.Array) -> Params:
    """As in mixed precision: gradients of 16 bits are cast, divided by their number, and added up in float32."""

    def add(g: Params, part: Any) -> tuple[Params, None]:
        return jax.tree.map(lambda a, b: a + b.astype(jnp.float32) / NUMBER, g, _narrow_grad(p, *part)), None

    return lax.scan(add, _zeros(p), _cut(NUMBER)(data))[0]


def narrow_in_python(p: Params, *data: jax.Array) -> Params:
    g = _zeros(p)
    for part in zip(*(jnp.split(x, NUMBER) for x in data)):
        g = jax.tree.map(lambda a, b: a + 0.125 * b.astype(jnp.float32), g, _narrow_grad(p, *part))
    return g


def _narrow_grad(p: Params, *part: jax.Array) -> Params:
    half = jnp.bfloat16
    return jax.grad(lambda p: _loss(p, *(x.astype(half) for x in part)))(jax.tree.map(lambda x: x.astype(half), p))


def loops_in_python(p: Params, *data: jax.Array) -> Params:
    def loss(p: Params, x: jax.Array, weight: jax.Array) -> jax.Array:
        h, _ = lax.scan(lambda h, _: (jnp.tanh(h @ p["up"] @ p["down"]), None), x, None, length=3)
        return jnp.mean(h * weight[:, None])

    parts = [jax.grad(loss)(p, *part) for part in zip(*(jnp.split(x, NUMBER) for x in data))]
    return jax.tree.map(lambda *g: sum(g), *parts)


FREE = (
    in_python, in_python_from_zero, in_python_scaled, differentiated_sum, two_scans, inner_sum_of_its_own, two_counters,
    python_in_a_scan, loops_in_python,
)  # fmt: skip


def weighted(p: Params, *data: jax.Array) -> Params:
    g = _zeros(p)
    for i, part in enumerate(zip(*(jnp.split(x, NUMBER) for x in data))):
        g = jax.tree.map(lambda g, h, i=i: g + h * (i + 1), g, _grad(p, *part))
    return g


def one_part_twice(p: Params, *data: jax.Array) -> Params:
    parts = [_grad(p, *part) for part in zip(*(jnp.split(x, NUMBER) for x in data))]
    return jax.tree.map(lambda *g: sum(g) + g[0], *parts)


def one_part_otherwise(p: Params, *data: jax.Array) -> Params:
    parts = [_grad(p, *part) for part in zip(*(jnp.split(x, NUMBER) for x in data))]
    return jax.tree.map(lambda *g: sum(g[:-1]) - g[-1], *parts)


def labels_of_other_parts(p: Params, x: jax.Array, weight: jax.Array) -> Params:
    g = _zeros(p)
    weights = jnp.split(weight, NUMBER)
    for part, other in zip(jnp.split(x, NUMBER), weights[1:] + weights[:1]):
        g = _add(g, _grad(p, part, other))
    return g


def labels_of_the_inner_number_alone(p: Params, x: jax.Array, weight: jax.Array) -> Params:
    (weights,) = _cut(INNER)((weight[: EXAMPLES // OUTER],))
    (parts,) = _cut(OUTER, INNER)((x,))
    return lax.scan(lambda g, part: (_scan(p, g, (part, weights)), None), _zeros(p), parts)[0]


def labels_by_swapped_numbers(p: Params, x: jax.Array, weight: jax.Array) -> Params:
    (parts,), (weights,) = _cut(OUTER, INNER)((x,)), _cut(INNER, OUTER)((weight,))
    swapped = weights.swapaxes(0, 1)
    return lax.scan(lambda g, part: (_scan(p, g, part), None), _zeros(p), (parts, swapped))[0]


def recurrent_over_parts(p: Params, *data: jax.Array) -> Params:
    """The state of a loop inside of each part begins with that of the part before."""

    def rolled(p: Params, h: jax.Array, x: jax.Array, weight: jax.Array) -> jax.Array:
        return lax.scan(lambda h, w: (jnp.tanh(h @ p["up"] @ p["down"] + x * w), None), h, weight)[0]

    def loss(p: Params) -> jax.Array:
        h, total = jnp.zeros((PART, WIDTH)), jnp.zeros(())
        for part in zip(*(jnp.split(x, NUMBER) for x in data)):
            h = rolled(p, h, *part)
            total = total + jnp.sum(h)
        return total

    return jax.grad(loss)(p)


KEPT = (
    weighted, one_part_twice, one_part_otherwise, labels_of_other_parts, labels_of_the_inner_number_alone,
    labels_by_swapped_numbers, recurrent_over_parts,
)  # fmt: skip


def _step(gradients: Callable[..., Params]) -> Callable[..., Any]:
    return lambda p, *data: jax.tree.map(lambda p, g: p - 0.1 * g, p, gradients(p, *data))


def _is_cut(gradients: Callable[..., Params]) -> bool:
    return any(eqn.name == CUT for eqn in trace(_step(gradients), _values(), {}).equations)


@pytest.mark.parametrize("gradients", FREE, ids=lambda form: form.__name__)
def test_sums_over_all_parts_are_cut_freely(gradients: Callable[..., Params]) -> None:
    assert _is_cut(gradients)


@pytest.mark.parametrize("gradients", KEPT, ids=lambda form: form.__name__)
def test_parts_that_are_told_apart_are_not(gradients: Callable[..., Params]) -> None:
    assert not _is_cut(gradients)


def test_slices_without_rows_are_left_alone() -> None:
    program = trace(lambda x: (x[:0], x[:0].sum(), x.sum()), (np.ones((4, 3), np.float32),), {})
    assert not any(eqn.name == CUT for eqn in program.equations)


def test_each_step_of_a_call_cuts_its_own_batch() -> None:
    def steps(p: Params, *data: jax.Array) -> Params:
        return lax.scan(lambda p, now: (_step(in_python)(p, *now), None), p, data)[0]

    p, *data = _values()
    program = trace(steps, (p, *(np.stack([x, x, x]) for x in data)), {})
    assert sum(eqn.name == CUT and eqn.region >= 0 for eqn in program.equations) == 2


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "gradients",
    [
        in_python_from_zero,
        in_python_scaled,
        two_counters,
        python_in_a_scan,
        loops_in_python,
        differentiated_sum,
        scaled_in_a_scan,
        narrow_in_python,
    ],
    ids=lambda f: f.__name__,
)
def test_they_compute_the_same_without_sending_examples(gradients: Callable[..., Params]) -> None:
    step, values = _step(gradients), _values()
    plan = draw((step, values), "cpu:8", ("data",))["data"]
    assert plan.in_specs[1][0] == plan.in_specs[2][0] == ("cpu0", "cpu1", "cpu2")
    found = plan.jit(donate_argnums=())
    is_narrow = gradients in (scaled_in_a_scan, narrow_in_python)
    for a, b in zip(jax.tree.leaves(found(*values)), jax.tree.leaves(jax.jit(step)(*values)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4 if is_narrow else 1e-6)
    sums = [c for c in plan.prediction.collectives if c.kind == "all-reduce"]
    assert max(c.count for c in sums) == len(values[0]), "each gradient is summed over the devices once"
    text = found.lower(*values).compile().as_text()
    assert text is not None and text.count("all-reduce(") <= 2
    assert not any(kind in text for kind in ("all-to-all", "all-gather", "collective-permute"))
