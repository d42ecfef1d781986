"""Gradients of a perceptron are there before the peak that comes after it in the backward pass."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from benchmarks.accuracy._population import draw_step
from benchmarks.models import build
from jaxplan.cost import _gradient_barriers as cost_barriers
from jaxplan.partition import _gradient_barriers, decide_lowering
from tests.partition.edited_plans import with_lowering, with_schedule
from tests.sampling import sampled
from tests.versions import IS_0_12, until_0_12

MIB = 2**20


def _step(params: Any, x: Any) -> Any:
    """A perceptron on products of the parts of a row with each other, which are the largest values."""

    def loss_fn(params: Any) -> Any:
        parts = jnp.tanh(x @ params["parts"]).reshape(len(x), -1, params["width"].shape[0])
        h = jnp.einsum("bid,bjd->bij", parts * params["width"], parts).reshape(len(x), -1)
        for layer in params["layers"]:
            h = jnp.tanh(h @ layer)
        return jnp.mean(h @ params["out"])

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params))


def _arguments(batch: int, num_parts: int, width: int, hidden: int, dtype: Any) -> tuple[Any, Any]:
    keys = iter(jax.random.split(jax.random.key(0), 7))
    sizes = [num_parts**2, hidden, hidden, hidden]
    params = {
        "parts": jax.random.normal(next(keys), (64, num_parts * width), dtype) / 8,
        "width": jnp.ones((width,), dtype),
        "layers": [jax.random.normal(next(keys), pair, dtype) / pair[0] for pair in itertools.pairwise(sizes)],
        "out": jax.random.normal(next(keys), (hidden, 1), dtype),
    }
    return params, jax.random.normal(next(keys), (batch, 64), dtype)


@pytest.mark.slow
@pytest.mark.gpu_aot
def test_what_a_perceptron_keeps_is_gone_before_the_peak() -> None:
    """On each device a layer of the perceptron is 8,192 x 1,024 float32: 32 MiB, and its cotangent as much."""
    arguments = jax.eval_shape(lambda: _arguments(65536, 64, 32, 1024, jnp.float32))
    plan = jaxplan.plan(_step, *arguments, topology="h100:8", progress=False).references["data"]
    audit = plan.audit()
    assert audit.compiled_memory_bytes < 1.05 * plan.memory_bytes, audit.table()
    put_off = with_schedule(plan, barriers=()).audit()
    assert put_off.compiled_memory_bytes > audit.compiled_memory_bytes + 4 * 32 * MIB, put_off.table()


def _convolved(kernels: Any, images: Any) -> Any:
    """Two convolutions, of which the second has a stride and reads a padded copy, forwards and for its kernel."""

    def convolve(kernel: Any, x: Any, stride: int) -> Any:
        form = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=form)

    def loss_fn(kernels: Any) -> Any:
        first, second = kernels
        return jnp.mean(convolve(second, jax.nn.softplus(convolve(first, images, 1)), 2).astype(jnp.float32) ** 2)

    return jax.tree.map(lambda k, g: k - (0.1 * g).astype(k.dtype), kernels, jax.grad(loss_fn)(kernels))


PIXELS, INPUTS, CHANNELS, WINDOW, IMAGES = 112, 32, 256, 5, 128


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize(
    "strategy", ["data", pytest.param("spatial", marks=until_0_12("one padded copy serves both passes"))]
)
def test_the_padded_copy_of_a_deferred_gradient_is_not_held(strategy: str) -> None:
    """Deferred, the gradient of the kernel would hold its copy beside the gradients of both convolutions.

    Rows in blocks of 14 for a device are extended by 3 of the neighbours, as the window reaches, and then padded along
    the columns.
    """
    kernels = [
        jax.ShapeDtypeStruct((WINDOW, WINDOW, a, b), jnp.bfloat16) for a, b in ((INPUTS, CHANNELS), (CHANNELS, INPUTS))
    ]
    images = jax.ShapeDtypeStruct((IMAGES, PIXELS, PIXELS, INPUTS), jnp.bfloat16)
    frontier = jaxplan.plan(_convolved, kernels, images, topology="h100:8", progress=False)
    plan = frontier.references[strategy]
    audit = plan.audit()
    rows = PIXELS // 8
    of_image = {"data": IMAGES // 8 * PIXELS, "spatial": IMAGES * rows}[strategy]
    activation = 2 * of_image * PIXELS * CHANNELS
    padded = {
        "data": 2 * IMAGES // 8 * (PIXELS + 3) * (PIXELS + 3) * CHANNELS,
        "spatial": 2 * IMAGES * (rows + 3) * (PIXELS + PIXELS + 3) * CHANNELS,
    }[strategy]
    result = 2 * of_image // 2 * PIXELS // 2 * INPUTS
    arguments = 2 * of_image * PIXELS * INPUTS + 2 * 2 * WINDOW**2 * INPUTS * CHANNELS
    assert audit.compiled_memory_bytes == pytest.approx(arguments + 2 * activation + padded + result, rel=0.05)
    assert audit.predicted_memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=0.02), audit.table()
    if strategy == "data":
        put_off = with_schedule(plan, barriers=()).audit()
        assert put_off.compiled_memory_bytes > 1.2 * audit.compiled_memory_bytes, put_off.table()


@pytest.mark.gpu_aot
def test_gradients_of_layers_of_a_stack_are_asked_for() -> None:
    """Each layer is a slice of a stack, and its gradient reads a copy of a cotangent that is gathered for it."""
    layers, width, batch = 6, 4096, 4096

    def step(stack: Any, x: Any) -> Any:
        def loss_fn(stack: Any) -> Any:
            h = x
            for first, second in zip(*stack):
                h = h + jax.nn.softplus(h @ first) @ second
            return jnp.mean(jax.nn.logsumexp(h, axis=-1))

        value, gradients = jax.value_and_grad(loss_fn)(stack)
        return jax.tree.map(lambda p, g: p - 0.1 * g, stack, gradients), value

    stack = [jax.ShapeDtypeStruct((layers, width, width), jnp.float32)] * 2
    args = stack, jax.ShapeDtypeStruct((batch, width), jnp.float32)
    plan = jaxplan.plan(step, *args, topology="h100:8", progress=False).leanest()
    assert plan.lowering.schedule.barriers
    audit, put_off = plan.audit(), with_schedule(plan, barriers=()).audit()
    assert audit.predicted_memory_bytes == pytest.approx(audit.compiled_memory_bytes, rel=0.05), audit.table()
    assert put_off.compiled_memory_bytes > 1.1 * audit.compiled_memory_bytes, put_off.table()


@pytest.mark.gpu_aot
@pytest.mark.slow
def test_gradients_of_layers_of_a_stack_are_no_barriers() -> None:
    """An unrolled transformer with layers that are slices of stacks, and a head of 1000 words in float32.

    The gradient of one layer may run late like any other, and with it the gradient that waits in front of it: that of
    the head, which keeps the gradient of the logits.
    """
    drawn = draw_step(544221)
    plan = jaxplan.plan(drawn.step, *drawn.args, topology="h100:8", progress=False).references["zero1"]
    equations = plan.require_program().program.equations
    barriers = [equations[barrier.equation] for barrier in plan.lowering.schedule.barriers]
    assert barriers and _read_by_dots(plan).issuperset(barrier.results[0] for barrier in barriers)
    audit = plan.audit()
    asked = plan.lowering.schedule.barriers
    before = tuple(replace(barrier, equation=_dot_before(plan, barrier.equation)) for barrier in asked)
    late = with_schedule(plan, barriers=before).audit()
    assert late.compiled_memory_bytes > audit.compiled_memory_bytes + 4 * MIB, late.table()


def _read_by_dots(plan: jaxplan.Plan) -> set[int]:
    """Tensors of which a dot of the backward pass is computed."""
    program, found = plan.require_program().program, set[int]()
    for eqn in reversed(program.equations):
        is_dot = eqn.name == "dot_general" and eqn.phase == "backward"
        if is_dot or (eqn.phase == "backward" and not found.isdisjoint(eqn.results)):
            found.update(eqn.operands)
    return found


def _dot_before(plan: jaxplan.Plan, equation: int) -> int:
    equations = plan.require_program().program.equations
    return max(e.index for e in equations if e.name == "dot_general" and e.index < equation)


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize("channels", [(64, 128, 128, 64), (128, 64, 256, 64, 128)])
def test_gradients_that_are_asked_for_hold_nothing_in_the_prediction_either(channels: tuple[int, ...]) -> None:
    """Images between convolutions of one pixel, in bfloat16: the kernel's gradient comes before that of its image in
    the program, and reads the image last if it is deferred. It is not, as the lowering asks for it."""

    def loss(kernels: Any, x: jax.Array) -> jax.Array:
        for kernel in kernels:
            numbers = ("NHWC", "HWIO", "NHWC")
            x = jnp.tanh(jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers))
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(kernels: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, kernels, jax.grad(loss)(kernels, x))

    half = jnp.bfloat16
    kernels = [jax.ShapeDtypeStruct((1, 1, *pair), half) for pair in itertools.pairwise(channels)]
    images = jax.ShapeDtypeStruct((512, 32, 32, channels[0]), half)
    plan = jaxplan.plan(step, kernels, images, topology="h100:8", progress=False).references["data"]
    assert plan.lowering.schedule.barriers
    assert plan.memory_bytes == pytest.approx(plan.compile_report().memory_bytes, rel=0.06)


@pytest.mark.slow
def test_sums_that_are_scattered_at_once_do_not_hide_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DiT with split sequences gathers its activations: sums of 24 MiB are a quarter of that at once. Counted whole,
    they are a peak above which nothing seems to wait."""
    step, arguments = build("dit-b4", num_layers=4)
    plan = jaxplan.plan(step, *arguments, topology="h100:8", progress=False).references["megatron_sequence"]
    monkeypatch.setattr(_gradient_barriers, "NEAR", -0.03)
    assert plan.lowering.schedule.barriers


