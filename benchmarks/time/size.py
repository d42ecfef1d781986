"""How planning grows: layers, devices, equations and parameters of a plain step, seconds and memory in a table.

    python -m benchmarks.size                                    # all tables
    python -m benchmarks.size --table layers --layers 96 1000
    python -m benchmarks.size --table devices --layers 8

The step trains a residual perceptron of equal layers by Adam, written without a library: a layer has an up and a down
projection, a norm and two residual additions, so 1,000 layers are 3,000 parameters and some 89,000 equations. Each row
is a cold process; processor seconds of JAX's trace and lower of the step as it is, then of planning with its own trace.

Bars: planning grows at most `MOST_GROWTH` times as fast as the layers, takes at most `MOST_BY_DEVICES` times as long on
16,384 devices as on 4,096, and `LONGEST` seconds for 1,000 layers, its trace left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import jaxplan
from jaxplan.core._progress import Progress

MOST_GROWTH, MOST_BY_DEVICES, LONGEST = 1.3, 1.3, 30.0
WIDTH, HIDDEN, BATCH, TOKENS = 1024, 4096, 1024, 128
LAYERS = (12, 24, 48, 96)
DEVICES = ("h100:8", "h100:8x8", "h100:64x8", "h100:512x8", "h100:2048x8")
EQUATIONS, PARAMETERS = 10_000, 300
_EQUATIONS_PER_LAYER, _PARAMETERS_PER_LAYER = 89, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Processor seconds and memory of one process.

    Attributes:
      trace, lower: of `jax.jit` of the step as it is.
      planning: with its own trace; ``search`` without.
      resident_gib: of the process at most; ``more_gib``: what planning added.
    """

    layers: int
    topology: str
    equations: int
    parameters: int
    trace: float
    lower: float
    planning: float
    search: float
    resident_gib: float
    more_gib: float
    stages: str

    def __str__(self) -> str:
        return (
            f"| {self.layers} | {self.topology} | {self.equations:,} | {self.parameters:,} | {self.trace:.2f} "
            f"| {self.lower:.2f} | {self.planning:.2f} | {self.search:.2f} "
            f"| {self.planning / (self.trace + self.lower):.2f} | {self.resident_gib:.2f} | {self.more_gib:.2f} "
            f"| {self.stages} |"
        )


def train_step(state: Any, batch: Any) -> tuple[Any, Any]:
    """One step of Adam on the mean square of what the layers leave."""
    params, mean, square = state

    def loss(params: Any) -> Any:
        x = batch
        for layer in params:
            centred = x - x.mean(-1, keepdims=True)
            normal = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * layer["scale"]
            x = x + jnp.tanh(normal @ layer["up"]) @ layer["down"]
        return (x**2).mean()

    grads = jax.grad(loss)(params)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, grads)
    params = jax.tree.map(lambda p, m, s: p - 1e-3 * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return params, mean, square


def arguments(layers: int) -> tuple[Any, Any]:
    """State and batch of so many layers, abstract."""
    shape = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32)  # noqa: E731
    layer = {"up": shape(WIDTH, HIDDEN), "down": shape(HIDDEN, WIDTH), "scale": shape(WIDTH)}
    return ([layer] * layers,) * 3, shape(BATCH, TOKENS, WIDTH)


def measure(layers: int, topology: str) -> Row:
    """Measure in this process, which has planned nothing before."""
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    plan = jaxplan.plan  # loads the modules
    args = arguments(layers)
    start = time.process_time()
    traced = jax.jit(train_step).trace(*args)
    traced_at = time.process_time()
    traced.lower()
    lowered_at = time.process_time()
    equations = len(traced.jaxpr.jaxpr.eqns)
    del traced
    jax.clear_caches()
    before, stages, planning_at = _resident_gib(), Progress(False, clock=time.process_time), time.process_time()
    with stages:
        plan(train_step, *args, topology=topology, memory="100000GiB", progress=stages)
    planning = time.process_time() - planning_at
    return Row(
        layers=layers,
        topology=topology,
        equations=equations,
        parameters=len(jax.tree.leaves(args[0][0])),
        trace=traced_at - start,
        lower=lowered_at - traced_at,
        planning=planning,
        search=planning - stages.seconds.get("trace", 0.0),
        resident_gib=_resident_gib(),
        more_gib=_resident_gib() - before,
        stages=", ".join(f"{name} {seconds:.1f}" for name, seconds in stages.seconds.items()),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.size", description=__doc__.splitlines()[0])
    tables: dict[str, Callable[[Sequence[int]], bool]] = {
        "layers": _by_layers,
        "devices": _by_devices,
        "size": _by_size,
    }
    parser.add_argument("--table", choices=list(tables), action="append", help="default: all")
    parser.add_argument("--layers", type=int, nargs="+", default=None, help="numbers of layers")
    options = parser.parse_args(arguments)
    met = [tables[name](options.layers or LAYERS) for name in options.table or tables]
    return int(not all(met))


def _by_layers(layers: Sequence[int]) -> bool:
    rows = _rows([(n, "h100:8") for n in layers])
    growth = (rows[-1].search / rows[0].search) / (rows[-1].layers / rows[0].layers)
    met = _bar(f"search grows {growth:.2f} times as fast as the layers", growth <= MOST_GROWTH)
    for row in rows:
        if row.layers >= 1000:
            met &= _bar(f"{row.layers} layers in {row.search:.1f} s", row.search <= LONGEST)
    return met


def _by_devices(layers: Sequence[int]) -> bool:
    rows = _rows([(min(layers), topology) for topology in DEVICES])
    ratio = rows[-1].search / rows[-2].search
    return _bar(f"{rows[-1].topology} takes {ratio:.2f} of {rows[-2].topology}", ratio <= MOST_BY_DEVICES)


def _by_size(layers: Sequence[int]) -> bool:
    rows = _rows([(EQUATIONS // _EQUATIONS_PER_LAYER, "h100:8"), (PARAMETERS // _PARAMETERS_PER_LAYER, "h100:8x8")])
    return _bar(f"{rows[0].equations:,} equations, {rows[1].parameters:,} parameters", bool(rows))


def _rows(cases: Sequence[tuple[int, str]]) -> list[Row]:
    head = "| layers | machine | equations | parameters | trace | lower | planning | search | over JAX | GiB | more "
    print(f"{head}| stages |\n{'|---' * 12}|")
    rows = []
    for case in cases:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure, case))
        print(rows[-1], flush=True)
    return rows


def _bar(text: str, met: bool) -> bool:
    print(f"{'ok  ' if met else 'MISS'} {text}", flush=True)
    return met


def _resident_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    raise SystemExit(main())
