"""Plans that work through the batch in slices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from tests.versions import missed_from_0_12


def loss(w, x, y):
    for k in sorted(w):
        x = x + jnp.tanh(x @ w[k]["up"]) @ w[k]["down"]
    return jnp.mean((x - y) ** 2)


def train_step(w, batch):
    value, grads = jax.value_and_grad(loss)(w, batch["x"], batch["y"])
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value


def arguments(width=32, batch=64):
    w = {
        f"layer_{i}": {
            "up": jax.random.normal(jax.random.key(i), (width, 4 * width)) / width,
            "down": jax.random.normal(jax.random.key(9 + i), (4 * width, width)) / width,
        }
        for i in range(3)
    }
    return w, {name: jax.random.normal(jax.random.key(20 + i), (batch, width)) for i, name in enumerate("xy")}


def abstract(**sizes):
    return jax.eval_shape(lambda: arguments(**sizes))


def test_a_plan_in_slices_equals_one_device_and_reads_back(tmp_path):
    args = arguments()
    plan = jaxplan.plan(train_step, *args, topology="cpu:8", microbatches=4).fastest()
    assert plan.microbatches is not None and plan.microbatches.num == 4 and "4 micro-batches" in plan.summary
    expected = train_step(*args)
    plan.save(tmp_path / "p.json")
    for of in (plan, jaxplan.load(tmp_path / "p.json", train_step, *args)):
        found = of.jit(donate_argnums=())(*args)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_activations_shrink_with_the_number_of_slices():
    """Data parallel on h100:8: activations are saved for a quarter of the batch at a time."""
    args = abstract(width=512, batch=2**17)
    whole, slices = (
        jaxplan.plan(train_step, *args, topology="h100:8", microbatches=m).references["data"] for m in (False, 4)
    )
    assert slices.memory_bytes < 0.6 * whole.memory_bytes
    assert slices.compute_seconds < 1.3 * whole.compute_seconds


def test_slices_are_found_where_nothing_fits_otherwise():
    args = abstract(width=512, batch=2**17)
    lean = jaxplan.plan(train_step, *args, topology="h100:8", microbatches=False, remat=False).leanest()
    limit = int(0.7 * lean.memory_bytes)
    with pytest.raises(jaxplan.InfeasibleError):
        jaxplan.plan(train_step, *args, topology="h100:8", memory=limit, microbatches=False, remat=False)
    found = jaxplan.plan(train_step, *args, topology="h100:8", memory=limit, remat=False)
    assert found.fastest().microbatches is not None
    assert found.fastest().memory_bytes <= limit


def test_where_nothing_fits_the_reason_against_slices_is_said():
    def step(w, batch):
        new, value = train_step(w, batch)
        return new, value, jnp.max(batch["x"] @ w["layer_0"]["up"])

    with pytest.raises(jaxplan.InfeasibleError, match=r"micro-batches: .*another way than by a sum"):
        jaxplan.plan(step, *abstract(), topology="cpu:2", memory="100KiB")


@pytest.mark.parametrize(("value", "message"), [(3, "64 examples"), (64, "64 examples"), ("four", "number of slices")])
def test_a_number_of_slices_that_cannot_be_is_refused(value, message):
    with pytest.raises(jaxplan.ArgumentError, match=message):
        jaxplan.plan(train_step, *arguments(), topology="cpu:2", microbatches=value)


def test_slices_are_found_where_only_attention_in_blocks_fits_otherwise():
    """Scores of 2,048 tokens, half of which fit: slices read them once each, blocks recompute them."""

    def step(w, x):
        def loss(w):
            q, k, v = (jnp.einsum("btm,mhd->bthd", x, w[i]) for i in range(3))
            weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
            return jnp.mean(jnp.einsum("bhqk,bkhd->bqhd", weights, v) ** 2)

        return w - 0.1 * jax.grad(loss)(w)

    args = jax.ShapeDtypeStruct((3, 64, 8, 64), jnp.float32), jax.ShapeDtypeStruct((64, 2048, 64), jnp.float32)
    traced = jaxplan.trace(step, *args)
    settings = {"topology": "h100:8", "remat": False, "verify": False}
    points = traced.plan(**settings, microbatches=False).points
    least = min(plan.memory_bytes for plan in points if plan.sequences is None)
    settings["memory"] = int(0.7 * least)
    blocks = traced.plan(**settings, microbatches=False)
    assert all(plan.sequences is not None for plan in blocks.points)
    found = traced.plan(**settings)
    assert found.fastest().microbatches is not None
    assert found.fastest().time_seconds < blocks.fastest().time_seconds
    assert {plan.name for plan in found.references.values()} == {plan.name for plan in blocks.references.values()}


@pytest.mark.slow
def test_a_step_that_writes_down_its_batch_size_is_refused_in_slices_alone():
    """Without slices it is planned; advice, which tries them, leaves them out."""

    def step(w, batch):
        def total(w):
            return jnp.sum((batch["x"] @ w + jnp.ones((64, 1))) ** 2)

        value, gradient = jax.value_and_grad(total)(w)
        return w - 0.1 * gradient, value

    shape = jax.ShapeDtypeStruct
    args = shape((32, 32), jnp.float32), {"x": shape((64, 32), jnp.float32)}
    with pytest.raises(jaxplan.errors.UnsupportedError, match=r"(?s)it cannot be traced with fewer.*fix"):
        jaxplan.plan(step, *args, topology="cpu:8", microbatches=4)
    with pytest.raises(jaxplan.InfeasibleError, match=r"micro-batches: .*cannot be traced with fewer examples"):
        jaxplan.plan(step, *args, topology="cpu:8", memory="1000B")
    frontier = jaxplan.plan(step, *args, topology="cpu:8")
    assert "microbatches" not in {advice.kind for advice in frontier.advice()}
    with pytest.raises(jaxplan.errors.ArgumentError, match="batch=32 cannot be asked for: the step cannot be traced"):
        frontier.what_if(batch=32)


@missed_from_0_12("the compiler keeps an array of 32 MiB more in a trip: 8 % more")
@pytest.mark.gpu_aot
def test_weights_that_are_rounded_in_front_of_the_slices_are_counted_once():
    """Two matrices of 64 MiB, rounded to 32 MiB each that all slices read: no second rounded one in the loop."""

    def step(w, batch):
        def loss(w, x, y):
            up, down = (of.astype(jnp.bfloat16) for of in w)
            return jnp.mean((jnp.tanh(x @ up) @ down).astype(jnp.float32) ** 2 * y)

        value, gradients = jax.value_and_grad(loss)(w, batch["x"], batch["y"])
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradients), value

    w = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2**10, 2**14), (2**14, 2**10)))
    batch = {"x": jax.ShapeDtypeStruct((512, 2**10), jnp.bfloat16), "y": jax.ShapeDtypeStruct((512, 1), jnp.float32)}
    frontier = jaxplan.plan(step, w, batch, topology="h100:8", microbatches=4, progress=False)
    plan = frontier.references["data"]
    assert plan.memory_bytes == pytest.approx(plan.audit().compiled_memory_bytes, rel=0.03)