@pytest.mark.gpu_aot
@pytest.mark.slow
def test_what_waits_close_to_the_peak_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Conformer with split sequences: the image of its first convolution, 550 MiB, stays until the end, and above it
    wait 25 MiB for each dot of 512 columns."""
    step, arguments = build("conformer-l", num_layers=4)
    plan = jaxplan.plan(step, *arguments, topology="h100:8", progress=False).references["megatron_sequence"]
    audit = plan.audit()
    assert audit.compiled_memory_bytes < 1.08 * plan.memory_bytes, audit.table()
    monkeypatch.setattr(_gradient_barriers, "NEAR", -0.03)
    assert plan.graph is not None
    lowering = decide_lowering(plan.graph, plan.topology, plan.configurations, plan.repeated)
    put_off = with_schedule(plan, barriers=lowering.schedule.barriers).audit()
    assert put_off.compiled_memory_bytes > audit.compiled_memory_bytes + 4 * 25 * MIB, put_off.table()


def test_nothing_is_asked_for_after_the_peak() -> None:
    """Scores of 8,192 classes and their gradient are the largest values, and come before every gradient.

    The smallest score may be found late, so that the gradient is not written over the scores.
    """

    def step(layers: Any, x: Any) -> Any:
        def loss_fn(layers: Any) -> Any:
            h = x
            for layer in layers[:-1]:
                h = jnp.tanh(h @ layer)
            scores = h @ layers[-1]
            return jnp.mean(jax.nn.logsumexp(scores, axis=1)), jnp.min(scores)

        gradients, smallest = jax.grad(loss_fn, has_aux=True)(layers)
        return jax.tree.map(lambda p, g: p - 0.1 * g, layers, gradients), smallest

    layers = [jax.ShapeDtypeStruct((64, size), jnp.float32) for size in (64, 64, 64, 8192)]
    x = jax.ShapeDtypeStruct((8192, 64), jnp.float32)
    plan = jaxplan.plan(step, layers, x, topology="h100:8", progress=False).references["data"]
    assert len(plan.lowering.reduced_at_once) == 4 and not plan.lowering.schedule.barriers


@pytest.mark.slow
@pytest.mark.gpu_aot
def test_probabilities_of_attention_wait_for_the_gradients_made_before() -> None:
    """Two dots read the cotangent of a block's attention; one makes 1 GiB of gradients of probabilities per device."""
    step, args = build("llama-1b", num_layers=2)
    plan = jaxplan.plan(step, *args, topology="h100:8", progress=False).references["data"]
    program = plan.require_program().program
    results = [program.equations[barrier.equation].results[0] for barrier in plan.lowering.schedule.barriers]
    assert (2048, 2048) in [program.tensors[t].shape[-2:] for t in results]
    audit = plan.audit()
    assert audit.compiled_memory_bytes < 1.02 * plan.memory_bytes, audit.table()


