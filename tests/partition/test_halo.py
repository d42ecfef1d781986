"""Windows over split dimensions: neighbours exchange halos, forward and in both gradients."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxplan
from jaxplan.audit import compile_plan
from jaxplan.audit._hlo_flops import flops
from jaxplan.cost import find_reads, plan_transfers
from jaxplan.cost._compute import local_flops
from jaxplan.cost._inner import inner_of_plan
from jaxplan.cost._splits import split_counts
from jaxplan.cost._work import CompiledWork
from jaxplan.ir import WHOLE, StepGraph, Window
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.xla import Target, analyse_buffers
from tests.fuzz._strategies import Strategy, plan_of

TOPOLOGY = Topology.parse("cpu:8")
X, W = (6, 16, 8, 4), (3, 3, 4, 4)
NUMBERS = ("NHWC", "HWIO", "NHWC")


def conv(x: Any, w: Any, stride: int = 1, padding: Any = "SAME", **options: Any) -> Any:
    return lax.conv_general_dilated(x, w, (stride,) * 2, padding, dimension_numbers=NUMBERS, **options)


def pool(x: Any, start: float, fn: Any, size: int, stride: int, padding: Any = "SAME") -> Any:
    return lax.reduce_window(x, start, fn, (1, size, size, 1), (1, stride, stride, 1), padding)


CASES: dict[str, Any] = {
    "3x3": lambda x, w: conv(x, w),
    "strided": lambda x, w: conv(x, w, 2),
    "valid": lambda x, w: conv(x, w, padding="VALID"),
    "lopsided": lambda x, w: conv(x, w[:2], padding=((3, 2), (0, 2))),
    "dilated": lambda x, w: conv(x, w[:, :2], rhs_dilation=(2, 2)),
    "grouped": lambda x, w: conv(x, w[:, :, :2], feature_group_count=2),
    "patches": lambda x, w: conv(x, w[:2, :2], 2, "VALID"),
    "points": lambda x, w: conv(x, w[:1, :1], 2),
    "transposed": lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=NUMBERS),
    "max pool": lambda x, w: pool(conv(x, w), -jnp.inf, lax.max, 3, 2),
    "average pool": lambda x, w: pool(x, 0.0, lax.add, 3, 1) * w[0, 0, 0],
    "strided average pool": lambda x, w: pool(x, 0.0, lax.add, 3, 2) * w[0, 0, 0],
}


def analysed(step: Any, *args: Any) -> StepGraph:
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args)
    return analyse_step(step, shapes, {}, donate_argnums=None, static_argnums=())


def images_split(graph: StepGraph, rows: tuple[int, ...], columns: tuple[int, ...]) -> tuple[Strategy, int]:
    """Every class of rows and of columns split as far as it can be; and how many windows that splits."""
    configurations, num_windows = [], 0
    for group, space in zip(graph.grouping.groups, graph.spaces, strict=True):
        wanted: dict[int, tuple[int, ...]] = {}
        for t, dims in space.tensor_dims.items():
            if len(dims) == 4 and graph.program.tensors[t].shape[0] == X[0]:
                for classes, axes in ((dims[1], rows), (dims[2], columns)):
                    wanted.update(dict.fromkeys(classes, axes))
        config = tuple(
            wanted.get(c, ()) if cls.divisible_by(2 ** len(wanted.get(c, ()))) else ()
            for c, cls in enumerate(space.classes)
        )
        configurations.append(config)
        for e in group.equations:
            classes = [space.factor_class[e][split.factor] for split in graph.rules[e].windows]
            num_windows += sum(c != WHOLE and bool(config[c]) for c in classes)
    strategy = Strategy(configurations=tuple(configurations), repeated=(), splittable=(), split=())
    return strategy, num_windows


def predicted_flops(graph: StepGraph, strategy: Strategy) -> float:
    """Operations of one device."""
    total, work = 0.0, CompiledWork.of(analyse_buffers(graph, Target.of(TOPOLOGY.chip)).found)
    for group, space, config in zip(graph.grouping.groups, graph.spaces, strategy.configurations, strict=True):
        total += local_flops(graph, group, space, split_counts((config,), TOPOLOGY), work).item()
    return total


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", list(CASES))
def test_images_split_over_devices_give_what_one_device_gives(name: str) -> None:
    """The value and the gradients of images and kernel; rows over two axes in another order than the mesh's."""
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.uniform(-1, 1, s), jnp.float32) for s in (X, W))
    step = jax.value_and_grad(lambda x, w: jnp.sum(jnp.sin(CASES[name](x, w))), (0, 1))
    graph = analysed(step, x, w)
    rows = (0,) if name in ("valid", "lopsided") else (2, 0)
    strategy, num_windows = images_split(graph, rows, (1,))
    assert (
        num_windows >= 3
    )  # of the convolution and of its gradients; of both dimensions of a pooling and its gradient
    plan = plan_of(graph, TOPOLOGY, strategy)
    program = plan.jit().lower(x, w).compile()
    assert flops(program.as_text()) == round(predicted_flops(graph, strategy)), "those at inner edges, too"
    found = jax.tree.leaves(program(x, w))
    for a, b in zip(found, jax.tree.leaves(jax.jit(step)(x, w)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


OTHERS: dict[str, Any] = {
    "derivative of a max pool": lambda x: jax.jvp(
        lambda x: pool(x, -jnp.inf, lax.max, 3, 1), (x,), (jnp.cos(x),)
    )[1],
    "function of one's own": lambda x: lax.reduce_window(
        1 + x / 8,
        jnp.float32(1),
        lambda a, b: jnp.exp(jnp.log(a) + jnp.log(b)),
        (1, 3, 3, 1),
        (1, 1, 1, 1),
        "SAME",
    ),
    "integers": lambda x: lax.reduce_window(
        (x * 100).astype(jnp.int32), jnp.iinfo(jnp.int32).max, lax.min, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"
    ),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_other_windows_are_split_too(name: str) -> None:
    x = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, X), jnp.float32)
    graph = analysed(OTHERS[name], x)
    strategy, num_windows = images_split(graph, (2, 0), (1,))
    assert num_windows == 2
    found = plan_of(graph, TOPOLOGY, strategy).jit()(x)
    np.testing.assert_allclose(found, jax.jit(OTHERS[name])(x), rtol=1e-5, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.tpu_aot
@pytest.mark.parametrize("is_repeated", [False, True])
def test_edges_of_a_copy_that_is_made_again_are_sent_again(is_repeated: bool) -> None:
    """Images are computed in parts of the batch, and convolved in parts of the rows: forward, and for the gradient of
    the kernel. The compiler sends the edges of each copy once, two permutes of a row each."""
    topology = Topology.parse("v5e:2x4")
    x, w = (jnp.ones(s, jnp.bfloat16) for s in ((X[0], 32, 32, 128), (3, 3, 128, 128)))
    step = jax.grad(lambda w, x: jnp.sum(jnp.sin(conv(jnp.sin(x), w))))
    graph = analysed(step, w, x)
    strategy, _ = images_split(graph, (0,), ())
    image = next(e.operands[0] for e in graph.program.equations if e.name == "conv_general_dilated")
    made = graph.grouping.equation_group[graph.values.producer[image]]
    (batch,) = graph.spaces[made].tensor_dims[image][0]
    parts = tuple((0,) if c == batch else () for c in range(len(graph.spaces[made].classes)))
    configurations = (*strategy.configurations[:made], parts, *strategy.configurations[made + 1 :])
    reads = find_reads(graph)
    repeated = tuple(i for i, read in enumerate(reads) if is_repeated and read.tensor == image)
    buffers = analyse_buffers(graph, Target.of(topology.chip))
    transfers = plan_transfers(graph, topology, reads, configurations, frozenset(repeated), buffers)
    inner = inner_of_plan(graph, topology, range(len(configurations)), configurations, transfers, buffers)
    found = [c.num_bytes for c in inner if c.kind == "collective-permute"]
    strategy = dataclasses.replace(strategy, configurations=configurations, repeated=repeated)
    report = compile_plan(plan_of(graph, topology, strategy))
    compiled = [c.num_bytes for c in report.collectives if c.kind == "collective-permute"]
    assert found == compiled
    assert found == [X[0] * 32 * 128 * 2] * (4 if is_repeated else 2)


def brute_force(window: Window, parts: int) -> list[tuple[int, int]] | None:
    """Per part, the first and last element of the operand that its windows read, those in the padding too."""
    if window.in_size % parts or window.out_size % parts:
        return None
    windows, ends = window.out_size // parts, []
    for d in range(parts):
        read = [
            o * window.stride - window.padding[0] + k
            for o in range(d * windows, (d + 1) * windows)
            for k in range(window.extent)
        ]
        held = [p // window.dilation for p in read if p % window.dilation == 0]
        if not held:  # holes alone
            return None
        ends.append((min(held), max(held)))
    return ends


@pytest.mark.parametrize("extent", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_halos_hold_what_is_read(extent: int, stride: int, dilation: int) -> None:
    """Every element that any window of a part reads is in its block or its halo, and no halo is wider than that."""
    seen = 0
    for low in range(4):
        for high in range(4):
            out_size = (15 * dilation + 1 + low + high - extent) // stride + 1
            window = Window(
                extent=extent,
                stride=stride,
                dilation=dilation,
                padding=(low, high),
                in_size=16,
                out_size=out_size,
            )
            for parts in (2, 4, 8):
                halo, ends = window.halo(parts), brute_force(window, parts)
                if halo is None or ends is None:
                    continue
                seen += 1
                block = 16 // parts
                assert halo.before == max(0, *(d * block - first for d, (first, _) in enumerate(ends)))
                assert halo.after == max(0, *(last - (d + 1) * block + 1 for d, (_, last) in enumerate(ends)))
    assert seen or (stride, dilation) == (2, 1)


def test_halos_of_convolutions_by_hand() -> None:
    """Two rows of neighbours for a 3x3 kernel, one where it goes by twos; none that reaches beyond the next block."""

    def sides(extent: int, stride: int, padding: tuple[int, int], parts: int) -> Any:
        window = Window(
            extent=extent,
            stride=stride,
            dilation=1,
            padding=padding,
            in_size=224,
            out_size=224 // stride,
        )
        halo = window.halo(parts)
        return halo and (halo.before, halo.after)

    assert sides(3, 1, (1, 1), 8) == (1, 1)
    assert sides(3, 2, (0, 1), 8) == (0, 1)
    assert sides(7, 2, (2, 3), 8) == (2, 3)
    assert sides(3, 1, (1, 1), 5) is None
    assert sides(7, 1, (3, 3), 112) is None
    window = Window(extent=7, stride=1, dilation=1, padding=(3, 3), in_size=224, out_size=224)
    assert window.most_parts() == 56


def test_halos_are_priced_and_in_the_prediction() -> None:
    """Of 3 x 3 over rows in 8 parts: one row before and one after, of the image (once for the value and the weight
    gradient) and of its cotangent."""
    shape = (4, 1024, 512, 16)
    step = jax.grad(lambda x, w: jnp.sum(jnp.sin(conv(x, w))), (0, 1))
    graph = analysed(
        step, jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct((3, 3, 16, 16), jnp.float32)
    )
    from jaxplan.cost import Predictor, build_cost_model

    group = next(g.index for g in graph.grouping.groups if g.kind == "contraction")
    (rows,) = {
        graph.spaces[group].tensor_dims[e.operands[0]][1]
        for e in graph.program.equations
        if e.name == "conv_general_dilated" and e.phase == "forward"
    }
    configs: list[Any] = [(((),) * len(space.classes),) for space in graph.spaces]
    configs[group] = (
        tuple((0, 1, 2) if (c,) == rows else () for c in range(len(graph.spaces[group].classes))),
    )
    model = build_cost_model(graph, TOPOLOGY, configurations=configs)
    keep = [0] * len(model.edge_reads)
    prediction, _ = Predictor(model).predict([0] * len(configs), keep)
    permutes = [c for c in prediction.collectives if c.kind == "collective-permute"]
    convolutions = sum(e.name == "conv_general_dilated" for e in graph.program.equations)
    row_bytes = 4 * 512 * 16 * 4
    assert convolutions == 3  # the value itself is not asked for, but the operands of its cotangent are
    assert [(c.axes, c.num_bytes, c.count) for c in permutes] == [((0, 1, 2), row_bytes, 4)]


@pytest.mark.gpu_aot
def test_the_compiled_program_exchanges_halos_and_nothing_else() -> None:
    pytest.importorskip("jax_cuda12_plugin")

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h = conv(jnp.maximum(conv(x, params[0]), 0), params[1], 2)
            return jnp.mean(pool(h, -jnp.inf, lax.max, 3, 2) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    kernel = jax.ShapeDtypeStruct((3, 3, 64, 64), jnp.float32)
    image = jax.ShapeDtypeStruct((1, 2048, 1024, 64), jnp.float32)
    plan = jaxplan.plan(step, [kernel, kernel], image, topology="h100:8").fastest()
    assert any(c.kind == "collective-permute" for c in plan.prediction.collectives)
    audit = plan.audit()
    assert audit.collectives_ok, audit.table()
