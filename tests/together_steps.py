"""Pairs and triples of small steps that share state, as people write them; used by the tests of `plan_together`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

WIDTH, HIDDEN, BATCH = 32, 64, 16
DECAY, RATE = 0.9, 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Together:
    """Steps that share state.

    Attributes:
      steps: by name, in the order of a run, with concrete arguments.
      arguments, results: names of the values that a step takes and returns; ``state.params`` is an entry of ``state``.
      shared: the subtrees that are one, each a step and the root of its path.
    """

    steps: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]]
    arguments: Mapping[str, tuple[str, ...]]
    results: Mapping[str, tuple[str, ...]]
    shared: frozenset[frozenset[tuple[str, str]]]


def _params(key: int, width: int = WIDTH) -> dict[str, jax.Array]:
    up, down = jax.random.split(jax.random.key(key))
    return {
        "up": jax.random.normal(up, (width, HIDDEN)) / width**0.5,
        "down": jax.random.normal(down, (HIDDEN, width)) / HIDDEN**0.5,
    }


def _batch(key: int, size: int = BATCH) -> dict[str, jax.Array]:
    x, y = jax.random.split(jax.random.key(key))
    return {"x": jax.random.normal(x, (size, WIDTH)), "y": jax.random.normal(y, (size, WIDTH))}


def _forward(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"]


def _loss(params, batch):
    return jnp.mean((_forward(params, batch["x"]) - batch["y"]) ** 2)


def _sgd(params, slots, gradients):
    slots = jax.tree.map(lambda m, g: DECAY * m + g, slots, gradients)
    return jax.tree.map(lambda p, m: p - RATE * m, params, slots), slots


def _zeros(params):
    return jax.tree.map(jnp.zeros_like, params)


def train_and_evaluate() -> Together:
    """Training, and an evaluation with another batch size and another name for the parameters."""

    def train(state, batch):
        params, slots = _sgd(state["params"], state["slots"], jax.grad(_loss)(state["params"], batch))
        return {"params": params, "slots": slots}

    def evaluate(model, batch):
        return _loss(model, batch)

    params = _params(0)
    state = {"params": params, "slots": _zeros(params)}
    return Together(
        steps={"train": (train, (state, _batch(1))), "eval": (evaluate, (params, _batch(2, 2 * BATCH)))},
        arguments={"train": ("state", "batch"), "eval": ("state.params", "test")},
        results={"train": ("state",), "eval": ("loss",)},
        shared=frozenset({frozenset({("train", "state/params"), ("eval", "model")})}),
    )


def accumulate_and_apply() -> Together:
    """Gradients are added up over several batches, then applied."""

    def accumulate(params, gradients, batch):
        return jax.tree.map(jnp.add, gradients, jax.grad(_loss)(params, batch))

    def apply(params, slots, gradients):
        return (*_sgd(params, slots, gradients), jax.tree.map(jnp.zeros_like, gradients))

    params = _params(0)
    zeros = _zeros(params)
    return Together(
        steps={
            "accumulate": (accumulate, (params, zeros, _batch(1))),
            "apply": (apply, (params, zeros, zeros)),
        },
        arguments={"accumulate": ("params", "gradients", "batch"), "apply": ("params", "slots", "gradients")},
        results={"accumulate": ("gradients",), "apply": ("params", "slots", "gradients")},
        shared=frozenset(
            frozenset({("accumulate", name), ("apply", name)}) for name in ("params", "gradients")
        ),
    )


def average() -> Together:
    """Training, an exponential average of its parameters, and an evaluation of the average."""

    def train(params, slots, batch):
        return _sgd(params, slots, jax.grad(_loss)(params, batch))

    def update(ema, params):
        return jax.tree.map(lambda e, p: DECAY * e + (1 - DECAY) * p, ema, params)

    def evaluate(ema, batch):
        return _loss(ema, batch)

    params = _params(0)
    return Together(
        steps={
            "train": (train, (params, _zeros(params), _batch(1))),
            "ema": (update, (params, params)),
            "eval": (evaluate, (params, _batch(2))),
        },
        arguments={"train": ("params", "slots", "batch"), "ema": ("ema", "params"), "eval": ("ema", "test")},
        results={"train": ("params", "slots"), "ema": ("ema",), "eval": ("loss",)},
        shared=frozenset(
            {frozenset({("train", "params"), ("ema", "params")}), frozenset({("ema", "ema"), ("eval", "ema")})}
        ),
    )


def two_networks() -> Together:
    """A generator and a discriminator of one structure, each with an optimizer of its own."""

    def score(discriminator, x):
        return _forward(discriminator, x).mean(axis=-1)

    def train_discriminator(generator, discriminator, slots_d, batch):
        def loss(d):
            fake = _forward(generator, batch["y"])
            return jnp.mean(jax.nn.softplus(score(d, fake)) + jax.nn.softplus(-score(d, batch["x"])))

        return _sgd(discriminator, slots_d, jax.grad(loss)(discriminator))

    def train_generator(generator, discriminator, slots_g, noise):
        def loss(g):
            return jnp.mean(jax.nn.softplus(-score(discriminator, _forward(g, noise))))

        return _sgd(generator, slots_g, jax.grad(loss)(generator))

    generator, discriminator = _params(0), _params(1)
    return Together(
        steps={
            "discriminator": (train_discriminator, (generator, discriminator, _zeros(discriminator), _batch(1))),
            "generator": (train_generator, (generator, discriminator, _zeros(generator), _batch(2)["x"])),
        },
        arguments={"discriminator": ("g", "d", "slots_d", "batch"), "generator": ("g", "d", "slots_g", "noise")},
        results={"discriminator": ("d", "slots_d"), "generator": ("g", "slots_g")},
        shared=frozenset(
            frozenset({("discriminator", name), ("generator", name)}) for name in ("generator", "discriminator")
        ),
    )


def policy_and_target() -> Together:
    """A policy that acts and is trained towards a target network, which follows it."""

    def act(policy, observation):
        return jnp.argmax(_forward(policy, observation), axis=-1)

    def train(policy, target, slots, batch):
        def loss(p):
            wanted = batch["y"].mean(axis=-1, keepdims=True) + DECAY * _forward(target, batch["x"])
            return jnp.mean((_forward(p, batch["x"]) - wanted) ** 2)

        return _sgd(policy, slots, jax.grad(loss)(policy))

    def follow(target, policy):
        return jax.tree.map(lambda t, p: DECAY * t + (1 - DECAY) * p, target, policy)

    policy = _params(0)
    return Together(
        steps={
            "act": (act, (policy, _batch(3)["x"])),
            "train": (train, (policy, _params(1), _zeros(policy), _batch(1))),
            "follow": (follow, (_params(1), policy)),
        },
        arguments={
            "act": ("policy", "observation"),
            "train": ("policy", "target", "slots", "batch"),
            "follow": ("target", "policy"),
        },
        results={"act": ("action",), "train": ("policy", "slots"), "follow": ("target",)},
        shared=frozenset(
            {
                frozenset({("act", "policy"), ("train", "policy"), ("follow", "policy")}),
                frozenset({("train", "target"), ("follow", "target")}),
            }
        ),
    )


def prefill_and_decode() -> Together:
    """A prompt that fills a cache, and steps that read it and write one entry."""
    length, vocabulary = 8, 64

    def prefill(weights, prompt):
        hidden = weights["embed"][prompt]
        cache = {"keys": hidden @ weights["key"], "values": hidden @ weights["value"]}
        return jnp.argmax(cache["values"][:, -1] @ weights["embed"].T, axis=-1), cache

    def decode(weights, cache, token, position):
        hidden = weights["embed"][token]
        new = {"keys": hidden @ weights["key"], "values": hidden @ weights["value"]}
        cache = {
            name: jax.lax.dynamic_update_slice_in_dim(of, new[name][:, None], position, axis=1)
            for name, of in cache.items()
        }
        scores = jax.nn.softmax(jnp.einsum("bd,bsd->bs", hidden, cache["keys"]), axis=-1)
        context = jnp.einsum("bs,bsd->bd", scores, cache["values"])
        return jnp.argmax(context @ weights["embed"].T, axis=-1), cache

    keys = jax.random.split(jax.random.key(0), 3)
    weights = {
        "embed": jax.random.normal(keys[0], (vocabulary, WIDTH)),
        "key": jax.random.normal(keys[1], (WIDTH, WIDTH)),
        "value": jax.random.normal(keys[2], (WIDTH, WIDTH)),
    }
    prompt = jax.random.randint(jax.random.key(1), (BATCH, length), 0, vocabulary)
    cache = jax.tree.map(lambda of: jnp.zeros(of.shape, of.dtype), jax.eval_shape(prefill, weights, prompt)[1])
    token, position = jnp.zeros((BATCH,), prompt.dtype), jnp.array(2)
    return Together(
        steps={"prefill": (prefill, (weights, prompt)), "decode": (decode, (weights, cache, token, position))},
        arguments={"prefill": ("weights", "prompt"), "decode": ("weights", "cache", "token", "position")},
        results={"prefill": ("token", "cache"), "decode": ("token", "cache")},
        shared=frozenset(
            {
                frozenset({("prefill", "weights"), ("decode", "weights")}),
                frozenset({("prefill", "result/1"), ("decode", "cache")}),
            }
        ),
    )


CASES = (
    accumulate_and_apply,
    average,
    prefill_and_decode,
    policy_and_target,
    train_and_evaluate,
    two_networks,
)
