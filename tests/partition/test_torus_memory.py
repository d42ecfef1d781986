"""Memory of plans for TPUs, compiled without them: the bytes of images, loops and tables."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from benchmarks.models import build
from jaxplan.cost import padded_bytes, row_by_row_bytes
from jaxplan.partition import _steps
from tests.partition.edited_plans import with_lowering, with_schedule
from tests.sampling import sampled

pytestmark = pytest.mark.tpu_aot
MOST_UNDER = 0.92
"""As `benchmarks.accuracy` allows."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "configuration", "names", "most"),
    sampled(
        [
            ("lstm", {}, ("data", "zero2"), 1.12),
            ("resnet50", {"stage_sizes": (2, 1, 1, 1)}, ("data", "spatial"), 1.08),
            ("moe-8x", {"num_layers": 2}, ("data",), 1.08),
            ("mamba-130m", {"num_layers": 1}, ("leanest", "zero2"), 1.12),
            ("mixer-b16", {"num_layers": 4}, ("data", "megatron"), 1.12),
        ]
    ),
)
def test_compiled_memory_is_the_predicted_one(
    model: str, configuration: dict[str, Any], names: tuple[str, ...], most: float
) -> None:
    """The ResNet was a quarter below, the LSTM a third above, before images were in tiles of batch and features and
    stacks of loops lay beside the cores; experts were 5 % below before the operands of their dots were written. The
    leanest plan of the Mamba took seven times the memory that was predicted, and a half less than that was counted. The
    Mixer was 20 % below with 128 images on each device."""
    step, arguments = build(model, **configuration)
    frontier = jaxplan.plan(step, *arguments, topology="v5e:2x4", progress=False)
    for name in names:
        audit = frontier.choose(name).audit()
        assert audit.collectives_ok, audit.table()
        ratio = audit.predicted_memory_bytes / audit.compiled_memory_bytes
        assert MOST_UNDER <= ratio <= most, audit.table()


@pytest.mark.slow
def test_tables_are_gathered_in_the_width_in_which_dots_read_their_rows() -> None:
    """Rows of four f32 tables are read by dots alone, which round them to bfloat16: half of the bytes travel."""
    rows, width = 20000, 64
    step, arguments = build("dlrm", rows=rows, num_tables=4, width=width)
    audit = jaxplan.plan(step, *arguments, topology="v5e:2x4", progress=False).choose("zero2").audit()
    gathers = [row for row in audit.rows if row.kind == "all-gather"]
    assert [row.predicted_bytes for row in gathers] == [row.compiled_bytes for row in gathers], audit.table()
    tables = 4 * rows * width
    assert 2 * tables <= max(row.compiled_bytes for row in gathers) < 4 * tables


# Shape, the two innermost dimensions, and the bytes in the buffer assignment of a ResNet-50 compiled for TPU v5e.
@pytest.mark.parametrize(
    ("shape", "inner", "compiled_mib"),
    [((32, 56, 56, 64), (0, 3), 24.5), ((128, 14, 56, 64), (0, 3), 12.25), ((32, 224, 224, 3), (0, 3), 49.0)],
)
def test_images_have_batch_and_features_innermost(
    shape: tuple[int, ...], inner: tuple[int, int], compiled_mib: float
) -> None:
    assert padded_bytes(shape, 2, inner) == compiled_mib * 2**20
    assert row_by_row_bytes((4, 8, 8), 2) == 4 * 8 * 128 * 2  # eight columns take 128


@pytest.mark.slow
def test_gradients_are_there_before_the_peak() -> None:
    """Dots that make gradients, put off, keep 36 MiB of each of a Mixer's blocks twice; with four blocks a program
    took 587 MiB beside its arguments, and 419 where they were asked for."""
    step, arguments = build("mixer-b16", num_layers=3)
    plan = jaxplan.plan(step, *arguments, topology="v5e:2x4", progress=False).references["data1x4_tensor2x1"]
    audit = plan.audit()
    put_off = with_schedule(plan, barriers=()).audit()
    assert put_off.compiled_memory_bytes > 1.1 * audit.compiled_memory_bytes, put_off.table()


@pytest.mark.slow
def test_what_a_gather_waits_for_is_in_memory_anyway() -> None:
    """The probabilities of a T5's attention, bfloat16[8, 12, 512, 512] on each device, are computed inside of dots;
    in a barrier they were written, and kept for the backward pass."""
    step, arguments = build("t5-base", num_layers=2)
    plan = jaxplan.plan(step, *arguments, topology="v5e:2x4", progress=False).references["zero2"]
    audit = plan.audit()
    equations = plan.require_program().program.equations
    guards = [
        dataclasses.replace(g, operands=tuple(range(len(equations[g.equation].operands)))) if g.operands else g
        for g in plan.lowering.gather_guards
    ]
    written = with_lowering(plan, gather_guards=tuple(guards)).audit()
    probabilities = 8 * 12 * 512 * 512 * 2
    assert written.compiled_memory_bytes > audit.compiled_memory_bytes + 0.9 * probabilities, written.table()


@pytest.mark.slow
def test_the_gradient_of_capped_logits_is_computed_inside_of_dots() -> None:
    """Logits that a tanh caps, split by the vocabulary: 250 MiB a device. A dot that waits for other gradients was
    asked to wait through their gradient, which is computed where it is read, and which that wrote."""
    configuration = {"num_layers": 1, "batch_size": 32, "sequence_length": 512, "window": 256, "vocab_size": 64000}
    step, arguments = build("gemma2-2b", **configuration)
    frontier = jaxplan.plan(step, *arguments, topology="v5e:2x4", progress=False)
    audit = frontier.choose("fastest").audit()
    logits = 32 * 512 * 64000 * 2 // 8
    held = [h for h in audit.held if h.num_bytes >= logits]
    assert not [h for h in held if "transpose(jvp(Gemma))/convert_element_type" in h.op_name], held
    assert audit.predicted_memory_bytes / audit.compiled_memory_bytes >= MOST_UNDER, audit.table()


@pytest.mark.slow
def test_rows_of_a_gradient_are_scattered_in_the_order_in_which_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the gradient of a VGG's first dense layer, bfloat16[25088, 4096], the other order was written first."""

    def step(weights: Any, x: Any) -> Any:
        def loss_fn(weights: Any) -> Any:
            first, second, third = (w.astype(jnp.bfloat16) for w in weights)
            return jnp.mean(jax.nn.relu(jax.nn.relu(x @ first) @ second) @ third).astype(jnp.float32)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss_fn)(weights))

    weights = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((1024, 25088), (25088, 4096), (4096, 1024))]
    x = jax.ShapeDtypeStruct((256, 1024), jnp.bfloat16)
    plan = jaxplan.plan(step, weights, x, topology="v5e:2x4", progress=False).references["zero2"]
    audit = plan.audit()
    assert MOST_UNDER <= audit.predicted_memory_bytes / audit.compiled_memory_bytes <= 1.08, audit.table()
    pinned = _steps.with_layout_constraint
    monkeypatch.setattr(_steps, "with_layout_constraint", lambda x, order: x if x.ndim == 2 else pinned(x, order))
    jax.clear_caches()
    left_alone = plan.audit()
    gradient = 25088 * 4096 * 2
    assert left_alone.compiled_memory_bytes > audit.compiled_memory_bytes + 0.9 * gradient, left_alone.table()
