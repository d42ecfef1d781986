"""Tables of logical axis names: Flax lays the parameters out by them as the plan does, but for those that are named."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import jaxplan

NAMES = {"up": ("embed", "mlp"), "down": ("mlp", "embed")}
AXES = {"data": 2, "tensor": 4}


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for name, width in (("up", 256), ("down", 64)):
            init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), NAMES[name])
            x = nn.tanh(nn.Dense(width, kernel_init=init, name=name)(x))
        return x


def step(params: Any, x: jax.Array) -> Any:
    loss = lambda p: jnp.mean(Linen().apply({"params": p}, x) ** 2)  # noqa: E731
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def planned(params: Any, pins: Any) -> jaxplan.Plan:
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return jaxplan.plan(step, params, x, topology="cpu:8", pins=pins, axes=AXES).fastest()


WHOLE = {"up/bias": "whole", "down/bias": "whole"}
MEGATRON = {"up/kernel": P("data", "tensor"), "down/kernel": P("tensor", "data"), **WHOLE}


@pytest.fixture(scope="module")
def variables() -> Any:
    return Linen().init(jax.random.key(0), jnp.ones((4, 64)))


def test_a_table_reproduces_a_plan(variables: Any) -> None:
    """Read from boxes in the arguments, from specs, or from boxed variables; as Flax itself applies it."""
    plan = planned(variables["params"], MEGATRON)
    mesh = plan.mesh(names=AXES)
    table = plan.logical_axis_rules(mesh=mesh)
    assert dict(table.rules) == {"embed": "data", "mlp": "tensor"} and not table.broken
    for logical in (variables, nn.get_partition_spec(variables), nn.get_partition_spec(variables)["params"]):
        assert plan.logical_axis_rules(logical, mesh=mesh) == table
    specs = nn.logical_to_mesh(nn.get_partition_spec(variables), table.rules)["params"]
    wanted = nn.meta.unbox(plan.specs(mesh)[0][0])
    assert {k: specs[k]["kernel"] for k in NAMES} == {k: wanted[k]["kernel"] for k in NAMES}


def test_parameters_that_break_a_table_are_named(variables: Any) -> None:
    """A name stands for other axes in one array than in another; and biases have no names."""
    pins = {"up/kernel": P("tensor", None), "down/kernel": P("tensor", None), **WHOLE, "up/bias": P("tensor")}
    plan = planned(nn.meta.unbox(variables["params"]), pins)
    mesh = plan.mesh(names=AXES)
    table = plan.logical_axis_rules(nn.get_partition_spec(variables), mesh=mesh)
    by_path = {rule.path.partition("/")[2]: rule for rule in table.broken}
    assert by_path["up/bias"].wanted == P("tensor") and by_path["up/bias"].given == P(None)
    kernels = [path for path in by_path if path.endswith("kernel")]
    assert len(kernels) == 1  # of the same size: one table keeps one of them
    flax = nn.logical_to_mesh(nn.get_partition_spec(variables), table.rules)["params"]
    for name in NAMES:
        wanted = plan.specs(mesh)[0][0][name]["kernel"]
        assert (tuple(flax[name]["kernel"]) == tuple(wanted)) == (f"{name}/kernel" not in kernels)
    assert "the plan has" in str(table)


def test_a_rule_gives_way_where_its_axes_are_used(variables: Any) -> None:
    """Both kernels split on `mlp`, biases of width `embed` elsewhere: the order of rules decides in Flax."""
    pins = {"up/kernel": P(None, ("data", "tensor")), "down/kernel": P(("data", "tensor"), None)}
    plan = planned(variables["params"], pins | WHOLE)
    table = plan.logical_axis_rules(mesh=plan.mesh(names=AXES))
    assert dict(table.rules)["mlp"] == ("data", "tensor") and not table.broken


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        for name, (n, m) in (("up", (64, 256)), ("down", (256, 64))):
            init = nnx.with_partitioning(nnx.initializers.lecun_normal(), NAMES[name])
            setattr(self, name, nnx.Linear(n, m, kernel_init=init, rngs=rngs))

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.tanh(self.down(nnx.tanh(self.up(x))))


@pytest.mark.parametrize("form", ["in place", "functional"])
def test_nnx_models(form: str) -> None:
    with nnx.use_eager_sharding(False):
        model = Nnx(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
        graphdef, state = nnx.split(model)

        def in_place(model: Any, optimizer: Any, x: jax.Array) -> jax.Array:
            loss, gradients = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
            optimizer.update(model, gradients)
            return loss

        def functional(state: Any, x: jax.Array) -> Any:
            loss = lambda s: jnp.mean(nnx.merge(graphdef, s)(x) ** 2)  # noqa: E731
            return jax.tree.map(lambda p, g: p - 0.1 * g, state, jax.grad(loss)(state))

        x = jnp.ones((64, 64))
        run, args = (in_place, (model, optimizer, x)) if form == "in place" else (functional, (state, x))
        pins = {"*up*kernel*": P("data", "tensor"), "*down*kernel*": P("tensor", "data"), "*bias*": "whole"}
        plan = jaxplan.plan(run, *args, topology="cpu:8", pins=pins, axes=AXES).fastest()
        table = plan.logical_axis_rules(model, mesh=plan.mesh(names=AXES))
        assert dict(table.rules) == {"embed": "data", "mlp": "tensor"} and not table.broken
        assert plan.logical_axis_rules(nnx.get_partition_spec(state), mesh=plan.mesh(names=AXES)) == table
        assert plan.logical_axis_rules(mesh=plan.mesh(names=AXES)) == table


def test_names_that_are_absent_or_of_another_model(variables: Any) -> None:
    plan = planned(nn.meta.unbox(variables["params"]), MEGATRON)
    with pytest.raises(jaxplan.ArgumentError, match="no logical axis names"):
        plan.logical_axis_rules()
    with pytest.raises(jaxplan.ArgumentError, match="is no argument of the step"):
        plan.logical_axis_rules({"head": {"table": P("vocabulary", "embed")}})
    assert np.array_equal(plan.logical_axis_rules({"up": {"kernel": P("embed", "mlp")}}).broken, ())
