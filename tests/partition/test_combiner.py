"""How far collectives may be combined: the options, and compiled GPU programs that obey them."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.audit import compile_plan
from jaxplan.partition._combiner import combiner_options
from tests.partition.edited_plans import with_schedule

MIB = 2**20


def _options(memory_bytes: int, platform: str | None) -> dict[str, str]:
    prediction = SimpleNamespace(memory_bytes=memory_bytes)
    plan: Any = SimpleNamespace(prediction=prediction, topology=jaxplan.Topology.parse("h100:8"))
    return combiner_options(plan, platform)


def test_a_hundredth_of_the_memory_may_be_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    options = _options(1000 * MIB, "cuda")
    assert options == {
        "xla_gpu_all_gather_combine_threshold_bytes": str(10 * MIB),
        "xla_gpu_all_reduce_combine_threshold_bytes": str(10 * MIB),
        "xla_gpu_reduce_scatter_combine_threshold_bytes": str(10 * MIB // 8),  # of shards
    }
    assert max(map(int, _options(MIB, "gpu").values())) == MIB


def test_the_compilers_own_limit_stays_where_it_is_less() -> None:
    assert _options(3000 * MIB, "cuda") == {}


@pytest.mark.parametrize("platform", ["cpu", "tpu", None])
def test_other_platforms_have_no_such_options(platform: str | None) -> None:
    assert _options(MIB, platform) == {}


def test_a_limit_in_the_environment_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_all_gather_combine_threshold_bytes=0")
    assert len(_options(MIB, "cuda")) == 2


def _zero2_of_matrices(number: int, width: int, batch: int) -> jaxplan.Plan:
    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = x
            for weight in params:
                hidden = jnp.tanh(hidden @ weight)
            return jnp.sum(hidden**2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    matrix = jax.ShapeDtypeStruct((width, width), jnp.float32)
    x = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    frontier = jaxplan.plan(step, [matrix] * number, x, topology="h100:8", donate_argnums=(0,))
    return frontier.references["zero2"]


@pytest.mark.gpu_aot
def test_large_gradients_are_reduced_one_by_one() -> None:
    """Three gradients of 4 MiB: one reduce-scatter of all would hold them together."""
    report = compile_plan(_zero2_of_matrices(3, 1024, 8192))
    scattered = [c for c in report.collectives if c.kind == "reduce-scatter"]
    assert [c.num_bytes for c in scattered] == [4 * MIB] * 3


@pytest.mark.slow
@pytest.mark.gpu_aot
def test_latencies_are_those_of_the_combined_collectives() -> None:
    """Six gradients and six parameters of 1 MiB in a program of 450 MiB: the rest pays a latency each. Where a
    dot waits for gradients, those before it are not combined with those after it: one latency more."""
    plan = _zero2_of_matrices(6, 512, 3 * 2**16)
    waiting = compile_plan(plan)
    report = compile_plan(with_schedule(plan, barriers=()))
    for kind in ("reduce-scatter", "all-gather"):
        planned = [c for c in plan.prediction.collectives if c.kind == kind]
        assert sum(c.count for c in planned) == 6
        left = sum(c.count for c in report.collectives if c.kind == kind)
        assert left < 6
        assert left <= sum(c.count for c in waiting.collectives if c.kind == kind) <= left + 1
        assert sum(c.count * c.latency_share for c in planned) == pytest.approx(left, abs=1e-6)


def test_a_plan_names_the_options_that_it_is_compiled_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    w = jax.ShapeDtypeStruct((256, 256), "float32")
    plan = jaxplan.plan(lambda w, x: w - x.T @ (x @ w), w, w, topology="h100:8").fastest()
    assert plan.compiler_options["xla_gpu_all_reduce_combine_threshold_bytes"] == str(MIB)  # the least, of 1 % of 1 MiB
    assert f"--xla_gpu_all_reduce_combine_threshold_bytes={MIB}" in plan.explain()
