"""The parts of a manual program: collectives of the plan, bodies of the step, callbacks, operators on the whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxplan
from jaxplan.audit import judge_collectives, predicted_program
from jaxplan.audit._hlo import collectives
from tests.partition.manual.test_manual_steps import assert_equal


def _values(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng(i).uniform(-1, 1, s).astype(np.float32) for i, s in enumerate(shapes)]


def _plans(step: Any, *args: Any, **options: Any) -> list[jaxplan.Plan]:
    frontier = jaxplan.plan(step, *args, topology="cpu:8", memory="1GiB", **options)
    return list(dict.fromkeys((frontier.fastest(), frontier.leanest())))


def test_compiled_collectives_are_those_of_the_plan() -> None:
    """A gather that is repeated in the backward pass, and reduced gradients: the leanest plan of a perceptron."""

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            h = x
            for w in params:
                h = jnp.tanh(h @ w)
            return jnp.mean(h**2)

        return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params))

    params, x = _values((256, 256), (256, 256), (256, 256)), _values((512, 256))[0]
    plan = jaxplan.plan(step, params, x, topology="cpu:8", memory="1GiB").choose("fsdp")
    assert any(resharding.repeated for resharding in plan.lowering.reshardings)
    run = plan.jit(backend="shard_map")
    compiled = run.lower(params, x).compile()
    rows, unexpected = judge_collectives(predicted_program(plan), collectives(compiled.as_text()))
    assert {row.kind for row in rows} >= {"all-gather", "reduce-scatter"}
    assert not unexpected and all(row.ok for row in rows)
    assert [row.compiled_count for row in rows] == [row.predicted_count for row in rows]
    assert_equal(run(params, x), jax.jit(step)(params, x))


def test_a_body_with_collectives_of_every_kind() -> None:
    """Calls, loops and branches of a `jax.shard_map`, and axes in another order than the machine's."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))

    def body(x: jax.Array) -> jax.Array:
        gathered = lax.all_gather(x, "model", axis=1, tiled=True)
        scattered = lax.psum_scatter(gathered, "model", scatter_dimension=1, tiled=True)
        moved = lax.all_to_all(scattered, "data", split_axis=1, concat_axis=0, tiled=True)
        x = lax.ppermute(moved, "data", [(0, 1), (1, 0)]) + lax.pmax(x, ("model", "data")).sum()
        x = lax.fori_loop(0, 2, lambda i, c: jnp.tanh(lax.psum(c, "model")) + i, x)
        number = lax.axis_index(("model", "data"))
        x = lax.cond(lax.pmin(number, ("data", "model")) == 0, lambda y: lax.pmean(y, "data"), jnp.sin, x)
        stacked = lax.all_gather(jax.checkpoint(jnp.cos)(x), "model")
        return x * number + jax.jit(lambda y: y[1])(stacked)

    step = jax.shard_map(
        body, mesh=mesh, in_specs=P("data", "model"), out_specs=P("data", "model"), check_vma=False
    )
    (x,) = _values((16, 32))
    for plan in _plans(step, x):
        assert_equal(plan.jit(backend="shard_map")(x), jax.jit(step)(x))


def test_a_checked_body_and_its_gradient() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    product = jax.shard_map(
        lambda a, b: lax.psum(jnp.sin(a @ b), "model"),
        mesh=mesh,
        in_specs=(P("data", "model"), P("model")),
        out_specs=P("data"),
    )
    step = jax.value_and_grad(lambda x, w: jnp.sum(product(jnp.tanh(x), w) ** 2), (0, 1))
    x, w = _values((16, 8), (8, 32))
    for plan in _plans(step, x, w):
        assert_equal(plan.jit(backend="shard_map")(x, w), jax.jit(step)(x, w))


def test_callbacks_run_once(capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[float] = []

    def note(x: Any) -> np.ndarray:
        calls.append(float(x))
        return np.float32(2 * x)

    def step(x: jax.Array) -> jax.Array:
        total = jnp.sum(x**2)
        jax.debug.print("total {}", total)
        doubled = jax.experimental.io_callback(note, jax.ShapeDtypeStruct((), jnp.float32), total)
        return x * doubled

    (x,) = _values((16, 8))
    plan = _plans(step, x)[-1]
    found = plan.jit(backend="shard_map")(x)
    jax.effects_barrier()
    assert_equal(found, x * (2 * np.sum(x**2)))
    assert capfd.readouterr().out.count("total") == 1 and len(calls) == 1


def test_an_operator_that_holds_its_program_is_gathered_around_itself() -> None:
    @custom_partitioning
    def cosine(x: jax.Array) -> jax.Array:
        return jnp.cos(x)

    cosine.def_partition(
        infer_sharding_from_operands=lambda mesh, args, result: NamedSharding(mesh, args[0].sharding.spec),
        partition=lambda mesh, args, result: (mesh, jnp.cos, result.sharding, (args[0].sharding,)),
        sharding_rule="i j -> i j",
    )

    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sin(cosine(jnp.tanh(x @ w))) @ w.T

    x, w = _values((64, 32), (32, 64))
    for plan in _plans(step, x, w):
        assert_equal(plan.jit(backend="shard_map")(x, w), jax.jit(step)(x, w))
