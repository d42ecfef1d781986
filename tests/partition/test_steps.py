"""Resharding steps on eight virtual devices: the value stays, and exactly the named collective is compiled."""

from __future__ import annotations

import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from jaxplan.mesh import Sharding, Step, Topology, reshard_path
from jaxplan.partition import device_mesh
from jaxplan.partition._steps import Executor

SHAPE = (8, 16)
CUBE, PRIMES = Topology.parse("cpu:8"), Topology.parse("cpu:6")


def executor_of(topology: Topology) -> Executor:
    return Executor(device_mesh(topology), topology.axes)


def step(
    kind: str, axes: tuple[int, ...], source: Sharding, target: Sharding, dim: Any = None, to_dim: Any = None
) -> Step:
    return Step(kind=kind, axes=axes, dim=dim, to_dim=to_dim, source=source, target=target)


WHOLE = [
    step("all-gather", (1,), Sharding(((0, 1), (2,))), Sharding(((0,), (2,))), dim=0),
    step("all-gather", (1, 0), Sharding(((2, 1, 0), ())), Sharding(((2,), ())), dim=0),
    step("slice", (2,), Sharding(((0,), ())), Sharding(((0,), (2,))), dim=1),
    step("all-to-all", (1,), Sharding(((0, 1), ())), Sharding(((0,), (1,))), dim=0, to_dim=1),
    step("all-to-all", (1, 2), Sharding(((0, 1, 2), ())), Sharding(((0,), (1, 2))), dim=0, to_dim=1),
    step("collective-permute", (0, 1), Sharding(((0, 1), ())), Sharding(((1, 0), ()))),
    step("collective-permute", (0, 2), Sharding(((0, 1), ())), Sharding(((2, 1), ()))),
]
# The same with a sum over axis 2 still to be taken.
PARTIAL = [
    step("all-gather", (1,), Sharding(((0, 1), ()), (2,)), Sharding(((0,), ()), (2,)), dim=0),
    step("slice", (1,), Sharding(((0,), ()), (2,)), Sharding(((0,), (1,)), (2,)), dim=1),
    step("all-to-all", (1,), Sharding(((0, 1), ()), (2,)), Sharding(((0,), (1,)), (2,)), dim=0, to_dim=1),
    step("collective-permute", (0, 1), Sharding(((0, 1), ()), (2,)), Sharding(((1, 0), ()), (2,))),
]
SUMS = [
    step("all-reduce", (2,), Sharding(((0,), (1,)), (2,)), Sharding(((0,), (1,)))),
    step("all-reduce", (0, 1, 2), Sharding(((), ()), (0, 1, 2)), Sharding(((), ()))),
    step("reduce-scatter", (2,), Sharding(((0,), (1,)), (2,)), Sharding(((0, 2), (1,))), dim=0),
    step("reduce-scatter", (2, 1), Sharding(((0,), ()), (1, 2)), Sharding(((0,), (2, 1))), dim=1),
]


def placed(executor: Executor, sharding: Sharding, value: np.ndarray) -> jax.Array:
    return jax.device_put(value, NamedSharding(executor.mesh, executor.spec(sharding)))


def run(topology: Topology, steps: tuple[Step, ...], value: np.ndarray) -> tuple[jax.Array, str]:
    """The result of a chain of steps, and the compiled program."""
    executor = executor_of(topology)

    def chain(x: Any) -> Any:
        for s in steps:
            x = executor.apply(x, s)
        return x

    argument = placed(executor, steps[0].source, value)
    compiled = (
        jax.jit(chain, out_shardings=NamedSharding(executor.mesh, executor.spec(steps[-1].target)))
        .lower(argument)
        .compile()
    )
    return compiled(argument), compiled.as_text()


def collectives(text: str) -> list[str]:
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    return re.findall(rf"= \S+ ({kinds})(?:-start)?\(", text) + re.findall(
        rf"= \(.*?\) ({kinds})(?:-start)?\(", text
    )


@pytest.mark.parametrize("s", WHOLE, ids=repr)
def test_a_step_moves_and_keeps_the_value(s: Step) -> None:
    value = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    result, text = run(CUBE, (s,), value)
    np.testing.assert_array_equal(result, value)
    assert result.addressable_shards[0].data.shape == s.target.local_shape(SHAPE, CUBE.axes)
    assert set(collectives(text)) == ({s.kind} if s.kind != "slice" else set())


@pytest.mark.parametrize("s", PARTIAL, ids=repr)
def test_a_step_leaves_summands_apart(s: Step) -> None:
    summands = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(np.float32)
    result, text = run(CUBE, (s,), summands)
    np.testing.assert_array_equal(result, summands)
    assert set(collectives(text)) == ({s.kind} if s.kind != "slice" else set())


@pytest.mark.parametrize("s", SUMS, ids=repr)
def test_a_sum_is_taken_once(s: Step) -> None:
    count = 2 ** len(s.source.partial)
    summands = np.random.default_rng(0).integers(-9, 9, (count, *SHAPE)).astype(np.float32)
    result, text = run(CUBE, (s,), summands)
    np.testing.assert_array_equal(result, summands.sum(0))
    assert result.addressable_shards[0].data.shape == s.target.local_shape(SHAPE, CUBE.axes)
    assert set(collectives(text)) <= {
        s.kind,
        "all-reduce",
    }  # the CPU compiler has reduce-scatters as all-reduces
    assert collectives(text)


