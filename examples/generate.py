"""Generate text with a prefill and a cached decode step, planned together by jaxplan, and check it against one device.

    python examples/generate.py                       # 8 virtual CPU devices, or the GPUs there are
    python examples/generate.py --devices 2 --choose leanest
    python examples/generate.py --layers 8 --width 512 --heads 8 --batch 64 --tokens 128

The two steps share the weights, and the decode step takes the cache that the prefill returns. `jaxplan.plan_together`
lays both out once for both steps, the decode step counted once for each new token, so that nothing moves between two
calls. Nothing in the model knows of devices. At the end the same text is generated on one device, and the program exits
with 1 if a token differs.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from train_gpt import VOCABULARY, make_batches, read_corpus, say, set_up_devices

import jaxplan

Weights = dict[str, Any]
Cache = list[dict[str, jax.Array]]


def make_weights(key: jax.Array, num_layers: int, width: int, num_heads: int, length: int) -> Weights:
    """Random weights of a pre-norm decoder; attention kernels are (width, heads, width of a head)."""
    keys = iter(jax.random.split(key, 2 + 6 * num_layers))

    def normal(*shape: int, fan_in: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / fan_in**0.5

    head = width // num_heads
    layers = [
        {
            "query": normal(width, num_heads, head, fan_in=width),
            "key": normal(width, num_heads, head, fan_in=width),
            "value": normal(width, num_heads, head, fan_in=width),
            "out": normal(num_heads, head, width, fan_in=width),
            "up": normal(width, 4 * width, fan_in=width),
            "down": normal(4 * width, width, fan_in=4 * width),
        }
        for _ in range(num_layers)
    ]
    return {
        "embed": normal(VOCABULARY, width, fan_in=1),
        "positions": normal(length, width, fan_in=1),
        "layers": layers,
    }


def norm(x: jax.Array) -> jax.Array:
    """Scale each vector to a mean square of 1."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention of (batch, new, heads, head) to (batch, length, heads, head), under a mask (new, length)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / queries.shape[-1] ** 0.5
    scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), values)


def apply_layer(
    layer: Weights, x: jax.Array, cache: dict[str, jax.Array], position: jax.Array | int
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """One layer on new vectors (batch, new, width) from a position on; returns the cache with their entries."""
    hidden = norm(x)
    queries = jnp.einsum("bsw,whd->bshd", hidden, layer["query"])
    new = {
        "keys": jnp.einsum("bsw,whd->bshd", hidden, layer["key"]),
        "values": jnp.einsum("bsw,whd->bshd", hidden, layer["value"]),
    }
    cache = {
        name: jax.lax.dynamic_update_slice_in_dim(cache[name], new[name], position, axis=1) for name in cache
    }
    places = jnp.arange(cache["keys"].shape[1])
    mask = places[None, :] <= position + jnp.arange(x.shape[1])[:, None]
    x = x + jnp.einsum("bshd,hdw->bsw", attend(queries, cache["keys"], cache["values"], mask), layer["out"])
    return x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"], cache


def forward(
    weights: Weights, cache: Cache, tokens: jax.Array, position: jax.Array | int
) -> tuple[jax.Array, Cache]:
    """The most likely token behind new ones (batch, new), and the cache with their entries."""
    positions = jax.lax.dynamic_slice_in_dim(weights["positions"], position, tokens.shape[1])
    x = weights["embed"][tokens] + positions
    filled = []
    for layer, of in zip(weights["layers"], cache, strict=True):
        x, of = apply_layer(layer, x, of, position)
        filled.append(of)
    logits = norm(x[:, -1]) @ weights["embed"].T
    return jnp.argmax(logits, axis=-1), filled


def prefill(weights: Weights, prompt: jax.Array) -> tuple[jax.Array, Cache]:
    """The first new token of each prompt (batch, length of the prompts), and a cache with room for all others."""
    length, (_, num_heads, head) = weights["positions"].shape[0], weights["layers"][0]["key"].shape
    empty = jnp.zeros((prompt.shape[0], length, num_heads, head))
    return forward(weights, [{"keys": empty, "values": empty} for _ in weights["layers"]], prompt, 0)


def decode(weights: Weights, cache: Cache, token: jax.Array, position: jax.Array) -> tuple[jax.Array, Cache]:
    """The token behind one token of each text (batch,), and the cache with its entry."""
    return forward(weights, cache, token[:, None], position)


def generate(
    title: str, prefill: Callable, decode: Callable, weights: Weights, prompt: np.ndarray, num_tokens: int
) -> np.ndarray:
    """Extend each prompt by the most likely tokens, (batch, tokens), and say how long a token takes."""
    token, cache = prefill(weights, prompt)
    found = [token]
    started = time.perf_counter()
    for position in range(prompt.shape[1], prompt.shape[1] + num_tokens - 1):
        if len(found) == 2:  # the first call of the decode step compiled it
            jax.block_until_ready(token)
            started = time.perf_counter()
        token, cache = decode(weights, cache, token, jnp.array(position, jnp.int32))
        found.append(token)
    jax.block_until_ready(token)
    seconds = (time.perf_counter() - started) / max(1, num_tokens - 2)
    say(f"{title}: {seconds * 1e3:.1f} ms for a token of {len(prompt)} texts")
    return np.stack(found, axis=1)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices without GPUs")
    parser.add_argument("--choose", default="fastest", help="fastest, knee, leanest, a number, or a reference")
    parser.add_argument("--memory", help="limit per device, such as 2GiB")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64, help="bytes of each prompt")
    parser.add_argument("--tokens", type=int, default=32, help="bytes to generate for each")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    set_up_devices(options.devices)
    prompt = next(make_batches(read_corpus(), options.batch, options.prompt, 1))["inputs"]
    length = options.prompt + options.tokens
    make = functools.partial(
        make_weights,
        num_layers=options.layers,
        width=options.width,
        num_heads=options.heads,
        length=length,
    )
    joint = plan(options, make, prompt)
    weights = joint["prefill"].init(make, jax.random.key(0))
    several = generate(
        "planned", joint["prefill"].jit(), joint["decode"].jit(), weights, prompt, options.tokens
    )
    weights = jax.device_put(make(jax.random.key(0)), jax.devices()[0])
    alone = generate(
        "one device", jax.jit(prefill), jax.jit(decode, donate_argnums=1), weights, prompt, options.tokens
    )
    return compare(several, alone)


def plan(options: argparse.Namespace, make: Callable, prompt: np.ndarray) -> jaxplan.JointPlan:
    """Plan both steps from shapes alone, the decode step as often as it runs, and print the plans."""
    weights = jax.eval_shape(make, jax.random.key(0))
    token, cache = jax.eval_shape(prefill, weights, prompt)
    steps = {
        "prefill": (prefill, (weights, prompt)),
        "decode": (decode, (weights, cache, token, jax.ShapeDtypeStruct((), jnp.int32))),
    }
    say(f"{jax.device_count()} x {jax.devices()[0].device_kind}; planning a prefill and {options.tokens} tokens ...")
    frontier = jaxplan.plan_together(steps, weights={"decode": options.tokens}, memory=options.memory)
    joint = frontier.choose(options.choose)
    say(frontier.table(max_rows=6))
    say(joint.explain())
    return joint


def compare(several: np.ndarray, alone: np.ndarray) -> int:
    """Print how many tokens are equal and return 0 if all are, else 1."""
    equal = several == alone
    say(f"{equal.sum()} of {equal.size} tokens equal those of one device")
    return 0 if equal.all() else 1


if __name__ == "__main__":
    sys.exit(main())
