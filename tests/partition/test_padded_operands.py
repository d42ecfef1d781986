"""A gradient that two dots read with padding is padded once, although the weight of one of them is gathered again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import jaxplan
from benchmarks.accuracy._population import draw_step
from tests.partition.edited_plans import with_lowering

VOCABULARY, WIDTH, TOKENS = 50257, 256, 16384


def _step(params: Any, x: Any, labels: Any) -> Any:
    def loss_fn(params: Any) -> Any:
        logits = jnp.tanh(x @ params["in"]) @ params["head"]
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels))

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params))


def _plan(vocabulary: int = VOCABULARY, topology: str = "h100:8") -> jaxplan.Plan:
    params = {
        "in": jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16),
        "head": jax.ShapeDtypeStruct((WIDTH, vocabulary), jnp.bfloat16),
    }
    x = jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.bfloat16)
    labels = jax.ShapeDtypeStruct((TOKENS,), jnp.int32)
    return jaxplan.plan(_step, params, x, labels, topology=topology, progress=False).references["fsdp"]


def _of_the_head(plan: jaxplan.Plan) -> tuple[int, list[int]]:
    """The gradient of the logits, and the dots that read it, in order."""
    program = plan.require_program().program
    dots = [e for e in program.equations if e.name == "dot_general" and e.phase == "backward"]
    sizes = {t: program.tensors[t].num_elements for e in dots for t in e.operands}
    gradient = max(sizes, key=lambda t: sizes[t])
    return gradient, [e.index for e in dots if gradient in e.operands]


def test_the_gradient_of_the_logits_is_padded_for_two_dots() -> None:
    plan = _plan()
    gradient, dots = _of_the_head(plan)
    assert len(dots) == 2
    assert gradient in plan.lowering.padded


@pytest.mark.parametrize(("vocabulary", "topology"), [(50304, "h100:8"), (VOCABULARY, "v5e:2x4")])
def test_nothing_is_padded_twice_where_nothing_is_padded(vocabulary: int, topology: str) -> None:
    assert not _plan(vocabulary, topology).lowering.padded


def test_a_saved_plan_keeps_what_is_padded(tmp_path) -> None:
    plan = _plan()
    plan.save(tmp_path / "plan.json")
    assert jaxplan.load(tmp_path / "plan.json").lowering.padded == plan.lowering.padded


@pytest.mark.slow
@pytest.mark.gpu_aot
def test_the_padded_gradient_is_in_memory_once() -> None:
    """Gradients pass a barrier with the weight that is gathered again. Behind it they were padded once more.

    A language model over 50257 words in bfloat16; each of 8 devices has 4096 rows of its logits.
    """
    drawn = draw_step(544220)
    frontier = jaxplan.plan(drawn.step, *drawn.args, topology="h100:8", progress=False)
    plan = min(frontier, key=lambda plan: plan.memory_bytes)
    audit = plan.audit()
    assert 0.95 * audit.compiled_memory_bytes < plan.memory_bytes < 1.05 * audit.compiled_memory_bytes, audit.table()
    assert all(row.predicted_bytes == row.compiled_bytes for row in audit.rows if row.kind == "all-gather")
    twice = with_lowering(plan, padded=frozenset()).audit()
    assert twice.compiled_memory_bytes > audit.compiled_memory_bytes + 0.9 * 4096 * 2 * VOCABULARY, twice.table()
