"""Explanations by path and differences between plans, against predictions and layouts of the plans themselves."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxplan
from jaxplan.cli._main import main
from jaxplan.errors import ArgumentError, PlanMismatchError

FLOAT = jnp.float32
ARGS = (
    {"up": jax.ShapeDtypeStruct((512, 2048), FLOAT), "down": jax.ShapeDtypeStruct((2048, 512), FLOAT)},
    jax.ShapeDtypeStruct((256, 512), FLOAT),
)


def step(params, x):
    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


@pytest.fixture(scope="module")
def frontier():
    return jaxplan.plan(step, *ARGS, topology="h100:8")


def test_a_path_tells_layout_and_alternatives(frontier):
    plan = frontier.references["megatron"]
    text = plan.explain("params/up")
    assert "float32[512,2048]: 4.00 MiB, a device holds 0.500 MiB" in text
    assert plan.in_specs[0]["up"] == P(None, ("gpu2", "gpu1", "gpu0")) and "P(None, ('gpu2', 'gpu1', 'gpu0'))" in text
    assert "instead, all else as it is" in text and "because of" in text
    assert plan.explain("up") == text and "params/down" in plan.explain("*")


def test_small_arrays_and_arrays_of_one_group_say_so():
    """Both moments of a parameter are updated by one group; a scale is too small to split."""

    def adam(params, moments, x):
        def loss(params):
            return jnp.mean((jnp.tanh(x @ params["up"] * params["scale"])) ** 2)

        gradients = jax.grad(loss)(params)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments["mu"], gradients)
        nu = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g * g, moments["nu"], gradients)
        params = jax.tree.map(lambda p, m, v: p - 0.1 * m / jnp.sqrt(v + 1e-8), params, mu, nu)
        return params, {"mu": mu, "nu": nu}

    params = {"up": ARGS[0]["up"], "scale": jax.ShapeDtypeStruct((2048,), FLOAT)}
    plan = jaxplan.plan(adam, params, {"mu": params, "nu": params}, ARGS[1], topology="h100:8").fastest()
    scale = plan.explain("params/scale")
    assert "because of  its size: arrays this small are whole" in scale and "instead" not in scale
    up = plan.explain("moments/*/up")
    assert up.count("because of") == 1
    assert "moments/nu/up\n  as above    it is laid out together with moments/mu/up" in up


def test_a_path_that_matches_nothing_names_the_nearest(frontier):
    with pytest.raises(ArgumentError, match=r"(?s)'upp' matches no argument.*did you mean 'up'"):
        frontier.fastest().explain("upp")


def test_a_difference_adds_up(frontier):
    one, other = frontier.references["data"], frontier.references["megatron"]
    found = one.diff(other)
    by_name = {row.what: row for row in found.num_bytes}
    assert (by_name["peak"].before, by_name["peak"].after) == (one.memory_bytes, other.memory_bytes)
    change = sum(row.after - row.before for row in found.num_bytes if row.what != "peak")
    assert change == other.memory_bytes - one.memory_bytes
    assert {change.what for change in found.leaves} >= {"params/up", "params/down"}
    assert "the same layouts" in str(one.diff(one))


def test_a_plan_in_micro_batches_is_compared_with_one_without(frontier):
    """They are programs of their own: arguments are compared, and no operators."""
    one = frontier.references["data"]
    other = jaxplan.plan(step, *ARGS, topology="h100:8", microbatches=2).references["data"]
    found = one.diff(other)
    (time,) = (row for row in found.seconds if row.what == "step")
    assert (time.before, time.after) == (one.time_seconds, other.time_seconds)
    assert not found.leaves and not found.operators
    assert "2 micro-batches" in found.after and str(found).endswith("arguments have the same layouts")
    assert "micro-batches" in other.diff(one).before


def test_plans_of_other_programs_have_no_difference(frontier):
    other = jaxplan.plan(lambda x: x @ x, jax.ShapeDtypeStruct((64, 64), FLOAT), topology="h100:8")
    with pytest.raises(PlanMismatchError, match="different programs"):
        frontier.fastest().diff(other.fastest())


def test_saved_files_are_explained_and_compared(frontier, tmp_path, capsys):
    file = str(tmp_path / "f.json")
    frontier.save(file)
    assert main(["explain", file, "--choose", "megatron"]) == 0
    assert "params/up" in capsys.readouterr().out
    assert main(["diff", file, "--choose", "data", "megatron", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["leaves"]
    assert main(["explain", file, "params/up"]) == 2  # prices need the step
    assert "--step" in capsys.readouterr().err
