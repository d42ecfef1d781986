"""Steps as they are taken where memory is in tiles give the values of the plain steps, on eight virtual devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from jaxplan.mesh import Path, Sharding, Topology, reshard_path
from jaxplan.partition._meshes import device_mesh
from jaxplan.partition._steps import Executor

ALL = (0, 1, 2)
# The shapes: a matrix, rows of one tile, heads of less than a tile, one that has to be padded, a stack, images
# with features split, and one pixel's.
CASES = [
    ((16, 24), 0),
    ((64, 128), 1),
    ((24, 6, 32), 2),
    ((96, 3, 3, 32), 3),
    ((12, 32, 128), 1),
    ((4, 16, 8, 128), 1),
    ((32, 5, 7, 16), 3),
    ((32, 16, 3, 8), 1),
    ((8, 1, 1, 64), 3),
]


@pytest.mark.sample(9)
@pytest.mark.parametrize(("shape", "dim"), CASES)
@pytest.mark.parametrize("kind", ["reduce-scatter", "all-gather"])
def test_tiled_steps_give_the_values_of_plain_ones(shape: tuple[int, ...], dim: int, kind: str) -> None:
    topology = Topology.parse("cpu:8")
    whole = Sharding(((),) * len(shape))
    split = Sharding(tuple(ALL if d == dim else () for d in range(len(shape))))
    source, target = (Sharding(whole.dims, ALL), split) if kind == "reduce-scatter" else (split, whole)
    path = reshard_path(source, target, shape, 4, topology)
    assert kind in [step.kind for step in path.steps]
    rng = np.random.default_rng(3)
    value = rng.integers(-9, 9, (8, *shape) if source.partial else shape).astype(np.float32)
    results = [_taken(value, path, Executor(device_mesh(topology), topology.axes, tiled=t)) for t in (True, False)]
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[0], value.sum(axis=0) if source.partial else value)


def _taken(value: np.ndarray, path: Path, executor: Executor) -> np.ndarray:
    def run(x: jax.Array) -> jax.Array:
        for step in path.steps:
            x = executor.apply(x, step)
        return x

    placed = jax.device_put(jnp.asarray(value), NamedSharding(executor.mesh, executor.spec(path.shardings[0])))
    return np.asarray(jax.jit(run)(placed))
