"""A decorated step among other things that people do with JAX: transformations, settings, threads, placed arrays."""

from __future__ import annotations

import functools
import inspect
import logging
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxplan
from jaxplan import ArgumentError, PlanMismatchError, TraceError, UnsupportedError
from jaxplan.core import _log

BATCH, WIDTH = 16, 32


def train_step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """One AdamW step of a two-layer perceptron; Optax's own does not run under strict promotion."""
    params, first, second, count = state
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    count = count + 1
    steps = count.astype(x.dtype)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, grads)

    def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        m, v = m / (1 - 0.9**steps), v / (1 - 0.999**steps)
        return p - 1e-2 * (m / (jnp.sqrt(v) + 1e-6) + 1e-4 * p)

    return (jax.tree.map(update, params, first, second), first, second, count), loss


def loss_fn(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.log1p(x @ params["in"]) @ params["out"] + params["bias"][None, :]) ** 2)


def arguments(dtype: Any = np.float32) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    params = {
        "in": rng.uniform(0, 0.1, (WIDTH, 4 * WIDTH)).astype(dtype),
        "out": rng.normal(0, 0.1, (4 * WIDTH, WIDTH)).astype(dtype),
        "bias": np.zeros(WIDTH, dtype),
    }
    zeros = jax.tree.map(np.zeros_like, params)
    return (params, zeros, zeros, np.int32(0)), rng.uniform(0, 1, (BATCH, WIDTH)).astype(dtype)


def auto(step: Callable[..., Any], **options: Any) -> Any:
    return jaxplan.auto(step, **{"memory": "1GiB", "choose": "leanest", "donate_argnums": (), **options})


@pytest.fixture(autouse=True)
def new_process() -> None:
    _log.forget()


@pytest.fixture(scope="module")
def planned() -> Any:
    """A step that was planned and compiled once; the plan splits batch or state."""
    step = auto(train_step)
    step(*arguments())
    assert any(entry is not None for spec in jax.tree.leaves(step.plan.in_specs) for entry in spec)
    return step


@functools.cache
def expected() -> tuple[Any, Any]:
    return jax.jit(train_step)(*arguments())


def assert_close(result: Any, wanted: Any, rtol: float = 1e-5) -> None:
    assert jax.tree.structure(result) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=rtol)


# inside other transformations


def test_inside_jit_it_is_planned_once_and_runs_as_planned(planned: Any) -> None:
    before = planned.counts
    assert_close(jax.jit(planned)(*arguments()), expected())
    assert_close(jax.jit(lambda s, x: planned(s, x))(*arguments()), expected())
    assert planned.counts == before
    text = jax.jit(planned).lower(*arguments()).compile().as_text()
    kinds = {c.kind for c in planned.plan.prediction.collectives}
    assert kinds and all(kind in text for kind in kinds)


def test_inside_scan_it_takes_several_steps(planned: Any) -> None:
    state, x = arguments()
    _, losses = jax.jit(lambda s: jax.lax.scan(lambda s, _: planned(s, x), s, None, length=3))(state)
    for loss in losses:
        state, wanted = jax.jit(train_step)(state, x)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)


def test_a_step_planned_first_inside_jit_serves_calls_outside() -> None:
    step = auto(train_step)
    assert_close(jax.jit(step)(*arguments()), expected())
    assert (step.counts.plans, step.counts.compiles) == (1, 0)
    assert_close(step(*arguments()), expected())
    assert (step.counts.plans, step.counts.compiles) == (1, 1)


def test_constants_of_the_function_around_it_may_be_arguments(planned: Any) -> None:
    state, x = arguments()
    result = jax.jit(lambda scale: planned(state, x)[1] * scale)(2.0)
    np.testing.assert_allclose(result, 2 * expected()[1], rtol=1e-5)


def test_eval_shape_is_that_of_the_step(planned: Any) -> None:
    shapes = jax.eval_shape(planned, *arguments())
    wanted = jax.eval_shape(train_step, *arguments())
    assert jax.tree.map(lambda s: (s.shape, s.dtype), shapes) == jax.tree.map(
        lambda s: (s.shape, s.dtype), wanted
    )