@pytest.mark.parametrize("shape", [(16, 8), (4, 8, 16), (4, 4, 8, 4)], ids=repr)
def test_tiles_change_how_a_sum_is_scattered_and_not_the_sum(shape: tuple[int, ...]) -> None:
    summands = np.random.default_rng(0).integers(-9, 9, (4, *shape)).astype(np.float32)
    for dim in range(len(shape)):
        dims = tuple((1, 0) if d == dim else () for d in range(len(shape)))
        s = step("reduce-scatter", (1, 0), Sharding(((),) * len(shape), (0, 1)), Sharding(dims), dim=dim)
        executor = Executor(device_mesh(CUBE), CUBE.axes, tiled=True)
        result = jax.jit(lambda x, s=s, executor=executor: executor.apply(x, s))(
            placed(executor, s.source, summands)
        )
        np.testing.assert_array_equal(result, summands.sum(0))
        assert result.sharding.is_equivalent_to(
            NamedSharding(executor.mesh, executor.spec(s.target)), len(shape)
        )


def test_an_order_of_dimensions_changes_no_number() -> None:
    value = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    s = step("all-to-all", (1,), Sharding(((0, 1), ())), Sharding(((0,), (1,))), dim=0, to_dim=1)
    executor = Executor(device_mesh(CUBE), CUBE.axes, ordered=True)
    result = jax.jit(lambda x: executor.apply(x, s))(placed(executor, s.source, value))
    np.testing.assert_array_equal(result, value)
    assert result.sharding.is_equivalent_to(NamedSharding(executor.mesh, executor.spec(s.target)), len(SHAPE))


def test_a_sum_in_two_parts() -> None:
    source = Sharding(((), (0,)), (1, 2))
    middle, target = Sharding(((2,), (0,)), (1,)), Sharding(((2,), (0,)))
    summands = np.random.default_rng(0).integers(-9, 9, (4, *SHAPE)).astype(np.float32)
    chain = (
        step("reduce-scatter", (2,), source, middle, dim=0),
        step("all-reduce", (1,), middle, target),
    )
    result, _ = run(CUBE, chain, summands)
    np.testing.assert_array_equal(result, summands.sum(0))


def shardings(topology: Topology) -> list[Sharding]:
    """All layouts of a matrix: each axis unused or in one dimension, in every order."""
    found = set()
    for used in itertools.product((None, 0, 1), repeat=len(topology.axes)):
        taken = [[a for a, d in enumerate(used) if d == dim] for dim in (0, 1)]
        found.update(Sharding(dims) for dims in itertools.product(*map(itertools.permutations, taken)))
    return sorted(found, key=repr)


@pytest.mark.parametrize("topology", [CUBE, PRIMES], ids=lambda t: t.name)
def test_paths_between_drawn_shardings_keep_the_value(topology: Topology) -> None:
    rng = np.random.default_rng(5)
    every, shape = shardings(topology), (24, 48)
    value = rng.normal(size=shape).astype(np.float32)
    longest = 0
    for _ in range(12):
        source, target = (every[i] for i in rng.choice(len(every), 2, replace=False))
        path = reshard_path(source, target, shape, 4, topology)
        result, _ = run(topology, path.steps, value)
        np.testing.assert_array_equal(result, value, err_msg=f"{source!r} -> {target!r}: {path.steps}")
        assert result.addressable_shards[0].data.shape == target.local_shape(shape, topology.axes)
        longest = max(longest, len(path.steps))
    assert longest >= 2


@pytest.mark.parametrize("dtype", [np.float32, np.int32, bool, jnp.bfloat16])
def test_a_value_behind_another_is_the_same_and_is_made_again(dtype: Any) -> None:
    """Two gathers of one value are merged; not where the second waits for another value."""
    executor = executor_of(CUBE)
    value = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    gather = step("all-gather", (0,), Sharding(((0,), ())), Sharding(((), ())), dim=0)
    sharding = Sharding(((1,), (2,)))
    operands = placed(executor, gather.source, value), placed(executor, sharding, np.full(SHAPE, -1).astype(dtype))

    def twice(x: Any, other: Any, waits: bool) -> tuple[Any, Any]:
        again = executor.behind(x, gather.source, other, sharding) if waits else x
        return executor.apply(x, gather), executor.apply(again, gather) * 2

    found = {}
    for waits in (False, True):
        compiled = jax.jit(twice, static_argnums=2).lower(*operands, waits).compile()
        once, again = compiled(*operands)
        np.testing.assert_array_equal(once, value)
        np.testing.assert_array_equal(again, 2 * value)
        found[waits] = collectives(compiled.as_text() or "")
    assert found == {False: ["all-gather"], True: ["all-gather"] * 2}


@pytest.mark.parametrize("shape", [SHAPE, (16, 4096), (4, 8, 16)], ids=repr)
def test_the_order_of_an_argument_changes_no_number(shape: tuple[int, ...]) -> None:
    executor = Executor(device_mesh(CUBE), CUBE.axes, tiled=True)
    sharding = Sharding(((0, 2), *((),) * (len(shape) - 1)))
    value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    result = jax.jit(lambda x: executor.as_stored(x, sharding))(placed(executor, sharding, value))
    np.testing.assert_array_equal(result, value)
    assert result.sharding.is_equivalent_to(NamedSharding(executor.mesh, executor.spec(sharding)), len(shape))
