"""`plan.init` creates state where the plan wants it; `abstract_args` and `batch_sharding` say where that is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import jaxplan

WIDTH, BATCH = 64, 16
OPTIMIZER = optax.adam(1e-3)


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(WIDTH)(nn.relu(nn.Dense(8 * WIDTH)(x)))


MODEL = Perceptron()
BATCH_SHAPE = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)


def loss_of(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(MODEL.apply(params, x) ** 2)


def step(params: Any, opt_state: Any, x: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def init(key: jax.Array) -> Any:
    params = MODEL.init(key, jnp.zeros((1, WIDTH)))
    return params, OPTIMIZER.init(params)


@pytest.fixture(scope="module")
def plan() -> Any:
    state = jax.eval_shape(init, jax.random.key(0))
    return jaxplan.plan(step, *state, BATCH_SHAPE, topology="cpu:8", memory="1GiB").leanest()


def share_of(plan: Any, num_arguments: int) -> int:
    """Bytes of the first arguments on one device, by the shapes of their shards."""
    arguments = jax.tree.leaves(plan.abstract_args()[:num_arguments])
    return sum(int(np.prod(a.sharding.shard_shape(a.shape))) * a.dtype.itemsize for a in arguments)


def bytes_per_device(arrays: Any) -> Counter[int]:
    found: Counter[int] = Counter()
    for array in arrays:
        for shard in array.addressable_shards:
            found[shard.device.id] += shard.data.nbytes
    return found


def test_state_is_created_in_shares_with_the_values_of_one_device(plan: Any) -> None:
    before = {id(array) for array in jax.live_arrays()}
    key = jax.random.key(0)
    params, opt_state = plan.init(init, key)
    live = [a for a in jax.live_arrays() if id(a) not in before and a.size > 2]
    share = share_of(plan, 2)
    assert max(bytes_per_device(live).values()) <= 1.1 * share
    expected = init(key)
    jax.tree.map(np.testing.assert_array_equal, (params, opt_state), expected)
    wanted = jax.tree.map(lambda a: a.sharding, plan.abstract_args()[:2])
    assert jax.tree.map(lambda a: a.sharding, (params, opt_state)) == wanted
    assert np.isfinite(plan.jit()(params, opt_state, np.ones((BATCH, WIDTH), np.float32))[2])


def test_optimizer_state_of_placed_parameters(plan: Any) -> None:
    params = plan.init(lambda key: init(key)[0], jax.random.key(0))
    opt_state = plan.init(OPTIMIZER.init, params)
    assert jax.tree.map(lambda a: a.sharding, opt_state) == plan.in_shardings()[1]


def test_batch_sharding_is_that_of_the_argument_that_is_no_state(plan: Any) -> None:
    assert plan.batch_sharding == plan.in_shardings()[2]
    assert plan.abstract_args()[2].sharding == plan.batch_sharding


def test_another_model_is_refused_by_path(plan: Any) -> None:
    with pytest.raises(jaxplan.ArgumentError, match=r"\['params'\]\['Dense_2'\]"):
        plan.init(lambda: {"params": {"Dense_2": {"kernel": jnp.zeros(3)}}})


def test_nnx_objects_are_created_sharded() -> None:
    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.up = nnx.Linear(WIDTH, 8 * WIDTH, rngs=rngs)
            self.down = nnx.Linear(8 * WIDTH, WIDTH, rngs=rngs)

    def train(model: Model, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m.down(nnx.relu(m.up(x))) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    def create() -> Any:
        model = Model(nnx.Rngs(0))
        return model, nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)

    x = np.ones((BATCH, WIDTH), np.float32)
    plan = jaxplan.plan(train, *create(), x, topology="cpu:8", memory="1GiB").leanest()
    model, optimizer = plan.init(create)
    assert len(model.up.kernel[...].sharding.device_set) == 8
    assert not model.up.kernel[...].sharding.is_fully_replicated
    np.testing.assert_array_equal(model.up.kernel[...], create()[0].up.kernel[...])
    assert np.isfinite(plan.jit()(model, optimizer, x))


def test_equinox_and_haiku_and_train_states() -> None:
    x = jnp.ones((BATCH, WIDTH))

    def equinox_step(model: Any, x: jax.Array) -> Any:
        loss, grads = eqx.filter_value_and_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), loss

    def equinox_init(key: jax.Array) -> Any:
        return eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, key=key)

    haiku = hk.without_apply_rng(hk.transform(lambda x: hk.Linear(WIDTH)(jax.nn.relu(hk.Linear(4 * WIDTH)(x)))))

    def haiku_step(params: Any, x: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: jnp.mean(haiku.apply(p, x) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    def linen_step(state: TrainState, x: jax.Array) -> Any:
        return state.apply_gradients(grads=jax.grad(loss_of)(state.params, x))

    def linen_init(key: jax.Array) -> TrainState:
        return TrainState.create(apply_fn=MODEL.apply, params=MODEL.init(key, x), tx=OPTIMIZER)

    for step_of, init_of in (
        (equinox_step, equinox_init),
        (haiku_step, lambda key: haiku.init(key, x)),
        (linen_step, linen_init),
    ):
        key = jax.random.key(1)
        plan = jaxplan.plan(step_of, init_of(key), x, topology="cpu:8", memory="1GiB").leanest()
        state = plan.init(init_of, key)
        arrays = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
        assert max(bytes_per_device(arrays).values()) <= 1.1 * share_of(plan, 1)
        assert not max(arrays, key=lambda a: a.size).sharding.is_fully_replicated