@pytest.mark.parametrize("inner", [lambda f: f, jax.jit], ids=["directly", "through-jit"])
def test_grad_around_it_is_that_of_one_device_with_a_warning(
    planned: Any, inner: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    (params, *slots), x = arguments()
    loss = inner(lambda params, x: planned((params, *slots), x)[1])
    expected_gradient = jax.grad(loss_fn)(params, x)
    with caplog.at_level(logging.WARNING, logger="jaxplan"):
        for transformed in (jax.grad(loss), jax.jit(jax.grad(loss))):
            jax.tree.map(
                functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
                transformed(params, x),
                expected_gradient,
            )
    assert caplog.text.count("jax.grad was applied to a planned step") == 1


@pytest.mark.parametrize("inner", [lambda f: f, jax.jit], ids=["directly", "through-jit"])
def test_vmap_around_it_is_one_clear_error(planned: Any, inner: Callable[..., Any]) -> None:
    (params, *slots), x = arguments()
    loss = inner(lambda params, x: planned((params, *slots), x)[1])
    with pytest.raises(
        UnsupportedError, match=r"jax\.vmap was applied(.|\n)*fix:.*jax\.vmap inside the step"
    ):
        jax.vmap(loss, (None, 0))(params, np.stack([x, x]))


def test_grad_of_what_does_not_go_through_the_step_works(planned: Any) -> None:
    state, x = arguments()
    gradient = jax.grad(lambda scale: scale * planned(state, x)[1])(3.0)
    np.testing.assert_allclose(gradient, expected()[1], rtol=1e-5)


def test_a_value_of_the_function_around_it_must_be_an_argument() -> None:
    def outer(scale: jax.Array) -> jax.Array:
        return auto(lambda x: x * scale)(jnp.ones(BATCH))

    with pytest.raises(TraceError, match=r"without taking it as an argument(.|\n)*fix: pass the value"):
        jax.jit(outer)(2.0)


def test_without_jit_the_step_runs_as_written_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def step(x: jax.Array) -> jax.Array:
        seen.append(float(x.sum()))  # a Python value: only there when nothing is traced
        return 2 * x

    planned = auto(step)
    with jax.disable_jit(), caplog.at_level(logging.INFO, logger="jaxplan"):
        for _ in range(2):
            np.testing.assert_array_equal(planned(jnp.ones(8)), 2 * np.ones(8))
    assert seen == [8.0, 8.0]
    assert planned.counts.plans == 0
    (message,) = caplog.messages
    assert "jit is disabled" in message and "without its plan" in message


# arguments that lie somewhere


def test_what_was_placed_elsewhere_moves_and_is_said_once(
    planned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = planned.plan.jit()
    state, x = arguments()
    mesh = Mesh(np.array(jax.devices()[4:6]), ("pair",))
    on_one = jax.device_put(state[0]["in"], jax.devices()[3])
    on_two = jax.device_put(state[0]["out"], NamedSharding(mesh, PartitionSpec("pair")))
    state = ({**state[0], "in": on_one, "out": on_two}, *state[1:])
    with caplog.at_level(logging.INFO, logger="jaxplan"):
        for _ in range(3):
            assert_close(run(state, x), expected())
    moved, placed = caplog.records
    assert (moved.levelname, placed.levelname) == ("WARNING", "INFO")
    assert "2 of the step's arguments were committed" in moved.getMessage()
    assert "[0][0]['in'] (16.0 KiB) from " in moved.getMessage() and "3" in moved.getMessage()
    assert "[0][0]['out'] (16.0 KiB) from P('pair') on 2 devices" in moved.getMessage()
    assert "32.0 KiB in all" in moved.getMessage()
    assert "the host" in placed.getMessage()


def test_what_is_in_place_is_not_spoken_of(planned: Any, caplog: pytest.LogCaptureFixture) -> None:
    run = planned.plan.jit()
    placed = run.shard(*arguments())
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="jaxplan"):
        state, _ = run(*placed)
        run(state, placed[1])
    assert caplog.messages == []


# the cache key


def test_weak_types_are_told_apart() -> None:
    def step(x: jax.Array, scale: Any) -> jax.Array:
        return x * scale

    planned, x = auto(step), jnp.ones((8, 8), jnp.bfloat16)
    for scale in (2.0, jnp.float32(2), 3.0, jnp.float32(3)):
        assert planned(x, scale).dtype == jax.jit(step)(x, scale).dtype
    assert planned.counts.plans == 2


def test_static_values_are_told_apart_by_type_too() -> None:
    def step(x: jax.Array, power: Any) -> Any:
        return x**power

    planned, x = auto(step, static_argnums=-1), jnp.full((8, 8), 3)
    for power in (2, 2.0, True, 1, 2):
        wanted = jax.jit(step, static_argnums=1)(x, power)
        result = planned(x, power)
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted)
    assert planned.counts.plans == 3  # to the power of 1 and of True is one program
    with pytest.raises(ArgumentError, match=r"static argument 1 is \[2\].*not hashable(.|\n)*fix:"):
        planned(x, [2])


