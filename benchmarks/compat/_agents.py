"""Losses of reinforcement learning: IMPALA of RLax, PPO of Brax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.compat._case import Case, stateless


def impala(small: bool) -> Case:
    """`rlax` V-trace, policy gradient and entropy losses over trajectories, on a Haiku network of images."""
    import haiku as hk
    import rlax

    count, length, side, actions, widths = (8, 4, 16, 4, (4, 8)) if small else (64, 32, 64, 16, (32, 64))

    def forward(image: jax.Array) -> tuple[jax.Array, jax.Array]:
        layers = [layer for w in widths for layer in (hk.Conv2D(w, 4, 2), jax.nn.relu)]
        hidden = hk.Sequential([*layers, hk.Flatten(), hk.Linear(16 * widths[-1]), jax.nn.relu])(image)
        return hk.Linear(actions)(hidden), hk.Linear(1)(hidden)[:, 0]

    net = hk.without_apply_rng(hk.transform(lambda image: hk.BatchApply(forward)(image)))

    def one(logits: Any, values: Any, behaviour: Any, action: Any, reward: Any) -> jax.Array:
        ratio = rlax.categorical_importance_sampling_ratios(logits[:-1], behaviour[:-1], action[:-1])
        discount = jnp.full(reward[1:].shape, 0.99)
        found = rlax.vtrace_td_error_and_advantage(values[:-1], values[1:], reward[1:], discount, ratio)
        weights = jnp.ones_like(reward[1:])
        policy = rlax.policy_gradient_loss(logits[:-1], action[:-1], found.pg_advantage, weights)
        return 0.5 * jnp.mean(found.errors**2) + policy + 0.01 * rlax.entropy_loss(logits[:-1], weights)

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        logits, values = net.apply(params, batch["image"])
        return jnp.mean(jax.vmap(one)(logits, values, batch["logits"], batch["action"], batch["reward"]))

    def batch(key: jax.Array) -> Any:
        keys, shape = jax.random.split(key, 4), (count, length)
        return {
            "image": jax.random.normal(keys[0], (*shape, side, side, 4)),
            "logits": jax.random.normal(keys[1], (*shape, actions)),
            "action": jax.random.randint(keys[2], shape, 0, actions),
            "reward": jax.random.normal(keys[3], shape),
        }

    return stateless(lambda key: net.init(key, batch(key)["image"]), loss, batch)


def ppo(small: bool) -> Case:
    """`brax` PPO: its loss, with generalised advantages, and its policy and value networks."""
    from brax.training import types
    from brax.training.agents.ppo import losses, networks

    count, length, seen, actions, width = (16, 4, 8, 2, 16) if small else (2048, 32, 256, 32, 1024)
    nets = networks.make_ppo_networks(
        seen, actions, policy_hidden_layer_sizes=(width,) * 3, value_hidden_layer_sizes=(width,) * 3
    )

    def init(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return {"policy": nets.policy_network.init(first), "value": nets.value_network.init(second)}

    def batch(key: jax.Array) -> Any:
        keys, shape = jax.random.split(key, 5), (count, length)
        action = jax.random.normal(keys[1], (*shape, actions))
        return types.Transition(
            observation=jax.random.normal(keys[0], (*shape, seen)),
            action=jnp.tanh(action),
            reward=jax.random.normal(keys[2], shape),
            discount=jnp.ones(shape),
            next_observation=jax.random.normal(keys[3], (*shape, seen)),
            extras={
                "state_extras": {"truncation": jnp.zeros(shape)},
                "policy_extras": {
                    "raw_action": action,
                    "log_prob": jax.random.normal(keys[4], shape),
                    "distribution_params": jax.random.normal(keys[4], (*shape, 2 * actions)),
                },
            },
        )

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        both = losses.PPONetworkParams(policy=params["policy"], value=params["value"])
        return losses.compute_ppo_loss(both, None, batch, key, nets)[0]

    return stateless(init, loss, batch)
