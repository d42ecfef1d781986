"""Layers of a loop recomputed: the values of the step as it is, and fewer bytes in stacks."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from jaxplan.ir import LoopRemat
from jaxplan.ir._loop_remat import recompute_in_loops
from tests.sampling import sampled

LAYERS, BATCH, WIDTH = 6, 8, 4


@pytest.fixture(autouse=True)
def _in_float64():
    """Rounding is far below the tolerance, in whatever order a compiler adds."""
    with jax.enable_x64(True):
        yield


def layer(key, x, w):
    """A perceptron with dropout: two dots, functions between them, a mask of random bits, a constant of the loop."""
    hidden = jnp.einsum("bd,de->be", x, w["up"])
    hidden = jax.nn.gelu(hidden) * jax.random.bernoulli(jax.random.fold_in(key, w["number"]), 0.8, hidden.shape)
    return x + jnp.tanh(hidden @ w["down"]) * w["scale"], jnp.mean(hidden)


def step(weights, x, key, *, reverse=False, around=lambda f: f):
    def loss(floats):
        w = {**floats, "number": weights["number"]}
        y, means = jax.lax.scan(around(partial(layer, key)), x, w, reverse=reverse)
        return jnp.mean(y**2) + jnp.sum(means**3)

    floats = {name: w for name, w in weights.items() if name != "number"}
    value, gradients = jax.value_and_grad(loss)(floats)
    return value, gradients


def arguments():
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {
        "up": jax.random.normal(keys[0], (LAYERS, WIDTH, 4 * WIDTH)) / 2,
        "down": jax.random.normal(keys[1], (LAYERS, 4 * WIDTH, WIDTH)) / 4,
        "scale": 1 + jax.random.normal(keys[2], (LAYERS, WIDTH)) / 8,
        "number": jnp.arange(LAYERS),
    }
    return weights, jax.random.normal(keys[3], (BATCH, WIDTH)), jax.random.key(7)


def stacks_of(closed):
    """Bytes of one trip of the stacks that the first loop over layers returns, by shape."""
    scan = next(eqn for eqn in flat(closed.jaxpr) if eqn.primitive.name == "scan")
    carries = [v.aval.shape for v in scan.outvars if v.aval.shape[:1] != (LAYERS,)]
    return sorted(math.prod(v.aval.shape[1:]) for v in scan.outvars[len(carries) :])


def flat(jaxpr):
    for eqn in jaxpr.eqns:
        inner = eqn.params.get("jaxpr") if eqn.primitive.name in ("jit", "pjit") else None
        if inner is None:
            yield eqn
        else:
            yield from flat(inner.jaxpr)


@pytest.mark.parametrize("reverse", sampled([True, False]))
@pytest.mark.parametrize("policy, kept", [("all", ()), ("contractions", (BATCH * 4 * WIDTH, BATCH * WIDTH))])
def test_values_are_those_of_the_step_and_stacks_the_carry_and_what_is_kept(policy, kept, reverse):
    """Beside the carry, BATCH x WIDTH, and the mean of each layer stacks hold the results of both dots or nothing."""
    leaves, tree = jax.tree.flatten(arguments())

    def run(*leaves):
        return jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves), reverse=reverse))

    closed = jax.make_jaxpr(run)(*leaves)
    again = recompute_in_loops(closed, LoopRemat(policy=policy))
    assert again is not closed
    assert stacks_of(again) == sorted([1, BATCH * WIDTH, *kept])
    assert sum(stacks_of(again)) < sum(stacks_of(closed))
    expected, found = (jax.jit(jax.extend.core.jaxpr_as_fun(of))(*leaves) for of in (closed, again))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def loops_of(closed):
    """Length of each loop and the elements of one trip in its stacks, in program order."""
    scans = [eqn for eqn in flat(closed.jaxpr) if eqn.primitive.name == "scan"]
    found = []
    for eqn in scans:
        length, shapes = eqn.params["length"], [v.aval.shape for v in eqn.outvars]
        found.append((length, sorted(math.prod(shape[1:]) for shape in shapes if shape[:1] == (length,))))
    return found


@pytest.mark.parametrize("reverse", sampled([False, True]))
@pytest.mark.parametrize("share, count", sampled([(1 / 3, 2), (0.999, 6), (0.1, 1), (0.75, 4)], 2))
def test_a_share_of_the_layers_is_recomputed_and_the_others_kept(share, count, reverse):
    """Of six: the loop is cut where the share ends, and the layers behind keep the stacks of the step."""
    leaves, tree = jax.tree.flatten(arguments())

    def run(*leaves):
        return jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves), reverse=reverse))

    closed = jax.make_jaxpr(run)(*leaves)
    again = recompute_in_loops(closed, LoopRemat(policy="all", share=share))
    (_, as_it_is), _ = loops_of(closed)
    found, carry_and_mean = loops_of(again), [1, BATCH * WIDTH]
    lengths = [count, LAYERS - count, LAYERS - count, count] if count < LAYERS else [LAYERS, LAYERS]
    assert [length for length, _ in found] == lengths
    assert found[0][1] == carry_and_mean
    if count < LAYERS:
        assert found[1][1] == as_it_is
    expected, found = (jax.jit(jax.extend.core.jaxpr_as_fun(of))(*leaves) for of in (closed, again))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_the_other_layers_may_keep_more():
    """Two layers keep their carry, and the four behind them both dots besides."""
    leaves, tree = jax.tree.flatten(arguments())

    def run(*leaves):
        return jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves)))

    closed = jax.make_jaxpr(run)(*leaves)
    again = recompute_in_loops(closed, LoopRemat(policy="all", share=1 / 3, rest="contractions"))
    found = loops_of(again)
    assert found[0] == (2, [1, BATCH * WIDTH])
    assert found[1] == (4, sorted([1, BATCH * WIDTH, BATCH * 4 * WIDTH, BATCH * WIDTH]))
    expected, found = (jax.jit(jax.extend.core.jaxpr_as_fun(of))(*leaves) for of in (closed, again))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_values_that_the_step_names_are_kept():
    """Two of three values of a layer have a name: the carry and these are stacked."""

    def loss(w, x):
        def body(x, w):
            x = checkpoint_name(jnp.tanh(x @ w), "projected")
            y = jnp.sin(x) * jnp.cos(x)
            return jnp.tanh(checkpoint_name(y[:, : WIDTH // 2], "half") @ w[: WIDTH // 2]), None

        return jnp.sum(jax.lax.scan(body, x, w)[0])

    w, x = jnp.ones((LAYERS, WIDTH, WIDTH)) / WIDTH, jnp.ones((BATCH, WIDTH))
    closed = jax.make_jaxpr(jax.value_and_grad(loss))(w, x)
    again = recompute_in_loops(closed, LoopRemat(policy="named"))
    kept = [BATCH * WIDTH // 2, BATCH * WIDTH, BATCH * WIDTH]
    assert stacks_of(again) == kept
    assert sum(stacks_of(closed)) > sum(kept)
    expected, found = (jax.extend.core.jaxpr_as_fun(of)(w, x) for of in (closed, again))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_second_derivatives_are_those_of_the_step():
    """Six loops, of which some leave stacks to one loop and read those of another."""

    def penalised(w, x):
        def loss(w):
            return jnp.sum(jax.lax.scan(lambda h, w: (jnp.sin(jnp.tanh(h @ w)) * h, None), x, w)[0] ** 2)

        return loss(w) + jnp.sum(jax.grad(loss)(w) ** 2)

    w = jax.random.normal(jax.random.key(1), (LAYERS, WIDTH, WIDTH)) / 2
    x = jax.random.normal(jax.random.key(2), (BATCH, WIDTH))
    closed = jax.make_jaxpr(jax.value_and_grad(penalised))(w, x)
    again = recompute_in_loops(closed, LoopRemat(policy="all", share=0.5, rest="contractions"))
    assert again is not closed
    expected, found = (jax.jit(jax.extend.core.jaxpr_as_fun(of))(w, x) for of in (closed, again))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("share", [1, 0.5])
def test_layers_are_recomputed_inside_of_a_loop_that_accumulates(share):
    """Gradients of slices of the batch are added up in a loop around both passes."""
    weights, x, key = arguments()
    leaves, tree = jax.tree.flatten((weights, jnp.stack([x, 2 * x, 3 * x]), key))

    def run(*leaves):
        weights, slices, key = jax.tree.unflatten(tree, leaves)

        def add(total, x):
            return jax.tree.map(jnp.add, total, step(weights, x, key)[1]), None

        zeros = {name: jnp.zeros_like(w) for name, w in weights.items() if name != "number"}
        return jax.tree.leaves(jax.lax.scan(add, zeros, slices)[0])

    closed = jax.make_jaxpr(run)(*leaves)
    again = recompute_in_loops(closed, LoopRemat(policy="all", share=share))
    assert sum(inner_stacks_of(again)) < sum(inner_stacks_of(closed))
    expected, found = (jax.jit(jax.extend.core.jaxpr_as_fun(of))(*leaves) for of in (closed, again))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def inner_stacks_of(closed):
    """Elements of the stacks that the loops over layers return, in the body of the first loop."""
    (outer,) = [eqn for eqn in flat(closed.jaxpr) if eqn.primitive.name == "scan"]
    inner = [eqn for eqn in flat(outer.params["jaxpr"].jaxpr) if eqn.primitive.name == "scan"]
    forward = inner[: len(inner) // 2]
    return [math.prod(v.aval.shape) for eqn in forward for v in eqn.outvars]


def test_a_step_that_names_nothing_has_no_named_values_to_keep():
    leaves, tree = jax.tree.flatten(arguments())
    closed = jax.make_jaxpr(lambda *leaves: jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves))))(*leaves)
    assert recompute_in_loops(closed, LoopRemat(policy="named")) is closed


def test_layers_that_are_checkpointed_stay_as_they_are():
    leaves, tree = jax.tree.flatten(arguments())

    def run(*leaves):
        return jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves), around=jax.checkpoint))

    closed = jax.make_jaxpr(run)(*leaves)
    assert recompute_in_loops(closed, LoopRemat(policy="all")) is closed


def test_a_stack_that_the_step_returns_is_kept():
    def run(w, x):
        def loss(w):
            def body(y, w):
                y = jnp.tanh(y @ w)
                return y, y

            y, all_of_them = jax.lax.scan(body, x, w)
            return jnp.sum(y), all_of_them

        return jax.value_and_grad(loss, has_aux=True)(w)

    w, x = jnp.ones((LAYERS, WIDTH, WIDTH)) / WIDTH, jnp.ones((BATCH, WIDTH))
    closed = jax.make_jaxpr(run)(w, x)
    again = recompute_in_loops(closed, LoopRemat(policy="all"))
    expected, found = (jax.extend.core.jaxpr_as_fun(of)(w, x) for of in (closed, again))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def tower(x, w):
    """A loop over layers that stacks a value of each."""

    def body(h, w):
        h = jnp.tanh(h @ w)
        return h, jnp.sin(h) * jnp.cos(h) * jnp.tanh(h + 1)

    return jax.lax.scan(body, x, w)[1]


def two_towers(w, x):
    """A third loop reads the stacks of two others, and so does its gradient."""
    stacks = tower(x, w[0]), tower(2 * x, w[1])
    return jax.lax.scan(lambda c, pair: (c + jnp.sum(pair[0] * pair[1]), None), jnp.zeros(()), stacks)[0]


def one_after_the_other(w, x):
    """The second loop reads the stack of the first one, and the third that of the second."""

    def body(h, both):
        stack, w = both
        h = jnp.tanh(h @ w + jnp.sin(stack))
        return h, jnp.cos(h) * jnp.tanh(h + 1)

    first = tower(x, w[0])
    second = jax.lax.scan(body, x, (first, w[1]))[1]
    return jnp.sum(jax.lax.scan(body, x, (second, w[0]))[0])


@pytest.mark.parametrize("share", sampled([0.5, 1]))
@pytest.mark.parametrize("policy", sampled(["all", "contractions"]))
@pytest.mark.parametrize("loss", sampled([one_after_the_other, two_towers]))
def test_a_loop_may_read_stacks_of_several_and_leave_some_itself(loss, policy, share):
    w = jax.random.normal(jax.random.key(1), (2, LAYERS, WIDTH, WIDTH)) / 2
    x = jax.random.normal(jax.random.key(2), (BATCH, WIDTH))
    closed = jax.make_jaxpr(jax.value_and_grad(loss))(w, x)
    again = recompute_in_loops(closed, LoopRemat(policy=policy, share=share))
    assert again is not closed
    expected, found = (jax.extend.core.jaxpr_as_fun(of)(w, x) for of in (closed, again))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