def test_settings_that_change_the_trace_are_part_of_the_key() -> None:
    def step(x: jax.Array) -> jax.Array:
        return x + jnp.zeros(x.shape, float)

    planned, x = auto(step), np.ones((8, 8), np.float32)
    assert planned(x).dtype == jnp.float32
    with jax.enable_x64(True):
        assert planned(x).dtype == jnp.float64
        with jax.default_matmul_precision("highest"):
            planned(x)
    assert planned(x).dtype == jnp.float32
    assert planned.counts.plans == 3


def test_keywords_of_the_step_may_be_called_like_options() -> None:
    def step(x: jax.Array, *, memory: Any, topology: Any) -> jax.Array:
        return x * memory + topology

    result = auto(step)(jnp.ones((8, 8)), memory=jnp.float32(2), topology=jnp.float32(3))
    np.testing.assert_array_equal(result, np.full((8, 8), 5))


# modes of JAX


def _modes() -> Iterator[Any]:
    yield pytest.param(lambda: jax.enable_x64(True), np.float64, 1e-9, id="x64")
    yield pytest.param(lambda: jax.numpy_dtype_promotion("strict"), np.float32, 1e-5, id="strict-promotion")
    yield pytest.param(lambda: jax.numpy_rank_promotion("raise"), np.float32, 1e-5, id="rank-promotion")
    yield pytest.param(lambda: jax.debug_nans(True), np.float32, 1e-5, id="debug-nans")


@pytest.mark.sample(2)
@pytest.mark.parametrize(("mode", "dtype", "rtol"), list(_modes()))
def test_planned_in_a_mode_of_jax(mode: Callable[[], Any], dtype: Any, rtol: float) -> None:
    """With rows of the batch split and gathered, so that islands and reshardings run in the mode too."""
    with mode():
        state, x = arguments(dtype)
        frontier = jaxplan.plan(train_step, state, x, topology="cpu:8", memory="1GiB", donate_argnums=())
        plan = frontier.references["fsdp"]
        assert {"all-gather", "reduce-scatter"} <= {c.kind for c in plan.prediction.collectives}
        result = plan.jit()(state, x)
        assert_close(result, jax.jit(train_step)(state, x), rtol)
        assert result[1].dtype == dtype


def test_a_nan_is_found_and_its_line_named(planned: Any) -> None:
    state, x = arguments()
    bad = x - 40.0  # log1p of something below -1
    line = inspect.getsourcelines(loss_fn)[1] + 1
    assert np.isnan(planned(state, bad)[1])
    with jax.debug_nans(True):
        with pytest.raises(
            FloatingPointError, match=rf"nan.*log1p, at .*test_manners\.py:{line} \(loss_fn\)"
        ):
            planned(state, bad)
        with pytest.raises(FloatingPointError, match="nan"):
            jax.jit(train_step)(state, bad)


