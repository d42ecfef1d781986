"""Plans that a decorated step keeps and takes: plans by their compiled memory, a bounded number of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan import ArgumentError, InfeasibleError
from jaxplan.core import _log
from jaxplan.partition import _planned

WIDTH, HIDDEN, BATCH = 64, 256, 64


def train_step(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    def loss_fn(params: Any) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def arguments(batch: int = BATCH) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"in": (WIDTH, HIDDEN), "out": (HIDDEN, WIDTH)}
    params = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    return params, rng.normal(0, 1, (batch, WIDTH)).astype(np.float32)


def auto(**options: Any) -> Any:
    return jaxplan.auto(train_step, **{"topology": "cpu:8", "memory": "1GiB", "donate_argnums": (), **options})


def compiled_peak(run: Any) -> int:
    """By the compiler's analysis, asked for here: arguments + outputs - aliased + temporaries."""
    found = run.lower(*arguments()).compile().memory_analysis()
    sizes = found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes
    return sum(sizes) - found.alias_size_in_bytes


@pytest.fixture(autouse=True)
def new_process() -> None:
    _log.forget()


@pytest.fixture(scope="module")
def frontier() -> jaxplan.Frontier:
    frontier = jaxplan.plan(train_step, *arguments(), topology="cpu:8", memory="1GiB", donate_argnums=())
    assert len(frontier) >= 3
    return frontier


@pytest.fixture
def compiled_as(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], int | None]], list[int]]:
    """Let the compiler say of programs, in the order in which they are compiled, the figures of a function."""

    def say(num_bytes: Callable[[int], int | None]) -> list[int]:
        asked: list[int] = []

        def compiled_bytes(compiled: Any) -> int | None:
            asked.append(len(asked))
            return num_bytes(asked[-1])

        monkeypatch.setattr(_planned, "compiled_bytes", compiled_bytes)
        return asked

    return say


# memory of the compiled program


def test_the_plan_tells_the_compiled_memory(frontier: jaxplan.Frontier) -> None:
    step = auto()
    step(*arguments())
    peak = compiled_peak(frontier.fastest().jit())
    assert step.plan.memory_bytes == step.plan.verified_memory_bytes == peak > 0
    assert step.plan.prediction.memory_bytes == frontier.fastest().prediction.memory_bytes
    assert step.plan.time_seconds == frontier.fastest().time_seconds
    assert "as compiled" in step.plan.explain()
    assert step.frontier.label(step.plan) == frontier.label(frontier.fastest())
    assert step.counts.compiles == 1


def test_a_plan_that_runs_by_itself_tells_it_too(frontier: jaxplan.Frontier) -> None:
    run = frontier.leanest().jit()
    assert run.plan.verified is None
    run(*arguments())
    assert run.plan.memory_bytes == compiled_peak(run)
    assert run.plan.is_same_program(frontier.leanest())
    assert not run.plan.is_same_program(frontier.fastest())


def test_above_the_limit_a_plan_that_fits_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    """Without help of the test: bfloat16 dots run in float32 on CPUs, so that programs need more than predicted."""

    def narrow(w: jax.Array, x: jax.Array) -> jax.Array:
        y = jnp.tanh(x @ w)
        return w - jax.grad(lambda w: jnp.mean((jnp.tanh(y @ w) @ w).astype(jnp.float32) ** 2))(w)

    values = [np.zeros(shape, jnp.bfloat16) for shape in ((512, 512), (512, 512))]
    options: dict[str, Any] = {"topology": "cpu:8", "donate_argnums": ()}
    frontier = jaxplan.plan(narrow, *values, memory="1GiB", **options)
    peaks = {}
    for number, plan in enumerate(frontier):
        found = plan.jit().lower(*values).compile().memory_analysis()
        peaks[number] = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    limit = frontier.fastest().prediction.memory_bytes
    assert peaks[len(frontier) - 1] > limit, "this compiler needs no more than predicted: another step is needed"
    step = jaxplan.auto(narrow, memory=limit, **options)
    if min(peaks.values()) > limit:
        with pytest.raises(InfeasibleError):
            step(*values)
        return
    with caplog.at_level(logging.WARNING, logger="jaxplan"):
        step(*values)
    assert step.plan.memory_bytes <= limit
    assert "above the limit" in caplog.text