def _looped_step(params: Any, tokens: Any, labels: Any) -> Any:
    """A table read by rows, layers in a loop and a head; the table's gradient comes last."""

    def loss_fn(params: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            return h + jnp.tanh(h @ w["up"]) @ w["down"], None

        h, _ = jax.lax.scan(jax.checkpoint(layer), params["table"][tokens], params["layers"])
        logits = h @ params["head"]
        chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params))


def _narrow_step(params: Any, tokens: Any, labels: Any) -> Any:
    """A table that is read by rows, and in 16 bits and transposed as the output projection, around layers in a loop."""

    def loss_fn(params: Any) -> Any:
        narrow = jnp.bfloat16

        def layer(h: Any, w: Any) -> Any:
            return h + jnp.tanh(h @ w["up"].astype(narrow)) @ w["down"].astype(narrow), None

        table = params["table"]
        h, _ = jax.lax.scan(jax.checkpoint(layer), table.astype(narrow)[tokens], params["layers"])
        logits = (h @ table.T.astype(narrow)).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params))


@pytest.mark.gpu_aot
def test_gradients_that_are_cast_and_transposed_are_complete_before_a_loop() -> None:
    """Put off, the dot holds the gradient of the logits, 256 MiB on a device, through the loop."""
    shapes = {"table": (8192, 256), "layers": {"up": (6, 256, 1024), "down": (6, 1024, 256)}}
    float32 = lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    params = jax.tree.map(float32, shapes, is_leaf=lambda shape: isinstance(shape, tuple))
    tokens = jax.ShapeDtypeStruct((512, 256), jnp.int32)
    plan = jaxplan.plan(_narrow_step, params, tokens, tokens, topology="h100:8", progress=False).references["fsdp"]
    program = plan.require_program().program
    shape, at_once = (8192, 256), plan.lowering.reduced_at_once
    found = [t for t in at_once if sorted(program.tensors[t].shape) == sorted(shape)]
    assert len(found) == 2  # of the rows, and of the logits
    audit = plan.audit()
    assert audit.compiled_memory_bytes < 1.05 * plan.memory_bytes, audit.table()