def test_running_a_planned_step_leaves_the_settings_of_jax_as_they_were() -> None:
    before = dict(jax.config.values)
    auto(lambda x: x * 2)(np.ones((8, 8), np.float32))
    assert dict(jax.config.values) == before


# threads, the logger, progress, import


def test_threads_that_call_first_at_once_plan_and_compile_once() -> None:
    traces = []

    def step(x: jax.Array) -> jax.Array:
        traces.append(threading.get_ident())
        time.sleep(0.3)  # the others arrive while the first one plans
        return jnp.sum(x * 2.0)

    planned, barrier, results, compilations = auto(step), threading.Barrier(4), [], _Lines("jax")

    def call() -> None:
        barrier.wait()
        results.append(planned(np.ones((8, 8), np.float32)))

    threads = [threading.Thread(target=call) for _ in range(4)]
    jax.config.update("jax_log_compiles", True)
    try:
        with compilations:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        jax.config.update("jax_log_compiles", False)
    assert [float(r) for r in results] == [128.0] * 4
    assert len(traces) == planned.counts.plans == 1
    assert sum("Compiling" in line and "planned_step" in line for line in compilations.lines) == 1


class _Lines(logging.Handler):
    """Messages of a logger and its children, of all threads, while the block runs."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.DEBUG)
        self.logger, self.lines = logging.getLogger(name), []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> None:
        self.logger.addHandler(self)

    def __exit__(self, *error: object) -> None:
        self.logger.removeHandler(self)


def test_a_warning_is_given_once_per_cause(caplog: pytest.LogCaptureFixture) -> None:
    x = jax.ShapeDtypeStruct((30, 32), jnp.float32)
    state = jax.eval_shape(lambda: arguments()[0])
    with caplog.at_level(logging.DEBUG, logger="jaxplan"):
        frontiers = [jaxplan.plan(train_step, state, x, topology="cpu:8", memory="1GiB") for _ in range(2)]
    assert all(frontier.notes for frontier in frontiers)
    assert len(caplog.messages) == len(set(caplog.messages)) == len(frontiers[0].notes)
    assert {record.name for record in caplog.records} == {"jaxplan"}


def test_there_is_one_logger() -> None:
    package = Path(jaxplan.__file__).parent
    named = [path.name for path in package.rglob("*.py") if "getLogger" in path.read_text(encoding="utf-8")]
    assert named == ["_log.py"]


def test_nothing_is_printed_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    auto(lambda x: x * 2)(np.ones((8, 8), np.float32))
    assert capfd.readouterr() == ("", "")


def test_import_is_light() -> None:
    """At most 0.3 s above JAX, the decorator included, and nothing heavy; loading a plan needs no solver either."""
    program = """
        import sys, time, jax, numpy
        before, start = set(sys.modules), time.process_time()
        import jaxplan
        assert jaxplan.JaxplanError
        light = {"jaxplan.errors", "jaxplan.core", "jaxplan.core._lazy", "jaxplan.core._version"}
        assert not [m for m in sys.modules if m.startswith("jaxplan.") and m not in light], sys.modules
        step = jaxplan.auto(lambda x: x)
        seconds = time.process_time() - start
        heavy = {"scipy", "networkx", "rich", "matplotlib", "flax", "optax"}
        assert not heavy & (set(sys.modules) - before), heavy & set(sys.modules)
        jaxplan.Plan, jaxplan.Frontier, jaxplan.load
        assert not heavy & (set(sys.modules) - before), heavy & set(sys.modules)
        assert seconds < 0.3, seconds
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_devices_are_counted_before_anything_is_searched() -> None:
    def step(x: jax.Array) -> jax.Array:
        raise AssertionError("traced")

    with pytest.raises(PlanMismatchError, match=r"needs 64 devices .* and 8 are there"):
        auto(step, topology="cpu:64")(jnp.ones((64, 64)))
