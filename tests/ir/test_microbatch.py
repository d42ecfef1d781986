"""Steps rewritten to work through their batch in slices: equal to the step as it is, or refused with the line."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxplan.core import _compat
from jaxplan.ir import trace, turning_point
from jaxplan.ir.microbatch import NotSeparableError, split_batch
from jaxplan.ir.microbatch._loop import cut, fronted, joined, placed
from tests.sampling import sampled

NUM = 4


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def sliced(step, args, dims):
    """Closed jaxprs of a step and of the same in slices; ``dims`` has the batch dimension of each leaf, or None."""
    leaves, tree = jax.tree.flatten(args)
    along = jax.tree.flatten(dims, is_leaf=lambda dim: dim is None)[0]

    def flat(*leaves):
        return jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves)))

    def smaller(leaf, dim):
        shape = [size // NUM if d == dim else size for d, size in enumerate(leaf.shape)]
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

    full = jax.make_jaxpr(flat)(*leaves)
    small = jax.make_jaxpr(flat)(*map(smaller, leaves, along))
    batch = {i: dim for i, dim in enumerate(along) if dim is not None}
    return leaves, full, split_batch(full, small, batch, NUM)


def assert_equal(step, args, dims, *, num_loops=1, tolerance=2e-6):
    leaves, full, loops = sliced(step, args, dims)
    scans = [eqn for eqn in loops.jaxpr.eqns if eqn.primitive.name == "scan" and eqn.params["length"] == NUM]
    assert len(scans) == num_loops
    expected, found = (jax.jit(jax.extend.core.jaxpr_as_fun(of))(*leaves) for of in (full, loops))
    for a, b in zip(found, expected, strict=True):
        scale = max(1e-6, float(jnp.max(jnp.abs(b.astype(jnp.float32)))))
        np.testing.assert_allclose(
            a.astype(jnp.float32), b.astype(jnp.float32), rtol=0, atol=tolerance * scale
        )


W = {"up": normal(0, 16, 32) / 4, "bias": normal(1, 32), "down": normal(2, 32, 8) / 6}
X, Y = normal(3, 32, 16), normal(4, 32, 8)
NONE = dict.fromkeys(W)


def forward(w, x):
    return jnp.tanh(x @ w["up"] + w["bias"]) @ w["down"]


def trained(loss):
    def step(w, *batch):
        value, grads = jax.value_and_grad(loss)(w, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads), value

    return step


def test_weight_decay_in_the_loss_counts_once():
    def loss(w, x, y):
        return jnp.mean((forward(w, x) - y) ** 2) + 0.1 * sum(jnp.sum(p**2) for p in jax.tree.leaves(w))

    assert_equal(trained(loss), (W, X, Y), (NONE, 0, 0))


@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_the_backward_pass_begins_in_the_loop(decay):
    """Zeros that the gradient of a table is added to, and the gradient of a weight decay, come before the loop."""
    table, ids = normal(5, 12, 16), jnp.arange(32) % 12

    def step(w, table, ids, y):
        def loss(w, table):
            return jnp.mean((forward(w, table[ids]) - y) ** 2) + decay * jnp.sum(w["up"] ** 2)

        return jax.grad(loss, (0, 1))(w, table)

    leaves, full, loops = sliced(step, (W, table, ids, Y), (NONE, None, 0, 0))
    assert any("transpose" in str(eqn.source_info.name_stack) for eqn in full.jaxpr.eqns)
    program = trace(jax.extend.core.jaxpr_as_fun(loops), leaves)
    (loop,) = (region for region in program.regions if region.trips == NUM)
    assert loop.start < turning_point(program) < loop.stop


def test_a_normaliser_of_the_data_takes_a_second_loop():
    """The gradient of a masked mean needs the number of examples that count, a sum over the whole batch."""
    mask = (jnp.arange(32) % 3 == 0).astype(jnp.float32)

    def loss(w, x, y, mask):
        return jnp.sum(mask[:, None] * (forward(w, x) - y) ** 2) / jnp.sum(mask)

    assert_equal(trained(loss), (W, X, Y, mask), (NONE, 0, 0, 0), num_loops=2)


def test_statistics_of_the_batch_take_a_loop_for_each_sum_that_another_needs():
    """One batch norm: mean, variance, the loss, and two sums in its gradient."""

    def loss(w, x, y):
        h = x @ w["up"]
        h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5)
        return jnp.mean((jnp.tanh(h) @ w["down"] - y) ** 2)

    assert_equal(trained(loss), (W, X, Y), (NONE, 0, 0), num_loops=5, tolerance=2e-5)


def test_dropout_draws_the_same_mask_as_the_whole_batch():
    def loss(w, key, x, y):
        h = jnp.tanh(x @ w["up"])
        return jnp.mean((jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h, 0) @ w["down"] - y) ** 2)

    assert_equal(trained(loss), (W, jax.random.key(7), X, Y), (NONE, None, 0, 0))


def test_optimizers_clip_the_sum_and_outputs_of_each_example_come_back_in_order():
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-3))
    slots = optimizer.init(W)

    def step(w, slots, x, y):
        value, grads = jax.value_and_grad(lambda w: jnp.mean((forward(w, x) - y) ** 2))(w)
        updates, slots = optimizer.update(grads, slots, w)
        hits = jnp.sum(jnp.argmax(forward(w, x), -1) == jnp.argmax(y, -1))
        return optax.apply_updates(w, updates), slots, value, forward(w, x), hits

    assert_equal(step, (W, slots, X, Y), (NONE, jax.tree.map(lambda _: None, slots), 0, 0), tolerance=2e-5)


def language_model(p, tokens):
    h = p["table"][tokens]

    def layer(h, w):
        scores = jnp.einsum("bsd,btd->bst", h @ w["query"], h @ w["key"])
        mask = jnp.tril(jnp.ones(scores.shape[1:], bool))
        h = h + jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ h
        return h / jnp.sqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6), None

    h, _ = jax.lax.scan(jax.checkpoint(layer), h, p["layers"])
    logits = h.reshape(-1, h.shape[-1]) @ p["table"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens.reshape(-1)).mean()


@pytest.mark.parametrize("dim", sampled([1, 0]))
def test_loops_over_layers_with_remat_whichever_dimension_is_the_batch(dim):
    params = {
        "table": normal(5, 50, 16) / 4,
        "layers": {"query": normal(6, 3, 16, 16) / 4, "key": normal(7, 3, 16, 16) / 4},
    }
    tokens = jax.random.randint(jax.random.key(8), (8, 12) if dim == 0 else (12, 8), 0, 50)

    def loss(p, tokens):
        return language_model(p, tokens if dim == 0 else tokens.T)

    assert_equal(trained(loss), (params, tokens), (jax.tree.map(lambda _: None, params), dim))


def test_a_counter_of_a_loop_over_examples_is_not_added_up():
    def step(w, x, y):
        def layer(carry, _):
            h, count = carry
            return (jnp.tanh(h @ w["up"]) @ w["up"].T, count + 1), count * 2.0

        (h, count), marks = jax.lax.scan(layer, (x, 5), None, length=3)
        return jnp.mean((h @ w["up"] @ w["down"] - y) ** 2), count, marks

    assert_equal(step, (W, X, Y), (NONE, 0, 0))


@pytest.mark.parametrize("wrap", [jax.checkpoint, lambda f: lambda h, k: jax.lax.scan(f, h, k[None])])
def test_random_bits_inside_of_a_loop_or_checkpoint_are_refused(wrap):
    """Every slice would draw the same."""

    def loss(w, key, x, y):
        def layer(h, key):
            return jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h, 0), None

        h, _ = wrap(layer)(x @ w["up"], key)
        return jnp.mean((jnp.tanh(h) @ w["down"] - y) ** 2)

    with pytest.raises(NotSeparableError, match="numbers or draws along the batch"):
        sliced(trained(loss), (W, jax.random.key(7), X, Y), (NONE, None, 0, 0))


def test_short_floats_are_added_up_in_float32():
    """Sums of bfloat16 in slices are as near to float64 as those of the whole batch."""
    w, x, y = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (W, X, Y))

    def loss(w, x, y):
        return jnp.mean((forward(w, x) - y).astype(jnp.float32) ** 2)

    _, _, loops = sliced(trained(loss), (w, x, y), (NONE, 0, 0))
    (scan,) = [eqn for eqn in loops.jaxpr.eqns if eqn.primitive.name == "scan"]
    _, num_carry = _compat.scan_counts(scan.params, len(scan.invars))
    carries = [var.aval.dtype for var in scan.outvars[:num_carry]]
    assert set(carries) == {np.dtype("float32")}
    assert_equal(trained(loss), (w, x, y), (NONE, 0, 0), tolerance=1e-2)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda w, x, y: jnp.mean(jax.nn.log_softmax(forward(w, x) @ y.T).diagonal()), "relates examples"),
        (lambda w, x, y: jnp.mean(jnp.sort(forward(w, x), 0) - y), "mixes examples"),
        (lambda w, x, y: jnp.max((forward(w, x) - y) ** 2), "another way than by a sum.*test_microbatch"),
        (lambda w, x, y: jnp.mean(jnp.cumsum(forward(w, x), 0) - y), "examples"),
        (lambda w, x, y: jnp.mean((forward(w, x)[::-1] - y) ** 2), "examples"),
    ],
)
def test_examples_that_depend_on_each_other_are_refused(loss, message):
    with pytest.raises(NotSeparableError, match=f"(?s){message}"):
        sliced(trained(loss), (W, X, Y), (NONE, 0, 0))


@pytest.mark.parametrize(("dim", "outer"), [(0, 1), (1, 1), (0, 3), (1, 3)])
def test_slices_concatenate_to_the_operand(dim, outer):
    """Slice k holds the examples k * n to (k + 1) * n of the batch, wherever that stands in its dimension."""
    x = jnp.arange(12 * 24).reshape(12, 24)
    slices = cut(x, dim, outer, 4)
    np.testing.assert_array_equal(joined(slices, dim, outer), x)
    one = placed(slices[2], dim, outer)
    assert one.shape == tuple(size // 4 if d == dim else size for d, size in enumerate(x.shape))
    np.testing.assert_array_equal(fronted(one, dim, outer), slices[2])
    apart = np.moveaxis(np.asarray(x), dim, 0).reshape(outer, -1, x.shape[1 - dim])
    n = apart.shape[1] // 4
    expected = apart[:, 2 * n : 3 * n].reshape(-1, x.shape[1 - dim])
    np.testing.assert_array_equal(np.moveaxis(np.asarray(one), dim, 0), expected)


def test_sums_that_one_loop_adds_up_are_where_the_next_begins():
    """A recurrent kernel is read in two loops over time; its gradient goes through both backward loops."""

    def backward(kernel, xs):
        def add(total, x):
            return total + x.T @ jnp.tanh(x @ kernel), None

        half, _ = jax.lax.scan(add, jnp.zeros_like(kernel), xs[:2])
        return kernel - jax.lax.scan(add, half, xs[2:])[0]

    args = normal(0, 3, 3), normal(1, 4, 8, 3)
    assert_equal(backward, args, (None, 1))


def test_a_loop_that_reads_a_sum_before_it_is_complete_is_refused():
    def step(kernel, xs):
        half, _ = jax.lax.scan(lambda total, x: (total + x.T @ x, None), jnp.zeros_like(kernel), xs[:2])
        return jax.lax.scan(lambda total, x: (total @ total + x.T @ x, None), half, xs[2:])[0]

    with pytest.raises(NotSeparableError, match="before it is complete"):
        sliced(step, (normal(0, 3, 3), normal(1, 4, 8, 3)), (None, 1))


def test_a_sum_that_something_else_reads_too_is_not_added_to_in_slices():
    """Each slice would begin with all of the first loop's sum."""

    def step(kernel, xs):
        half, _ = jax.lax.scan(lambda total, x: (total + x.T @ x, None), jnp.zeros_like(kernel), xs[:2])
        return half, jax.lax.scan(lambda total, x: (total + x.T @ x, None), half, xs[2:])[0]

    with pytest.raises(NotSeparableError, match="before it is complete"):
        sliced(step, (normal(0, 3, 3), normal(1, 4, 8, 3)), (None, 1))
