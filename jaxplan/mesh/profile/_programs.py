"""Programs that repeat one operation on all devices at once, a number of times that is given when they run.

The program repeats the operation, each time on the result of the time before, so that neither the
dispatch from Python nor an eager compiler is measured: one element of its result replaces one of its input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxplan.mesh import Topology
from jaxplan.mesh._profile_table import Key
from jaxplan.mesh.profile._settings import ITEMSIZE

# A loop on a GPU returns to the host after each round; so many operations a round make that small.
_UNROLL = {"cpu": 1}
_UNROLL_ELSEWHERE = 16
# Elements that steer the next round: halved, so that sums of sums do not overflow.
_HALF = 0.5

Operation = Callable[..., Any]


def program(key: Key, topology: Topology, mesh: Mesh) -> tuple[Any, tuple[Any, ...], int]:
    """A compiled function of (rounds, *arrays), its arrays, and how many operations a round has."""
    lowered, abstract, unroll = lower(key, topology, mesh)
    values = jax.jit(
        lambda: tuple(varied(x.shape, x.dtype) for x in abstract),
        out_shardings=tuple(x.sharding for x in abstract),
    )
    return lowered.compile(), values(), unroll


def varied(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Numbers that differ, between -0.5 and 0.5; integers are 1. Equal numbers are multiplied faster on GPUs."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return jnp.ones(shape, dtype)
    return jax.random.uniform(jax.random.key(0), shape, jnp.float32, -0.5, 0.5).astype(dtype)


def lower(key: Key, topology: Topology, mesh: Mesh) -> tuple[Any, tuple[jax.ShapeDtypeStruct, ...], int]:
    """The same before it is compiled, for devices that may exist for the compiler only."""
    operation, shapes, dtype = _operation(key, topology, mesh)
    return lower_repeated(operation, [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes], mesh)


def lower_repeated(
    operation: Operation, pieces: Sequence[jax.ShapeDtypeStruct], mesh: Mesh
) -> tuple[Any, tuple[jax.ShapeDtypeStruct, ...], int]:
    """An operation on pieces that every device has of its own, the first of them not of integers; as `lower`."""
    unroll = _UNROLL.get(mesh.devices.flat[0].platform, _UNROLL_ELSEWHERE)
    every = PartitionSpec(mesh.axis_names)

    def local(rounds: Any, *pieces: Any) -> Any:
        def body(_: Any, first: Any) -> Any:
            for _ in range(unroll):
                result = lax.optimization_barrier(operation(first, *pieces[1:]))
                last = jnp.asarray(sum(leaf.ravel()[-1] for leaf in jax.tree.leaves(result)))
                first = first.at[(0,) * first.ndim].set((last * _HALF).astype(first.dtype))
            return first

        return lax.fori_loop(0, rounds, body, pieces[0])

    specs = (PartitionSpec(), *(every for _ in pieces))
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=every, check_vma=False)
    # Every device holds an array of this shape of its own.
    abstract = tuple(
        jax.ShapeDtypeStruct(
            (piece.shape[0] * mesh.size, *piece.shape[1:]), piece.dtype, sharding=NamedSharding(mesh, every)
        )
        for piece in pieces
    )
    rounds = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    return jax.jit(mapped).lower(rounds, *abstract), abstract, unroll


def _operation(key: Key, topology: Topology, mesh: Mesh) -> tuple[Operation, list[tuple[int, ...]], Any]:
    """The operation of one device, the shapes of its arrays, and their dtype."""
    if key[0] == "collective":
        _, kind, sizes, num_bytes = key
        names = group_axes(topology, sizes)
        count = math.prod(sizes)
        pieces = max(1, num_bytes // (ITEMSIZE * count))
        held = pieces if kind == "all-gather" else pieces * count
        return _collective(kind, names, mesh), [(held,)], jnp.float32
    if key[0] == "matmul":
        _, dtype, batch, m, k, n = key
        return jnp.matmul, [(batch, m, k), (batch, k, n)], jnp.dtype(dtype)
    assert key[0] == "memory"
    # Read once and written once.
    return (lambda x: x * _HALF + 1.0), [(max(1, key[1] // (2 * ITEMSIZE)),)], jnp.float32


def group_axes(topology: Topology, sizes: Sequence[int]) -> tuple[str, ...]:
    """The innermost atomic axes of each level that make up groups of so many devices there."""
    names: list[str] = []
    for level, size in enumerate(sizes):
        axes = [axis for axis in reversed(topology.axes) if axis.level == level]
        subsets = (c for r in range(len(axes) + 1) for c in itertools.combinations(axes, r))
        chosen = next(c for c in subsets if math.prod(axis.size for axis in c) == size)
        names += [axis.name for axis in reversed(chosen)]
    return tuple(names)


def _collective(kind: str, names: tuple[str, ...], mesh: Mesh) -> Operation:
    count = math.prod(mesh.shape[name] for name in names)
    around = [(i, (i + 1) % count) for i in range(count)]
    operations: dict[str, Operation] = {
        "all-gather": lambda x: lax.all_gather(x, names, axis=0, tiled=True),
        "reduce-scatter": lambda x: lax.psum_scatter(x, names, scatter_dimension=0, tiled=True),
        "all-reduce": lambda x: lax.psum(x, names),
        "all-to-all": lambda x: lax.all_to_all(x, names, split_axis=0, concat_axis=0, tiled=True),
        "collective-permute": lambda x: lax.ppermute(x, names, around),
    }
    return operations[kind]
