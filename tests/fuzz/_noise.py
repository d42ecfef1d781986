"""How far results move when every operator rounds a little otherwise.

A program may decide by a number that is zero but for rounding (the sign of a difference, the order of equals). Such
results say nothing of the plan: here the program runs replicated with noise after each operator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxplan.core import _compat
from jaxplan.cost import boundary_shardings
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology
from jaxplan.partition import LoweredProgram, decide_lowering, run_program
from jaxplan.partition._steps import Executor
from jaxplan.xla import Target

NUM_SAMPLES = 3
_NOISE = {"float64": 1e-13, "float32": 4e-6, "bfloat16": 0.02}


def deviations(graph: StepGraph, args: Sequence[Any]) -> list[float]:
    """Per result, the largest change by noise; none of a step that runs parts over several devices by itself."""
    if any(e.name == "shard_map" for e in graph.program.equations):
        return [0.0] * len(graph.program.outputs)
    quiet = _evaluate(graph, args, None)
    worst = [0.0] * len(quiet)
    for sample in range(NUM_SAMPLES):
        noisy = _evaluate(graph, args, np.random.default_rng(sample))
        with np.errstate(invalid="ignore"):
            moved = [
                np.max(np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf), initial=0.0)
                for a, b in zip(noisy, quiet)
            ]
        worst = [max(a, float(b)) for a, b in zip(worst, moved)]
    return worst


def _evaluate(graph: StepGraph, args: Sequence[Any], rng: np.random.Generator | None) -> list[np.ndarray]:
    configurations = [((),) * len(space.classes) for space in graph.spaces]
    topology, (_, outputs) = Topology.parse("cpu:8"), boundary_shardings(graph, configurations)
    lowering, target = decide_lowering(graph, topology, configurations, ()), Target.of(topology.chip)
    lowered = LoweredProgram(graph, lowering, target, outputs)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("device",))
    with _noisy(rng):
        results = jax.jit(lambda *leaves: run_program(lowered, Executor(mesh, ()), leaves))(*jax.tree.leaves(args))
    return [np.asarray(r).astype(np.float64) for r in jax.device_get(results)]


@contextlib.contextmanager
def _noisy(rng: np.random.Generator | None) -> Iterator[None]:
    bind = _compat.bind_like

    def bind_noisily(*arguments: Any) -> list[Any]:
        results = bind(*arguments)
        return [_moved(rng, r) for r in results] if rng is not None else results

    _compat.bind_like = bind_noisily
    try:
        yield
    finally:
        _compat.bind_like = bind


def _moved(rng: np.random.Generator, value: Any) -> Any:
    scale = _NOISE.get(str(value.dtype))
    if scale is None:
        return value
    factor = 1 + scale * rng.uniform(-1, 1, np.shape(value))
    return (value.astype(jnp.float64) * factor).astype(value.dtype)
