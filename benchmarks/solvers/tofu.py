"""Tofu's comparison of partition algorithms: an LSTM of 4 layers of 8K units, unrolled for 20 steps, on 8 K80.

    python -m benchmarks.tofu [--layers N] [--width N] [--steps N] [--batch N] [--scan] [--solvers NAME ...]

Source: Tofu, sections 6.1 and 6.3, Figure 11 (RNN-4-8K, batch 512): AllRow-Greedy, greedy by size, EqualChop and Tofu
fit the 12 GB of a K80, Tofu with the least communication. Inputs are embeddings of 1,024 values: with them the weights
of Table 1 come out (RNN-6-4K: 8.4 GB for weight, gradient and history). Printed are the bytes that a device receives,
and the memory and milliseconds that are predicted of a step in float32.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

import jaxplan
from jaxplan.cost import build_cost_model
from jaxplan.ir import StepGraph
from jaxplan.plans._plan import Plan
from jaxplan.search._make_plan import make_plan
from jaxplan.search._tofu import PARTITION_SOLVERS, partition
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import predictor_of
from jaxplan.strategies import reference_solution

_EMBEDDING = 1024
_LIMIT_BYTES = 12_000_000_000  # what the paper calls the memory of one of the 8 K80


def lstm(
    num_layers: int, width: int, num_steps: int, batch: int, embedding: int = _EMBEDDING, *, scan: bool = False
) -> tuple[Any, tuple[Any, ...]]:
    """A train step with Adagrad's history, and its abstract arguments; time steps unrolled, or in a `lax.scan`."""

    def cell(weights: Any, state: Any, x: Any) -> Any:
        state = list(state)
        for layer, (read, again) in enumerate(weights):
            hidden, memory = state[layer]
            i, f, g, o = jnp.einsum("bi,igo->gbo", x, read) + jnp.einsum("bi,igo->gbo", hidden, again)
            memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
            x = jax.nn.sigmoid(o) * jnp.tanh(memory)
            state[layer] = x, memory
        return state, None

    def loss(weights: Any, xs: Any) -> Any:
        state = [(jnp.zeros((batch, width)),) * 2] * num_layers
        if scan:
            state, _ = jax.lax.scan(functools.partial(cell, weights), state, xs)
        else:
            for t in range(num_steps):
                state, _ = cell(weights, state, xs[t])
        return jnp.mean(state[-1][0] ** 2)

    def step(weights: Any, history: Any, xs: Any) -> Any:
        gradients = jax.grad(loss)(weights, xs)
        history = jax.tree.map(lambda h, g: h + g * g, history, gradients)
        weights = jax.tree.map(
            lambda w, g, h: w - 0.01 * g * jax.lax.rsqrt(h + 1e-8), weights, gradients, history
        )
        return weights, history

    def gates(rows: int) -> Any:  # of one product, as in MXNet's cell
        return jax.ShapeDtypeStruct((rows, 4, width), jnp.float32)

    weights = [(gates(width if layer else embedding), gates(width)) for layer in range(num_layers)]
    return step, (weights, weights, jax.ShapeDtypeStruct((num_steps, batch, embedding), jnp.float32))


def partitioned(graph: StepGraph, topology: jaxplan.Topology, solver: str) -> Plan:
    """The plan that one of `PARTITION_SOLVERS` ends at, whether or not a reference strategy beats it."""
    strategy_plan = partition(graph, topology, solver)
    model = build_cost_model(graph, topology, configurations=[(of,) for of in strategy_plan.configurations])
    return make_plan(predictor_of(model), *reference_solution(model, strategy_plan), name=solver)


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--scan", action="store_true", help="time steps in a lax.scan instead of unrolled")
    parser.add_argument("--topology", default="k80:8")
    parser.add_argument("--solvers", nargs="+", default=list(reversed(PARTITION_SOLVERS)))
    options = parser.parse_args()
    step, args = lstm(options.layers, options.width, options.steps, options.batch, scan=options.scan)
    graph = analyse_step(step, args, {}, donate_argnums=(0, 1), static_argnums=())
    topology = jaxplan.Topology.parse(options.topology)
    fits = True
    print("algorithm         search s   GB received   GB of memory   ms a step (communication)")
    for solver in options.solvers:
        start = time.process_time()
        plan = partitioned(graph, topology, solver)
        seconds = time.process_time() - start
        received = sum(
            c.count * c.num_bytes * _share(c, plan.topology) for c in plan.prediction.collectives
        )
        fits &= plan.memory_bytes <= _LIMIT_BYTES
        print(
            f"{solver:<16} {seconds:9.1f} {received / 1e9:13.2f} {plan.memory_bytes / 1e9:14.2f} "
            f"{plan.time_seconds * 1e3:11.0f} ({plan.communication_seconds / plan.time_seconds:.0%})",
            flush=True,
        )
    return fits


def _share(collective: Any, topology: jaxplan.Topology) -> float:
    """Bytes that a device receives for each byte of a collective's larger side."""
    devices = 1
    for axis in collective.axes:
        devices *= topology.axes[axis].size
    return (2 if collective.kind == "all-reduce" else 1) * (devices - 1) / devices


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