def test_the_next_plan_is_taken_and_said_once(
    frontier: jaxplan.Frontier, compiled_as: Any, caplog: pytest.LogCaptureFixture
) -> None:
    limit, fastest = 1 << 30, frontier.fastest()
    asked = compiled_as(lambda number: (2 << 30, 50_000)[number])
    step = auto(memory="1GiB")
    with caplog.at_level(logging.INFO, logger="jaxplan"):
        results = [step(*arguments()) for _ in range(3)]
    np.testing.assert_allclose(results[-1][1], jax.jit(train_step)(*arguments())[1], rtol=1e-5)
    assert step.plan.memory_bytes == 50_000 <= limit
    assert not step.plan.is_same_program(fastest)
    (message,) = [m for m in caplog.messages if "above the limit" in m]
    assert "train_step: " in message and frontier.label(fastest) in message and "2.00 GiB compiled" in message
    assert "limit of 1.00 GiB" in message and "48.8 KiB compiled" in message
    assert step.frontier.label(step.plan) in message
    assert len(asked) == step.counts.compiles == 2 and step.counts.plans == 1


@pytest.mark.parametrize("choose", ["fastest", "knee", "leanest", 1])
def test_the_order_is_from_the_choice_to_leaner_ones(
    choose: Any, frontier: jaxplan.Frontier, compiled_as: Any
) -> None:
    """Each is a byte too large but the last that is tried: all are, and the leaner ones first."""
    num = len(frontier)
    first = frontier.points.index(frontier.choose(choose))
    limit = 1 << 30
    compiled_as(lambda number: limit + 1 if number < num - 1 else limit)
    step = auto(choose=choose)
    step(*arguments())
    last = 0 if first == num - 1 else num - 1
    taken = step.frontier.points[last]
    # Corrected by the errors of their predictions, none should fit: then the leanest left is tried.
    order = [first, *[i for i in range(num) if i != first]]
    assert step.plan.is_same_program(step.frontier.points[order[-1]]) or step.plan.is_same_program(taken)
    assert step.counts.compiles == num


def test_when_nothing_fits_the_least_compiled_memory_is_named(
    frontier: jaxplan.Frontier, compiled_as: Any
) -> None:
    compiled_as(lambda number: (3 << 30) - number)
    step = auto()
    with pytest.raises(InfeasibleError, match=r"no plan fits 1\.00 GiB") as caught:
        step(*arguments())
    assert caught.value.smallest_memory_bytes == (3 << 30) - (len(frontier) - 1)
    assert str(caught.value.smallest_memory_bytes) in str(caught.value)


