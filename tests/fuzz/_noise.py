"""How far results move when every operator rounds a little otherwise.

A program may decide by a number that is zero but for rounding (the sign of a difference, the order of equals). Such
results say nothing of the plan: here the program runs replicated with noise after each operator.

A sum of 16-bit floats that one device makes element by element is another such number, though no noise shows it: from
256 equal summands on, bfloat16 rounds the next one away. Here these sums are made in float32 once more.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
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
_Bind = Callable[..., list[Any]]
_NOISE = {"float64": 1e-13, "float32": 4e-6, "bfloat16": 0.02}


def deviations(graph: StepGraph, args: Sequence[Any]) -> list[float]:
    """Per result, the largest change by noise; none of a step that runs parts over several devices by itself."""
    if any(e.name == "shard_map" for e in graph.program.equations):
        return [0.0] * len(graph.program.outputs)
    quiet = _evaluate(graph, args, lambda bind: bind)
    worst = [0.0] * len(quiet)
    for sample in range(NUM_SAMPLES):
        noisy = _evaluate(graph, args, functools.partial(_noisily, np.random.default_rng(sample)))
        with np.errstate(invalid="ignore"):
            moved = [
                np.max(np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf), initial=0.0)
                for a, b in zip(noisy, quiet)
            ]
        worst = [max(a, float(b)) for a, b in zip(worst, moved)]
    return worst


def with_wide_sums(graph: StepGraph, args: Sequence[Any]) -> list[np.ndarray]:
    """The results of one device, in float64, if it made the sums of 16-bit floats in float32."""

    def bind_wide(bind: _Bind) -> _Bind:
        def bound(eqn: Any, primitive: Any, params: dict, operands: Sequence[Any], name_stack: str) -> list[Any]:
            if primitive.name != "reduce_sum" or operands[0].dtype not in (jnp.bfloat16, jnp.float16):
                return bind(eqn, primitive, params, operands, name_stack)
            wide = [x.astype(jnp.float32) for x in operands]
            return [r.astype(operands[0].dtype) for r in bind(eqn, primitive, params, wide, name_stack)]

        return bound

    return _evaluate(graph, args, bind_wide)


def _evaluate(
    graph: StepGraph, args: Sequence[Any], changed: Callable[[_Bind], _Bind]
) -> list[np.ndarray]:
    """Results of the replicated program, its operators bound as ``changed`` makes of the plain way."""
    configurations = [((),) * len(space.classes) for space in graph.spaces]
    topology, (_, outputs) = Topology.parse("cpu:8"), boundary_shardings(graph, configurations)
    lowering, target = decide_lowering(graph, topology, configurations, ()), Target.of(topology.chip)
    lowered = LoweredProgram(graph, lowering, target, outputs)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("device",))
    with _bound(changed):
        results = jax.jit(lambda *leaves: run_program(lowered, Executor(mesh, ()), leaves))(*jax.tree.leaves(args))
    return [np.asarray(r).astype(np.float64) for r in jax.device_get(results)]


def _noisily(rng: np.random.Generator, bind: _Bind) -> _Bind:
    return lambda *arguments: [_moved(rng, r) for r in bind(*arguments)]


@contextlib.contextmanager
def _bound(changed: Callable[[_Bind], _Bind]) -> Iterator[None]:
    bind = _compat.bind_like
    _compat.bind_like = changed(bind)
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
