"""`jaxplan.auto` and `jaxplan.plan` as their users meet them."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex_core
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

import jaxplan
from jaxplan import (
    ArgumentError,
    InfeasibleError,
    PlanMismatchError,
    TopologyError,
    TraceError,
)

BATCH, WIDTH = 16, 32


def _loss(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"]) ** 2)


def sgd_step(params: Any, x: jax.Array, rate: float = 0.1) -> tuple[Any, jax.Array]:
    """One step of gradient descent."""
    loss, grads = jax.value_and_grad(_loss)(params, x)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads), loss


def _arguments(batch: int = BATCH) -> tuple[dict[str, jax.Array], jax.Array]:
    keys = jax.random.split(jax.random.key(1), 3)
    params = {
        "in": jax.random.normal(keys[0], (WIDTH, 4 * WIDTH)) / 8,
        "out": jax.random.normal(keys[1], (4 * WIDTH, WIDTH)) / 8,
    }
    return params, jax.random.normal(keys[2], (batch, WIDTH))


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


@pytest.fixture(scope="module")
def frontier() -> jaxplan.Frontier:
    return jaxplan.plan(sgd_step, *_abstract(_arguments()), topology="cpu:8", memory="1GiB")


@pytest.fixture(scope="module")
def sharded_plan(frontier: jaxplan.Frontier) -> jaxplan.Plan:
    """A plan with batch and state both split."""
    return frontier.references["fsdp"]


# auto


def test_the_second_call_neither_traces_nor_plans_nor_compiles() -> None:
    traces = 0

    @jaxplan.auto(memory="1GiB", choose="leanest")
    def step(params: Any, x: jax.Array) -> Any:
        nonlocal traces
        traces += 1
        return sgd_step(params, x)

    params, x = _arguments()
    expected, expected_loss = jax.jit(sgd_step)(params, x)
    with jax.log_compiles(), _captured("jax") as lines:
        params, loss = step(params, x)
    assert _num_compilations(lines) == 1
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(params["in"], expected["in"], rtol=1e-5, atol=1e-6)
    assert (traces, step.counts.plans, step.counts.compiles) == (1, 1, 1)
    with jax.log_compiles(), _captured("jax") as lines:
        for _ in range(2):
            params, loss = step(params, x)  # now with arguments that are sharded as the plan left them
    assert (traces, step.counts.plans, step.counts.compiles) == (1, 1, 1)
    assert _num_compilations(lines) == 0


def test_new_shapes_are_planned_anew_and_old_ones_kept() -> None:
    step = jaxplan.auto(sgd_step, memory="1GiB", donate_argnums=())
    step(*_arguments())
    first = step.plan
    step(*_arguments(batch=2 * BATCH))
    assert step.counts.plans == 2
    assert step.plan is not first
    step(*_arguments())
    assert step.counts.plans == 2


def test_the_wrapper_looks_like_the_step() -> None:
    step = jaxplan.auto(sgd_step)
    assert step.__name__ == "sgd_step"
    assert step.__doc__ == sgd_step.__doc__
    assert inspect.signature(step) == inspect.signature(sgd_step)
    assert "sgd_step" in repr(step)


def test_a_step_that_was_not_called_says_how_to_get_a_plan() -> None:
    with pytest.raises(ArgumentError, match=r"no plan yet.*\n.*jaxplan\.plan"):
        _ = jaxplan.auto(sgd_step).plan
    with pytest.raises(ArgumentError, match="no frontier yet"):
        _ = jaxplan.auto(sgd_step).frontier


@pytest.mark.parametrize("choose", ["fastest", "knee", "leanest", 0])
def test_choose_is_a_point_of_the_frontier(choose: str | int) -> None:
    step = jaxplan.auto(sgd_step, memory="1GiB", choose=choose, donate_argnums=())
    step(*_arguments())
    assert step.plan.is_same_program(step.frontier.choose(choose))


def test_wrong_options_of_auto_are_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match=r"given mesh; expected options are axes, backend, cache_dir, ch"):
        jaxplan.auto(mesh=3)
    with pytest.raises(ArgumentError, match="auto decorates a function"):
        jaxplan.auto("knee")  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(ArgumentError, match=r"choose='slowest'.*\n.*'fastest', 'knee', 'leanest'"):
        jaxplan.auto(sgd_step, choose="slowest", donate_argnums=())(*_arguments())


def test_keyword_and_static_arguments_are_part_of_the_plan() -> None:
    def step(params: Any, x: jax.Array, power: int, *, scale: jax.Array) -> Any:
        return jax.tree.map(lambda p: p * scale**power, params), jnp.sum(x)

    planned = jaxplan.auto(step, static_argnums=(2,), donate_argnums=())
    params, x = _arguments()
    for power in (2, 3, 2):
        new, total = planned(params, x, power, scale=jnp.float32(2.0))
        np.testing.assert_allclose(new["in"], params["in"] * 2.0**power, rtol=1e-6)
        np.testing.assert_allclose(total, np.sum(x), rtol=1e-5)
    assert planned.counts.plans == 2


# plan


def test_planning_allocates_nothing() -> None:
    """A step on a petabyte of parameters is planned."""
    side = 1 << 24
    params = {name: jax.ShapeDtypeStruct((side, side), jnp.float32) for name in ("in", "out")}
    x = jax.ShapeDtypeStruct((64, side), jnp.float32)
    planned = jaxplan.plan(sgd_step, params, x, topology="h100:8", memory=1 << 60)
    assert planned.leanest().memory_bytes > 2 * side * side * 4 / 8


def test_what_does_not_fit_names_the_smallest_that_would(frontier: jaxplan.Frontier) -> None:
    with pytest.raises(InfeasibleError, match="no plan fits") as caught:
        jaxplan.plan(sgd_step, *_abstract(_arguments()), topology="cpu:8", memory="64B")
    smallest = caught.value.smallest_memory_bytes
    assert smallest == min(p.memory_bytes for p in (*frontier, *frontier.references.values()))
    assert sum(caught.value.memory_parts.values()) == smallest
    assert str(smallest) in str(caught.value)
    again = jaxplan.plan(sgd_step, *_abstract(_arguments()), topology="cpu:8", memory=smallest)
    assert again.leanest().memory_bytes == smallest


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"topology": "h100:0x8"}, TopologyError, "h100:0x8"),
        ({"topology": 8}, ArgumentError, r"topology is 8 of type int; expected a string"),
        ({"solver": "simplex"}, jaxplan.JaxplanError, r"simplex.*known are"),
        ({"pins": {"batch": "n0"}}, ArgumentError, "expected: a PartitionSpec"),
        ({"memory": "a lot"}, ArgumentError, "'40GiB'"),
        ({"donate_argnums": (5,)}, ArgumentError, "donate_argnums names argument 5.*3 positional"),
        ({"static_argnums": (-3,)}, ArgumentError, "static_argnums names argument -3"),
        ({"static_argnums": (1,), "donate_argnums": (1,)}, ArgumentError, "a Python value has no buffer"),
    ],
)
def test_wrong_options_of_plan(options: dict[str, Any], error: type[Exception], match: str) -> None:
    params, _ = _abstract(_arguments())
    with pytest.raises(error, match=match):
        jaxplan.plan(sgd_step, params, np.ones((BATCH, WIDTH), np.float32), **options)


def test_a_step_that_is_no_function() -> None:
    with pytest.raises(ArgumentError, match="expected the function to plan"):
        jaxplan.plan({"params": 1})  # pyright: ignore[reportArgumentType]


def test_a_step_that_cannot_be_traced_names_its_line() -> None:
    def branches_on_values(x: jax.Array) -> jax.Array:
        if x.sum() > 0:  # this line
            return x
        return -x

    line = inspect.getsourcelines(branches_on_values)[1] + 1
    with pytest.raises(TraceError, match=rf"test_api\.py:{line} \(branches_on_values\)") as caught:
        jaxplan.plan(branches_on_values, jnp.ones(8), topology="cpu:8")
    assert caught.value.__cause__ is not None


def test_a_decorated_step_can_be_planned(frontier: jaxplan.Frontier) -> None:
    decorated = jaxplan.auto(sgd_step)
    planned = jaxplan.plan(decorated, *_abstract(_arguments()), topology="cpu:8", memory="1GiB")
    assert [p.to_json() for p in planned] == [p.to_json() for p in frontier]


def test_planning_and_importing_leave_jax_as_it_was() -> None:
    """No setting and no variable changes; no backend starts, or the last line would be refused."""
    program = """
        import os, jax
        before = dict(jax.config.values), dict(os.environ)
        import jaxplan, jaxplan.solvers, jaxplan.partition
        import jax.numpy as jnp

        def step(w, x):
            return w - 0.1 * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)

        shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        frontier = jaxplan.plan(step, shape, shape, topology="h100:2x4")
        frontier.table(), frontier.fastest().explain(), frontier.fastest().to_json()
        assert (dict(jax.config.values), dict(os.environ)) == before
        jax.config.update("jax_num_cpu_devices", 3)
        assert jax.device_count() == 3
    """
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


# operators without a rule

_odd_p = jex_core.Primitive("odd_one_out")
_odd_p.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
mlir.register_lowering(_odd_p, mlir.lower_fun(lambda x: x[::-1] * 2, multiple_results=False))


def test_an_operator_without_a_rule_runs_replicated_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        first = _odd_p.bind(x @ w)  # here
        return w + 1.0, _odd_p.bind(first) @ w

    line = inspect.getsourcelines(step)[1] + 1
    w, x = _arguments()[0]["in"][:, :WIDTH], _arguments()[1]
    with caplog.at_level(logging.WARNING, logger="jaxplan"):
        planned = jaxplan.plan(step, w, x, topology="cpu:8", memory="1GiB")
    (warning,) = caplog.messages
    assert f"test_api.py:{line}" in warning
    assert "'odd_one_out' (2x" in warning
    assert "jaxplan.register_rule('odd_one_out', ...)" in warning
    assert planned.notes == (warning,)
    new, y = planned.references["data"].jit(donate_argnums=())(w, x)
    np.testing.assert_allclose(y, 4 * (np.asarray(x) @ w) @ w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new, w + 1.0)


# plans as callables


def test_specs_have_the_trees_of_arguments_and_results(sharded_plan: jaxplan.Plan) -> None:
    arguments, results = _arguments(), jax.eval_shape(sgd_step, *_arguments())
    assert jax.tree.structure(sharded_plan.in_specs) == jax.tree.structure(arguments)
    assert jax.tree.structure(sharded_plan.out_specs) == jax.tree.structure(results)
    assert all(isinstance(s, PartitionSpec) for s in jax.tree.leaves(sharded_plan.in_specs))
    params_in, params_out = sharded_plan.in_specs[0], sharded_plan.out_specs[0]
    assert params_in == params_out  # a step's results are the next step's arguments
    assert any(entry is not None for spec in params_in.values() for entry in spec)
    mesh = sharded_plan.mesh()
    assert mesh.size == 8
    for spec, sharding in zip(
        jax.tree.leaves(sharded_plan.in_specs), jax.tree.leaves(sharded_plan.in_shardings(mesh)), strict=True
    ):
        assert sharding == NamedSharding(mesh, spec)


def test_shard_places_host_arrays(sharded_plan: jaxplan.Plan) -> None:
    arguments = jax.tree.map(np.asarray, _arguments())
    placed = sharded_plan.shard(arguments)
    assert jax.tree.map(lambda x: x.sharding, placed) == sharded_plan.in_shardings()
    jax.tree.map(np.testing.assert_array_equal, placed, arguments)
    assert placed[0]["in"].addressable_shards[0].data.size == arguments[0]["in"].size // 8


def test_only_donated_arguments_are_deleted(sharded_plan: jaxplan.Plan) -> None:
    def deleted(**options: Any) -> list[bool]:
        placed = sharded_plan.shard(_arguments())
        jax.block_until_ready(sharded_plan.jit(**options)(*placed))
        return [leaf.is_deleted() for leaf in jax.tree.leaves(placed)]

    assert deleted() == [True, True, False]  # the parameters come back updated, the batch does not
    assert deleted(donate_argnums=()) == [False, False, False]
    assert deleted(donate_argnums=(-2,)) == [True, True, False]
    with pytest.raises(ArgumentError, match="donate_argnums names argument 3"):
        sharded_plan.jit(donate_argnums=(3,))


def test_a_donated_argument_cannot_be_used_again(sharded_plan: jaxplan.Plan) -> None:
    run = sharded_plan.jit()
    placed = run.shard(*_arguments())
    run(*placed)
    with pytest.raises(
        ArgumentError, match=r"argument \[0\]\['in'\] was deleted.*\n.*\n.*pass on what the step"
    ):
        run(*placed)


def test_arguments_of_another_kind_are_refused(sharded_plan: jaxplan.Plan) -> None:
    run = sharded_plan.jit()
    params, x = _arguments()
    with pytest.raises(PlanMismatchError, match="another structure"):
        run(params)
    with pytest.raises(PlanMismatchError, match=r"argument \[1\] has shape \(8, 32\); .* \(16, 32\)"):
        run(params, x[:8])
    with pytest.raises(PlanMismatchError, match=r"argument \[1\] is bfloat16; .* float32"):
        run(params, x.astype(jnp.bfloat16))


def test_lower_takes_abstract_arguments(sharded_plan: jaxplan.Plan) -> None:
    compiled = sharded_plan.jit().lower(*_abstract(_arguments())).compile()
    text = compiled.as_text()
    assert "all-gather" in text
    assert compiled.memory_analysis() is not None


def test_too_few_devices(sharded_plan: jaxplan.Plan) -> None:
    with pytest.raises(
        PlanMismatchError, match=r"needs 8 devices .* and 2 are there(.|\n)*jax_num_cpu_devices"
    ):
        sharded_plan.jit(devices=jax.devices()[:2])


def test_an_unknown_backend_is_refused(sharded_plan: jaxplan.Plan) -> None:
    with pytest.raises(ArgumentError, match="shard_map"):
        sharded_plan.jit(backend="pmap")


def test_one_device_is_a_plan_too() -> None:
    planned = jaxplan.plan(sgd_step, *_abstract(_arguments()), topology="cpu:1", memory="1GiB")
    assert len(planned) == 1
    assert planned.fastest().communication_seconds == 0
    _, loss = planned.fastest().jit()(*_arguments())
    np.testing.assert_allclose(loss, jax.jit(sgd_step)(*_arguments())[1], rtol=1e-6)


def _num_compilations(lines: list[str]) -> int:
    return sum("Compiling" in line and "planned_step" in line for line in lines)


class _captured(logging.Handler):
    """Messages of a logger and its children while the block runs."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.DEBUG)
        self.logger, self.lines = logging.getLogger(name), []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        self.logger.addHandler(self)
        return self.lines

    def __exit__(self, *error: object) -> None:
        self.logger.removeHandler(self)