def test_a_program_that_the_compiler_refuses_is_passed_over(
    compiled_as: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(number: int) -> int:
        if number == 0:
            raise RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm")
        return 1000

    compiled_as(refuse)
    step = auto()
    step(*arguments())
    assert step.plan.memory_bytes == 1000
    assert "refused by the compiler for its size" in caplog.text
    compiled_as(lambda number: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        auto()(*arguments())


def test_a_strategy_that_was_chosen_by_name_is_kept(
    frontier: jaxplan.Frontier, compiled_as: Any, caplog: pytest.LogCaptureFixture
) -> None:
    name = next(name for name, plan in frontier.references.items() if plan not in frontier.points)
    compiled_as(lambda number: 2 << 30)
    step = auto(choose=name)
    step(*arguments())
    assert step.plan.name == name and step.plan.memory_bytes == 2 << 30
    assert "taken all the same, because it was chosen by name" in caplog.text


def test_where_the_compiler_says_nothing_the_prediction_stays(
    frontier: jaxplan.Frontier, compiled_as: Any
) -> None:
    compiled_as(lambda number: None)
    step = auto()
    step(*arguments())
    assert step.plan.verified is None
    assert step.plan.memory_bytes == frontier.fastest().memory_bytes


def test_inside_another_trace_nothing_is_compiled_and_outside_it_is_looked_at(compiled_as: Any) -> None:
    asked = compiled_as(lambda number: (2 << 30, 1000)[number])
    step = auto()
    jax.jit(step)(*arguments())
    assert asked == [] and step.plan.verified is None
    step(*arguments())
    assert step.plan.memory_bytes == 1000 and asked == [0, 1]
    jax.jit(step)(*arguments())
    assert (step.counts.plans, len(asked)) == (1, 2)


# how many plans are kept


def test_the_plan_used_longest_ago_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    step = auto(max_plans=2)
    for batch in (8, 16, 8, 24, 8):  # 24 takes the place of 16
        step(*arguments(batch))
    info = step.cache_info()
    assert (info.plans, info.num_plans, info.max_plans, info.compiles) == (3, 2, 2, 3)
    assert (info.hits, info.misses) == (2, 3)
    step(*arguments(24))
    assert step.counts.plans == 3
    step(*arguments(16))
    assert (step.counts.plans, step.cache_info().num_plans) == (4, 2)
    assert len([m for m in caplog.messages if "raise max_plans" in m]) == 1


def test_plans_can_be_forgotten_by_hand() -> None:
    step = auto()
    step(*arguments(8))
    step(*arguments(16))
    assert step.cache_info().num_plans == 2
    step.cache_clear()
    info = step.cache_info()
    assert (info.hits, info.misses, info.num_plans, info.plans, info.compiles) == (0, 0, 0, 0, 0)
    with pytest.raises(ArgumentError, match="has no plan yet"):
        _ = step.plan
    step(*arguments(8))
    assert step.cache_info().plans == 1


def test_without_a_bound_all_are_kept() -> None:
    step = auto(max_plans=None, memory="1GiB")
    for batch in (8, 16, 24):
        step(*arguments(batch))
    assert (step.cache_info().num_plans, step.cache_info().max_plans) == (3, None)
    assert auto().cache_info().max_plans == 32


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, "many"])
def test_what_is_no_number_of_plans(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)max_plans=.*expected.*likely cause.*fix"):
        auto(max_plans=wrong)


# machines and limits


def test_a_topology_of_other_devices_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    step = auto(topology="h100:8", memory=None)
    for batch in (8, 16):
        step(*arguments(batch))
    (message,) = [m for m in caplog.messages if "planned for h100:8" in m]
    assert "run on devices of kind 'cpu'" in message and "Leave out topology" in message
    caplog.clear()
    auto()(*arguments())
    assert not [m for m in caplog.messages if "planned for" in m]


@pytest.mark.parametrize("memory", [40, 1, 80, np.int64(64)])
def test_a_small_number_asks_whether_gib_was_meant(memory: Any) -> None:
    for call in (
        lambda: jaxplan.plan(train_step, *arguments(), topology="cpu:8", memory=memory),
        lambda: auto(memory=memory)(*arguments()),
        lambda: jaxplan.min_devices(train_step, *arguments(), topology="cpu:8", memory=memory),
    ):
        with pytest.raises(ArgumentError, match=rf"(?s)expected.*number of GiB was meant.*memory='{memory}GiB'"):
            call()


def test_small_amounts_with_a_unit_are_what_they_say() -> None:
    with pytest.raises(InfeasibleError):
        jaxplan.plan(train_step, *arguments(), topology="cpu:8", memory="40B")
    with pytest.raises(InfeasibleError, match=r"if another unit was meant, memory='40960MiB'"):
        jaxplan.plan(train_step, *arguments(), topology="cpu:8", memory=40 * 1024)
    assert jaxplan.plan(train_step, *arguments(), topology="cpu:8", memory=1 << 20).memory_limit_bytes == 1 << 20
