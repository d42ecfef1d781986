"""A language model with experts that sort their tokens, planned as the step says, and with a sort for each device.

    python -m benchmarks.time.sorted_experts                        # four layers of 8 experts on h100:8
    python -m benchmarks.time.sorted_experts --topology v5e:2x4 --audit

The table has the fastest and the leanest plan of both programs, and references, each with its program.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxplan.core._progress import Progress
from jaxplan.frontend._options import Options
from jaxplan.ir import SortBlocks, StepGraph, analyse, sorted_graph, trace
from jaxplan.mesh import parse_topology
from jaxplan.plans._plan import Plan
from jaxplan.search._planner import _plan_graph

AS_WRITTEN = "one sort"
REFERENCES = ("data", "fsdp", "megatron", "experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Of a decoder in the form of Mixtral: top-2 experts with a gate, sorted by `jnp.argsort`."""

    num_layers: int = 4
    width: int = 1024
    num_heads: int = 16
    hidden: int = 3584
    num_experts: int = 8
    vocabulary: int = 32000
    batch_size: int = 32
    length: int = 1024


def build(config: Config) -> tuple[Any, tuple[Any, ...]]:
    """The train step with Adam, and its abstract arguments."""
    optimizer = optax.adam(1e-4)

    def attention(layer: Any, x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum("btd,dhe->bthe", x, layer[name]) for name in ("query", "key", "value"))
        return jnp.einsum("bthe,hed->btd", jax.nn.dot_product_attention(q, k, v, is_causal=True), layer["out"])

    def experts(layer: Any, x: jax.Array) -> jax.Array:
        weights, chosen = lax.top_k(jax.nn.softmax(x @ layer["router"]), 2)
        keys = chosen.reshape(-1)
        order = jnp.argsort(keys)
        counts = jnp.bincount(keys, length=config.num_experts)
        rows = x[order // 2]
        hidden = jax.nn.silu(lax.ragged_dot(rows, layer["gate"], counts)) * lax.ragged_dot(rows, layer["up"], counts)
        results = lax.ragged_dot(hidden, layer["down"], counts)[jnp.argsort(order)]
        return jnp.einsum("nkd,nk->nd", results.reshape(*chosen.shape, -1), weights)

    def norm(x: jax.Array) -> jax.Array:
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

    def loss(params: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        x = params["embedding"][tokens]
        for layer in params["layers"]:
            x = x + attention(layer, norm(x))
            x = x + experts(layer, norm(x).reshape(-1, config.width)).reshape(x.shape)
        logits = x @ params["embedding"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    def train_step(params: Any, state: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens, targets)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def shape(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    width, heads, num = config.width, config.num_heads, config.num_experts
    layer = {name: shape(width, heads, width // heads) for name in ("query", "key", "value")} | {
        "out": shape(heads, width // heads, width),
        "router": shape(width, num),
        "gate": shape(num, width, config.hidden),
        "up": shape(num, width, config.hidden),
        "down": shape(num, config.hidden, width),
    }
    params = {"embedding": shape(config.vocabulary, width), "layers": [layer] * config.num_layers}
    tokens = jax.ShapeDtypeStruct((config.batch_size, config.length), jnp.int32)
    return train_step, (params, jax.eval_shape(optimizer.init, params), tokens, tokens)


def plans(config: Config, topology: str) -> Iterator[tuple[str, str, Plan]]:
    """(program, name, plan) of both programs."""
    step, args = build(config)
    machine = parse_topology(topology)
    graph = analyse(trace(step, args, donate_argnums=(0, 1)))
    blocks = SortBlocks(num=machine.num_devices)
    for program, of in ((AS_WRITTEN, graph), (str(blocks), sorted_graph(graph, blocks))):
        yield from ((program, name, plan) for name, plan in _plans(of, machine).items())


def _plans(graph: StepGraph, machine: Any) -> dict[str, Plan]:
    with Progress(False) as report:
        frontier = _plan_graph(graph, machine, Options(topology=machine).on(machine), report, "train_step")
    named = {"fastest": frontier.fastest(), "leanest": frontier.leanest()}
    return named | {name: frontier.references[name] for name in REFERENCES if name in frontier.references}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.time.sorted_experts", description="Experts that sort tokens.")
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--layers", type=int, default=Config().num_layers)
    parser.add_argument("--audit", action="store_true", help="compile each plan, without its devices")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here
    print("| program | plan | split | ms | GiB | compiled GiB |\n|---|---|---|---|---|---|")
    for program, name, plan in plans(Config(num_layers=options.layers), options.topology):
        compiled = f"{plan.audit().compiled_memory_bytes / 2**30:.2f}" if options.audit else ""
        figures = f"{plan.time_seconds * 1e3:.1f} | {plan.memory_bytes / 2**30:.2f} | {compiled}"
        print(f"| {program} | {name} | {plan.outline} | {figures} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
