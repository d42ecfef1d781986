"""Run resharding steps on devices: one fully manual program per step."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxplan.mesh import Path, Sharding, Step, Topology, permutation_pairs


def mesh_of(topology: Topology) -> Mesh:
    devices = np.array(jax.devices()[: topology.num_devices]).reshape([axis.size for axis in topology.axes])
    return Mesh(devices, [axis.name for axis in topology.axes])


def spec(sharding: Sharding, topology: Topology) -> PartitionSpec:
    """A partial value carries its terms along one leading dimension per partial axis, split there."""
    names = [axis.name for axis in topology.axes]
    whole = Sharding(sharding.dims).partition_spec(topology.axes)
    return PartitionSpec(*(names[a] for a in sharding.partial), *whole)


def place(terms: np.ndarray, sharding: Sharding, topology: Topology) -> jax.Array:
    return jax.device_put(terms, NamedSharding(mesh_of(topology), spec(sharding, topology)))


def run_step(x: jax.Array, step: Step, topology: Topology) -> jax.Array:
    before, after = len(step.source.partial), len(step.target.partial)

    def body(local: jax.Array) -> jax.Array:
        value = _local(local.reshape(local.shape[before:]), step, topology)
        return value.reshape((1,) * after + value.shape)

    specs = spec(step.source, topology), spec(step.target, topology)
    run = jax.shard_map(body, mesh=mesh_of(topology), in_specs=specs[0], out_specs=specs[1], check_vma=False)
    return jax.jit(run)(x)


def _local(x: jax.Array, step: Step, topology: Topology) -> jax.Array:
    names = tuple(topology.axes[a].name for a in step.axes)
    if step.kind == "all-gather":
        return lax.all_gather(x, names, axis=step.dim, tiled=True)
    if step.kind == "all-to-all":
        return lax.all_to_all(x, names, split_axis=step.to_dim, concat_axis=step.dim, tiled=True)
    if step.kind == "reduce-scatter":
        return lax.psum_scatter(x, names, scatter_dimension=step.dim, tiled=True)
    if step.kind == "all-reduce":
        return lax.psum(x, names)
    if step.kind == "collective-permute":
        everything = tuple(axis.name for axis in topology.axes)
        return lax.ppermute(x, everything, permutation_pairs(step.source, step.target, topology.axes))
    size = x.shape[step.dim] // lax.axis_size(names)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(names) * size, size, axis=step.dim)


def run_path(x: jax.Array, path: Path, topology: Topology) -> jax.Array:
    for step in path.steps:
        x = run_step(x, step, topology)
    return x