@pytest.mark.slow
@pytest.mark.gpu_aot
def test_zeros_of_a_table_are_not_held_through_a_loop() -> None:
    """A table of 8,192 x 512 float32: 16 MiB, and its gradient as much."""
    shapes = {"table": (8192, 512), "head": (512, 8192), "layers": {"up": (6, 512, 2048), "down": (6, 2048, 512)}}
    float32 = lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    params = jax.tree.map(float32, shapes, is_leaf=lambda shape: isinstance(shape, tuple))
    tokens = jax.ShapeDtypeStruct((32, 256), jnp.int32)
    plan = jaxplan.plan(_looped_step, params, tokens, tokens, topology="h100:8", progress=False).references["data"]
    audit = plan.audit()
    assert audit.compiled_memory_bytes < 1.03 * plan.memory_bytes, audit.table()
    if not IS_0_12:  # from then on the compiler makes them late by itself
        at_once = with_lowering(plan, table_gradients=frozenset()).audit()
        assert at_once.compiled_memory_bytes > audit.compiled_memory_bytes + 15 * MIB, at_once.table()


@pytest.mark.slow
@pytest.mark.tpu_aot
def test_logits_are_gone_before_blocks_are_computed_again() -> None:
    """Gradients of a Gemma's logits, 2,000 MiB on each device, are read by a dot with a result that is added to the
    look-up's: put off until that is there, they would be held beside the recomputed values of blocks."""
    step, args = build("gemma2-2b", num_layers=4, batch_size=32, sequence_length=1024, window=512)
    plan = jaxplan.plan(step, *args, topology="v5e:2x4", progress=False).leanest()
    audit = plan.audit()
    assert audit.compiled_memory_bytes < 2 * 2000 * MIB, audit.table()
    put_off = with_schedule(plan, recompute_barriers=()).audit()
    assert put_off.compiled_memory_bytes > audit.compiled_memory_bytes + 800 * MIB, put_off.table()


