"""Sharding constraints and `jax.shard_map` in a step are respected by every plan, and priced."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import jaxplan
from jaxplan.cost import sharding_of
from jaxplan.ir import UserMesh

TOPOLOGY = "cpu:8"


def mesh(*sizes: int, order: Any = None) -> Mesh:
    devices = np.array(jax.devices())
    return Mesh((devices if order is None else devices[order]).reshape(sizes), ("data", "model"))


def abstract(*sizes: int) -> AbstractMesh:
    return AbstractMesh(sizes, ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def values(*shapes: tuple[int, ...]) -> list[Any]:
    return [
        jnp.asarray(np.random.default_rng(i).uniform(-1, 1, s), jnp.float32) for i, s in enumerate(shapes)
    ]


def check(step: Any, *args: Any, topology: str = TOPOLOGY) -> jaxplan.Plan:
    """The fastest and the leanest plan compute the same as `jax.jit`; returns the fastest."""
    frontier = jaxplan.plan(step, *args, topology=topology)
    expected = jax.tree.leaves(jax.jit(step)(*args))
    for plan in dict.fromkeys((frontier.fastest(), frontier.leanest())):
        found = jax.tree.leaves(plan.jit()(*args))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    return frontier.fastest()


def shardings(plan: jaxplan.Plan, name: str) -> list[str]:
    """The layouts of results of the equations of one primitive, as text."""
    graph = plan.require_program()
    return [
        sharding_of(
            graph, plan.configurations, graph.grouping.equation_group[e.index], e.results[0], produced=True
        ).describe(plan.topology.axes)
        for e in graph.program.equations
        if e.name == name
    ]


def loss(x: Any, w: Any, v: Any, between: Any) -> Any:
    return jax.value_and_grad(lambda x, w, v: jnp.sum(jnp.sin(between(jnp.tanh(x @ w)) @ v)), (0, 1, 2))(
        x, w, v
    )


ARGS = ((16, 8), (8, 32), (32, 8))


@pytest.mark.parametrize(
    ("sizes", "order", "spec", "expected"),
    [
        ((2, 4), None, P(None, "model"), "-,(cpu1 cpu2)"),
        ((4, 2), None, P("model", "data"), "cpu2,(cpu0 cpu1)"),
        ((2, 4), None, P(("model", "data")), "(cpu1 cpu2 cpu0),-"),
        ((8, 1), None, P("model", "data"), "-,(cpu0 cpu1 cpu2)"),
        ((2, 4), [0, 2, 4, 6, 1, 3, 5, 7], P("data", "model"), "cpu2,(cpu0 cpu1)"),
        ((4, 2), [0, 2, 1, 3, 4, 6, 5, 7], P("data", "model"), "(cpu0 cpu2),cpu1"),
    ],
)
def test_a_constraint_is_the_layout_in_the_plan(sizes: Any, order: Any, spec: Any, expected: str) -> None:
    """In the forward pass, and its transpose in the backward pass."""
    sharding = NamedSharding(mesh(*sizes, order=order), spec)

    def step(x: Any, w: Any, v: Any) -> Any:
        return loss(x, w, v, lambda h: lax.with_sharding_constraint(h, sharding))

    plan = jaxplan.plan(step, *values(*ARGS), topology=TOPOLOGY).fastest()
    assert shardings(plan, "sharding_constraint") == [expected] * 2


def test_constraints_change_no_numbers() -> None:
    sharding = NamedSharding(mesh(2, 4), P("model", "data"))
    check(lambda x, w, v: loss(x, w, v, lambda h: lax.with_sharding_constraint(h, sharding)), *values(*ARGS))


def test_an_unconstrained_dimension_is_free() -> None:
    """The plan may split it over the axes that are left, and does where that pays."""
    sharding = NamedSharding(mesh(2, 4), P(P.UNCONSTRAINED, "model"))
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8192, 4096), (4096, 4096), (4096, 4096))]
    step = functools.partial(loss, between=lambda h: lax.with_sharding_constraint(h, sharding))
    plan = jaxplan.plan(step, *shapes, topology="h100:8").fastest()
    assert shardings(plan, "sharding_constraint") == ["gpu0,(gpu1 gpu2)"] * 2


def test_a_constraint_in_a_loop_and_under_vmap() -> None:
    sharding = NamedSharding(abstract(2, 4), P("data", "model"))

    def step(x: Any, w: Any) -> Any:
        def body(h: Any, _: None) -> tuple[Any, None]:
            return lax.with_sharding_constraint(jnp.tanh(h @ w), sharding), None

        return jnp.sum(lax.scan(body, x, None, length=3)[0])

    x, w, xs = values((16, 8), (8, 8), (4, 16, 8))
    plan = jaxplan.plan(jax.grad(step), x, w, topology=TOPOLOGY).fastest()
    assert set(shardings(plan, "sharding_constraint")) == {"cpu0,(cpu1 cpu2)"}
    concrete = NamedSharding(mesh(2, 4), P("data", "model"))
    check(jax.vmap(lambda x: jnp.sin(lax.with_sharding_constraint(jnp.cos(x), concrete))), xs)


def test_a_spec_within_a_mesh() -> None:
    with jax.set_mesh(mesh(2, 4)):
        plan = check(lambda x: jnp.sin(lax.with_sharding_constraint(x * 2, P("model"))), *values((16, 8)))
    assert shardings(plan, "sharding_constraint") == ["(cpu1 cpu2),-"]


def test_of_constants_too() -> None:
    sharding = NamedSharding(mesh(2, 4), P("model"))
    plan = check(lambda x: x + lax.with_sharding_constraint(jnp.arange(16.0), sharding), *values((16,)))
    assert shardings(plan, "sharding_constraint") == ["(cpu1 cpu2)"]


def test_of_scalars_too() -> None:
    own = mesh(2, 4)
    total = jax.shard_map(
        lambda a, b: lax.psum(a * b, ("data", "model")), mesh=own, in_specs=(P(), P()), out_specs=P()
    )
    check(
        lambda x: total(lax.with_sharding_constraint(jnp.sum(x), NamedSharding(own, P())), x[0]) * x,
        *values((16,)),
    )


def tensor_parallel(own_mesh: Any, **options: Any) -> Any:
    """A dot over split features by hand: a sum over ``model``, and in the backward pass over ``data``."""
    return jax.shard_map(
        lambda h, v: lax.psum(h @ v, "model"),
        mesh=own_mesh,
        in_specs=(P("data", "model"), P("model")),
        out_specs=P("data"),
        **options,
    )


@pytest.mark.parametrize(("sizes", "checked"), [((2, 4), True), ((2, 4), False), ((8, 1), True)])
def test_shard_map_and_its_gradient(sizes: tuple[int, int], checked: bool) -> None:
    product = tensor_parallel(mesh(*sizes), check_vma=checked)

    def step(x: Any, w: Any, v: Any) -> Any:
        return jax.value_and_grad(lambda x, w, v: jnp.sum(jnp.sin(product(jnp.tanh(x @ w), v))), (0, 1, 2))(
            x, w, v
        )

    check(step, *values(*ARGS))


def test_every_device_has_the_place_that_the_step_gave_it() -> None:
    number = jax.shard_map(
        lambda x: x + 10 * lax.axis_index("data") + lax.axis_index("model"),
        mesh=mesh(4, 2),
        in_specs=P(("model", "data")),
        out_specs=P(("model", "data")),
    )
    plan = check(number, jnp.zeros(16, jnp.int32))
    assert shardings(plan, "shard_map") == ["(cpu2 cpu0 cpu1)"]


def test_collectives_of_every_kind_in_a_body() -> None:
    def body(x: Any) -> Any:
        gathered = lax.all_gather(x, "model", axis=1, tiled=True)
        scattered = lax.psum_scatter(gathered, "model", scatter_dimension=1, tiled=True)
        moved = lax.all_to_all(scattered, "data", split_axis=1, concat_axis=0, tiled=True)
        around = lax.ppermute(moved, "data", [(0, 1), (1, 0)])
        return around + lax.pmax(x, ("data", "model")).sum()

    step = jax.shard_map(
        body, mesh=mesh(2, 4), in_specs=P("data", "model"), out_specs=P("data", "model"), check_vma=False
    )
    plan = jaxplan.plan(step, *values((16, 32)), topology=TOPOLOGY).fastest()
    found = {(c.kind, c.axes): c.num_bytes for c in plan.prediction.collectives}
    assert found == {  # a device has 8 x 8 elements of four bytes
        ("all-gather", (1, 2)): 8 * 32 * 4,
        ("reduce-scatter", (1, 2)): 8 * 32 * 4,
        ("all-to-all", (0,)): 8 * 8 * 4,
        ("collective-permute", (0,)): 8 * 8 * 4,
        ("all-reduce", (0, 1, 2)): 8 * 8 * 4,
    }


def test_one_operand_in_two_layouts() -> None:
    product = jax.shard_map(
        lambda a, b: lax.psum(a @ b, "model"),
        mesh=mesh(2, 4),
        in_specs=(P("data", "model"), P("model")),
        out_specs=P("data"),
    )
    check(lambda x: product(jnp.cos(x), jnp.cos(x)) + product(x, x), *values((16, 16)))


def test_shard_map_in_a_loop_and_of_a_loop() -> None:
    own = mesh(2, 4)

    def step(x: Any, w: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            def inner(h: Any, w: Any) -> Any:
                return lax.fori_loop(0, 2, lambda _, c: jnp.tanh(lax.psum(c @ w, "data")), h)

            return jax.shard_map(
                inner, mesh=own, in_specs=(P("model", None), P()), out_specs=P("model", None)
            )(h, w)

        return jnp.sum(lax.scan(lambda h, _: (layer(h, w), None), x, None, length=3)[0])

    x, w = values((16, 8), (8, 8))
    plan = check(lambda x, w: step(x, w / 8), x, w)
    (row,) = [c for c in plan.prediction.collectives if c.kind == "all-reduce" and c.num_bytes > 4]
    assert (row.axes, row.num_bytes, row.count) == ((0,), 4 * 8 * 4, 6)  # two trips in each of three


def test_some_axes_are_left_to_the_compiler() -> None:
    """Manual over ``model`` alone: along ``data`` operands are whole."""
    check(
        lambda h, v: jnp.sin(
            jax.shard_map(
                lambda h, v: lax.psum(jnp.tanh(h) @ v, "model"),
                mesh=mesh(2, 4),
                in_specs=(P(None, "model"), P("model")),
                out_specs=P(),
                axis_names={"model"},
            )(h, v)
        ),
        *values((16, 32), (32, 8)),
    )


def test_the_work_of_a_body_counts() -> None:
    """A device multiplies its own part, 2 m n k / 8."""
    product = tensor_parallel(abstract(2, 4))
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4096, 4096), (4096, 4096))]
    plan = jaxplan.plan(product, *shapes, topology="h100:8").fastest()
    assert plan.prediction.flops == 2 * 4096**3 / 8
    assert plan.compute_seconds > 2 * 4096**3 / 8 / 1e15
    (row,) = plan.prediction.collectives
    assert (row.kind, row.axes, row.num_bytes) == ("all-reduce", (1, 2), 4096 // 2 * 4096 * 4)
    simulated = plan.simulate()
    assert simulated.communication_seconds == pytest.approx(plan.communication_seconds)


def test_plans_with_shardings_of_the_step_are_files(tmp_path: Any) -> None:
    product = tensor_parallel(mesh(2, 4))
    args = values((16, 32), (32, 8))
    jaxplan.plan(product, *args, topology=TOPOLOGY).fastest().save(tmp_path / "plan.json")
    loaded = jaxplan.load(tmp_path / "plan.json", product, *args)
    assert isinstance(loaded, jaxplan.Plan)
    np.testing.assert_allclose(loaded.jit()(*args), args[0] @ args[1], rtol=1e-5, atol=1e-5)


def test_a_nan_in_a_step_with_shardings_of_its_own_is_found() -> None:
    product, sharding = tensor_parallel(mesh(2, 4)), NamedSharding(mesh(2, 4), P("data"))

    def step(x: Any, v: Any) -> Any:
        return jnp.log(lax.with_sharding_constraint(product(x, v) - 1e6, sharding))

    args = values((16, 32), (32, 8))
    run = jaxplan.plan(step, *args, topology=TOPOLOGY).fastest().jit()
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"log.*test_user_sharding"):
        run(*args)


@pytest.mark.gpu_aot
def test_the_compiled_program_holds_the_collectives_of_the_step() -> None:
    pytest.importorskip("jax_cuda12_plugin")
    own = abstract(2, 4)
    product, sharding = tensor_parallel(own), NamedSharding(own, P("data", "model"))

    def step(x: Any, w: Any, v: Any) -> Any:
        def value(w: Any, v: Any) -> Any:
            return jnp.sum(product(lax.with_sharding_constraint(jnp.tanh(x @ w), sharding), v) ** 2)

        return jax.value_and_grad(value, (0, 1))(w, v)

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8192, 2048), (2048, 4096), (4096, 2048))]
    audit = jaxplan.plan(step, *shapes, topology="h100:8").fastest().audit()
    assert audit.collectives_ok and audit.flops_ok, audit.table()


# Bad input: one error each: given, expected, the likely cause and the fix.


def refused(step: Any, *args: Any, topology: str = TOPOLOGY) -> str:
    with pytest.raises(jaxplan.JaxplanError) as caught:
        jaxplan.plan(step, *args, topology=topology)
    text = str(caught.value)
    assert all(
        word in text for word in ("given:", "expected:", "likely cause:", "fix:", "test_user_sharding")
    )
    return text


@pytest.mark.parametrize("topology", ["cpu:4", "h100:2x8"])
def test_a_mesh_of_another_size_is_an_error_that_names_both(topology: str) -> None:
    def step(x: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(mesh(2, 4), P("data")))

    text = refused(step, *values((16, 8)), topology=topology)
    assert "(data=2, model=4)" in text and jaxplan.Topology.parse(topology).name in text and "=2" in text


def test_a_mesh_that_splits_where_the_machine_does_not_is_an_error() -> None:
    own = abstract(3, 2)
    text = refused(
        lambda x: lax.with_sharding_constraint(x, NamedSharding(own, P("data"))),
        *values((6, 6)),
        topology="h100:2x3",
    )
    assert "(data=3, model=2)" in text


def test_a_body_over_devices_in_another_order_is_an_error() -> None:
    own = mesh(4, 2, order=[0, 4, 1, 5, 2, 6, 3, 7])
    double = jax.shard_map(lambda x: 2 * x, mesh=own, in_specs=P("data"), out_specs=P("data"))
    assert "in the order [0, 4, 1, 5" in refused(lambda x: double(x), *values((16,)))


def test_explicit_axes_are_an_error() -> None:
    own = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    double = jax.shard_map(lambda x: 2 * x, mesh=own, out_specs=P())
    assert "Explicit" in refused(lambda x: double(x), *values((16,)))


def test_host_memory_is_an_error() -> None:
    sharding = NamedSharding(mesh(2, 4), P("data"), memory_kind="pinned_host")
    text = refused(lambda x: lax.with_sharding_constraint(x, sharding), *values((16,)))
    assert "pinned_host" in text


def test_a_sharding_without_axes_is_an_error() -> None:
    sharding = SingleDeviceSharding(jax.devices()[0])
    assert "NamedSharding" in refused(lambda x: lax.with_sharding_constraint(x, sharding), *values((16,)))


def test_groups_of_atomic_axes_by_hand() -> None:
    """Two nodes of four devices: axes of sizes 2, 2, 2."""

    def groups(sizes: tuple[int, ...], order: Any = range(8)) -> Any:
        names = tuple("xyz"[: len(sizes)])
        return UserMesh(names=names, sizes=sizes, order=tuple(order)).atomic_axes((2, 2, 2))

    assert groups((8,)) == {"x": (0, 1, 2)}
    assert groups((2, 4)) == {"x": (0,), "y": (1, 2)}
    assert groups((2, 1, 4)) == {"x": (0,), "y": (), "z": (1, 2)}
    assert groups((4, 2), [0, 4, 1, 5, 2, 6, 3, 7]) == {"x": (1, 2), "y": (0,)}
    assert groups((2, 4), [0, 1, 2, 3, 4, 5, 7, 6]) is None
    assert groups((8,), [0, 1, 3, 2, 4, 5, 7, 6]) is None
    assert groups((2, 2)) is None
