"""The scheduler that hides communication: plans that name it, flags of the user, and the compiled program."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.audit import compile_plan
from jaxplan.partition import compiler_options

SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"
WIDTH, BATCH = 1024, 8192


def step(params: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        hidden = x
        for weight in params:
            hidden = jnp.tanh(hidden @ weight)
        return jnp.sum(hidden**2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def planned(topology: str, **options: Any) -> jaxplan.Frontier:
    matrix, x = (jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32) for rows in (WIDTH, BATCH))
    return jaxplan.plan(step, [matrix] * 4, x, topology=topology, donate_argnums=(0,), progress=False, **options)


@pytest.fixture(autouse=True)
def _no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def test_plans_with_hidden_communication_name_the_scheduler_and_print_it() -> None:
    plan = planned("h100:8").fastest()
    assert plan.compiler_options[SCHEDULER] == "True"
    line = next(line for line in plan.explain().splitlines() if "XLA_FLAGS='" in line)
    assert SCHEDULER in line
    assert all(f"--{name}={value}" in line for name, value in plan.compiler_options.items())


@pytest.mark.parametrize(
    ("topology", "options"),
    [("h100:8", {"overlap": False}), ("h100:1", {}), ("v5e:2x4", {}), ("cpu:8", {})],
)
def test_others_do_not(topology: str, options: Any) -> None:
    """Sums assume no scheduler, one device has nothing to hide, and other compilers have no such option."""
    assert SCHEDULER not in planned(topology, **options).fastest().compiler_options


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_flag_in_the_environment_is_the_users(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned("h100:8").fastest()
    monkeypatch.setenv("XLA_FLAGS", f"--{SCHEDULER}={value}")
    assert SCHEDULER not in compiler_options(plan, "cuda")


@pytest.mark.gpu_aot
def test_the_compiler_hides_by_default_and_the_option_costs_no_memory() -> None:
    """A gather starts, products run, and then its result is waited for; the same with and without the option."""
    plan = planned("h100:8").references["fsdp"]
    silent = dataclasses.replace(plan, prediction=dataclasses.replace(plan.prediction, overlapped=False))
    named, left = compile_plan(plan), compile_plan(silent)
    assert named.memory == left.memory
    orders = [_order(report.hlo_text or "") for report in (named, left)]
    assert orders[0] == orders[1]
    assert re.search("start (dot )+done", orders[0])


def _order(hlo_text: str) -> str:
    """Gathers and products of the entry computation in scheduled order, such as ``start dot done``."""
    entry = hlo_text[hlo_text.index("\nENTRY") :]
    kinds = {"all-gather-start": "start", "all-gather-done": "done"}
    found = []
    for line in entry.splitlines():
        name = line.partition(" = ")[0]
        found += ["dot"] if "__cublas" in line else [kind for word, kind in kinds.items() if word in name]
    return " ".join(found)