def _tied_step(params: Any, tokens: Any) -> Any:
    """A table is read by rows and as the output projection; layers between them are recomputed."""

    def block(x: Any, layers: Any) -> Any:
        for up, down in layers:
            x = x + jnp.tanh(x @ up) @ down
        return x

    def loss_fn(params: Any) -> Any:
        table, layers = params
        x = jax.checkpoint(block)(jax.checkpoint(block)(table[tokens], layers[:2]), layers[2:])
        return jnp.mean(jax.nn.logsumexp(jnp.tanh(x @ table.T), axis=1))

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params))


@pytest.mark.slow
def test_results_of_a_tied_table_are_those_of_one_device() -> None:
    width, hidden, rows = 16, 1024, 64
    with jax.enable_x64(True):
        keys = iter(jax.random.split(jax.random.key(0), 10))
        layers = [
            tuple(jax.random.normal(next(keys), shape, jnp.float64) / 8 for shape in ((width, hidden), (hidden, width)))
            for _ in range(4)
        ]
        params = jax.random.normal(next(keys), (rows, width), jnp.float64), layers
        tokens = jax.random.randint(next(keys), (512,), 0, rows)
        plan = jaxplan.plan(_tied_step, params, tokens, topology="cpu:8", donate_argnums=(), progress=False)
        for name in ("data", "zero2", "fsdp"):
            assert plan.references[name].lowering.schedule.recompute_barriers
            found = plan.choose(name).jit()(params, tokens)
            expected = jax.jit(_tied_step)(params, tokens)
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-12)


def test_results_are_those_of_one_device() -> None:
    with jax.enable_x64(True):
        params, x = _arguments(64, 16, 8, 16, jnp.float64)
        plan = jaxplan.plan(_step, params, x, topology="cpu:8", donate_argnums=(), progress=False)
        assert plan.references["data"].lowering.schedule.barriers
        assert plan.references["megatron"].lowering.stored_gradients
        for name in ("data", "zero2", "fsdp", "megatron"):
            found = plan.choose(name).jit()(params, x)
            expected = jax.jit(_step)(params, x)
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("backend", sampled(["shard_map", "jit"]))
def test_zeros_that_wait_change_no_result(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(cost_barriers, "LARGE_PARAMETER_BYTES", 1)
    shapes = {"table": (24, 16), "head": (16, 24), "layers": {"up": (3, 16, 32), "down": (3, 32, 16)}}
    with jax.enable_x64(True):
        keys = iter(jax.random.split(jax.random.key(0), 8))
        normal = lambda shape: jax.random.normal(next(keys), shape, jnp.float64) / 4  # noqa: E731
        params = jax.tree.map(normal, shapes, is_leaf=lambda shape: isinstance(shape, tuple))
        tokens, labels = (jax.random.randint(next(keys), (16, 4), 0, 24) for _ in range(2))
        args = params, tokens, labels
        frontier = jaxplan.plan(_looped_step, *args, topology="cpu:8", donate_argnums=(), progress=False)
        expected = jax.tree.leaves(jax.jit(_looped_step)(*args))
        for name in ("data", "fsdp"):
            assert frontier.references[name].lowering.table_gradients
            found = frontier.references[name].jit(backend=backend)(*args)
            for one, other in zip(jax.tree.leaves(found), expected, strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-12)
