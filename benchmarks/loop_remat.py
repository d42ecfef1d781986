"""Memory of a GPT with all layers in one loop, as it is and with layers recomputed, predicted and compiled.

    python -m benchmarks.loop_remat                                   # 12 layers on h100:8, the strategy fsdp
    python -m benchmarks.loop_remat --layers 24 --width 1024 --batch 64

Compiled without devices. Each line has the same shardings, so that stacks of the loops alone differ.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--strategy", default="fsdp")
    options = parser.parse_args(arguments)
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jaxplan.core._progress import Progress
    from jaxplan.frontend._options import Options
    from jaxplan.ir import LoopRemat, analyse, loop_recomputed_graph, trace
    from jaxplan.mesh import parse_topology
    from jaxplan.search._planner import plan_graph

    graph = analyse(trace(train_step, shapes(options), donate_argnums=(0, 1)))
    machine = parse_topology(options.topology)
    chosen = Options(topology=machine, remat=False, microbatches=False, stages=False).on(machine)
    print("| layers | predicted GiB | compiled GiB | step |\n|---|---|---|---|")
    for name in ("as they are", "contractions", "all"):
        of = graph if name == "as they are" else loop_recomputed_graph(graph, LoopRemat(policy=name))
        with Progress(False) as report:
            found = plan_graph(of, topology=machine, options=chosen, report=report, name="step")
        plan = found.references[options.strategy]
        compiled = plan.audit().compiled_memory_bytes
        words = str(plan.recomputed_loops or name)
        print(
            f"| {words} | {plan.memory_bytes / 2**30:.3f} | {compiled / 2**30:.3f} "
            f"| {plan.time_seconds * 1e3:.1f} ms |",
            flush=True,
        )
    return 0


def train_step(params: Any, momentum: Any, tokens: Any) -> Any:
    """A step of SGD with momentum; the layers of ``params`` are stacked."""
    import jax
    import jax.numpy as jnp

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        y = normal(x)
        q, k, v = (jnp.einsum("btd,dhe->bthe", y, w[name]) for name in ("query", "key", "value"))
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k) / q.shape[-1] ** 0.5
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9).astype(jnp.float32)).astype(x.dtype)
        x = x + jnp.einsum("bhqk,bkhe,hed->bqd", weights, v, w["out"])
        return x + jax.nn.gelu(normal(x) @ w["up"]) @ w["down"], None

    def loss(params: Any) -> Any:
        half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
        x, _ = jax.lax.scan(layer, half["table"][tokens], half["layers"])
        logits = (normal(x) @ half["table"].T).astype(jnp.float32)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1))

    value, gradients = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda w, m: w - 0.01 * m, params, momentum), momentum, value


def normal(x: Any) -> Any:
    import jax.numpy as jnp

    wide = x.astype(jnp.float32)
    return (wide * (jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6) ** -0.5).astype(x.dtype)


def shapes(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Parameters, momentum and tokens, without arrays."""
    import jax

    d, h = options.width, options.width // 64
    sizes = {"query": (d, h, 64), "key": (d, h, 64), "value": (d, h, 64), "out": (h, 64, d)}
    sizes |= {"up": (d, 4 * d), "down": (4 * d, d)}
    layers = {
        name: jax.ShapeDtypeStruct((options.layers, *shape), "float32") for name, shape in sizes.items()
    }
    params = {"table": jax.ShapeDtypeStruct((32768, d), "float32"), "layers": layers}
    return params, params, jax.ShapeDtypeStruct((options.batch, options.tokens), "int32")


if __name__ == "__main__":
    raise SystemExit(main())
