"""Arrays in tiles: sizes that compiled TPU programs report, and plans for a torus with them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from benchmarks.models import build
from jaxplan.cost import Predictor, _tpu_buffers, build_cost_model, padded_bytes, scattered_in_tiles
from jaxplan.cost._buffer_sizes import BufferSizes
from jaxplan.cost._pricing import Pricer
from jaxplan.ir import Tensor, analyse, trace
from jaxplan.mesh import Sharding, Topology
from jaxplan.xla import Buffers, Target, analyse_buffers
from jaxplan.xla._storage import Storage
from tests.sampling import sampled


# Shape, bytes of an element, and the bytes in the buffer assignment of programs compiled for TPU v5e.
@pytest.mark.parametrize(
    ("shape", "itemsize", "compiled"),
    [
        ((), 4, 512),
        ((768,), 4, 3072),
        ((12, 64), 4, 8192),  # f32[12,64]{1,0:T(8,128)}
        ((512, 96), 4, 196608),  # f32[512,96]{0,1:T(8,128)}: columns first, so that nothing is padded
        ((384, 3, 64), 4, 294912),  # f32[384,3,64]{0,2,1:T(8,128)}
        ((12576, 384), 4, 19316736),  # f32[12576,384]{1,0:T(8,128)}
        ((512, 1024), 4, 2097152),  # f32[512,1024]{1,0:T(8,128)}
    ],
)
def test_sizes_are_those_of_compiled_programs(shape, itemsize, compiled) -> None:
    assert padded_bytes(shape, itemsize) == compiled


def test_the_worst_is_a_row_of_one_and_none_is_less_than_its_elements() -> None:
    for shape in [(1, 1), (3, 5, 7), (197, 197), (8, 128), (0, 4), (2, 2, 2, 2)]:
        elements = 1
        for size in shape:
            elements *= size
        assert elements * 2 <= padded_bytes(shape, 2) <= max(512, elements * 2 * 8 * 128)
    assert padded_bytes((1024, 1), 4) == 4096  # one row of 1024, not 1024 rows of 128


@pytest.mark.parametrize(("width", "rows", "columns"), [(128, 128, 128), (129, 136, 256)])
def test_only_tiled_chips_pad(width, rows, columns) -> None:
    """Two matrices, and two biases that take as many columns."""
    step, arguments = build("mlp", num_layers=2, width=width, num_classes=width, batch_size=8 * 1024)
    held = {}
    for topology in ("v5e:1x1", "h100:1"):
        plan = jaxplan.plan(step, *arguments, topology=topology, progress=False).fastest()
        held[topology] = plan.prediction.memory_parts["parameters"]
    assert held["h100:1"] == 2 * (width * width + width) * 4
    assert held["v5e:1x1"] == 2 * (rows * columns + columns) * 4


def _buffers(function, *shapes, topology: str = "v5e:2x4"):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    graph = analyse(trace(function, arguments, {}))
    machine = Topology.parse(topology)
    return graph, analyse_buffers(graph, Target.of(machine.chip, machine.num_devices))


@pytest.mark.parametrize("experts", [True, False])
def test_rows_that_dots_read_in_batches_are_written(experts: bool) -> None:
    """The activation of tokens is a buffer for a batch of experts, and computed inside of one dot."""
    letters = "ebch,ehd->ebcd" if experts else "ebch,hd->ebcd"

    def step(x: jax.Array, weights: jax.Array) -> jax.Array:
        return weights - jax.grad(lambda w: jnp.sum(jnp.einsum(letters, jnp.tanh(x * x), w) ** 2))(weights)

    graph, buffers = _buffers(step, (4, 8, 16, 32), (4, 32, 64) if experts else (32, 64))
    (made,) = (e.results[0] for e in graph.program.equations if e.name == "tanh")
    assert buffers.materialised[made] == experts
    assert buffers.batched.get(made, ()) == ((0,) if experts else ())
    assert not _buffers(step, (4, 8, 16, 32), (4, 32, 64) if experts else (32, 64), topology="h100:8")[1].batched


def test_rows_that_are_buffers_anyway_are_so_with_one_expert_on_a_device() -> None:
    """A result of the program is a buffer however many experts a device holds."""

    def step(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = jnp.tanh(x * x)
        return rows, jnp.einsum("ebch,ehd->ebcd", rows, weights)

    _, buffers = _buffers(step, (4, 8, 16, 32), (4, 32, 64))
    assert not buffers.batched


def test_equal_buffers_of_two_widths_have_sizes_of_their_own() -> None:
    """Of two equal inputs of a loop the one that a dot reads is rounded, and only that."""

    def step(kernel: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        def cell(h: jax.Array, xs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return h + jnp.dot(xs[0], kernel) + xs[1], None

        return jax.lax.scan(cell, jnp.zeros((8, 128)), (jnp.tanh(first), jnp.tanh(second)))[0]

    graph, _ = _buffers(step, (128, 128), (16, 8, 128), (16, 8, 128))
    model = build_cost_model(graph, Topology.parse("v5e:1x1"))
    sizes = BufferSizes(model)
    made = [e.results[0] for e in graph.program.equations if e.name == "tanh"]
    found = [sizes(graph.grouping.tensor_group[t], [t]).item() for t in made]
    assert found == [16 * 8 * 128 * 2, 16 * 8 * 128 * 4]


@pytest.mark.parametrize(("precision", "is_rounded"), [(None, True), ("highest", False)])
def test_what_loops_read_through_dots_is_rounded(precision: str | None, is_rounded: bool) -> None:
    """The joined kernels of a recurrent cell, and its inputs; neither the carry nor the summand."""

    def step(kernel: jax.Array, bias: jax.Array, xs: jax.Array) -> jax.Array:
        joined, twice = jnp.concatenate([kernel, kernel], axis=1), jnp.concatenate([bias, bias])

        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return (jnp.dot(x, joined, precision=precision) + twice)[:, : h.shape[1]] + h, None

        return jax.lax.scan(cell, jnp.zeros((8, 64)), jnp.tanh(xs))[0]

    def showing(kernel: jax.Array, bias: jax.Array, xs: jax.Array) -> tuple[jax.Array, jax.Array]:
        return step(kernel, bias, xs), jnp.tanh(xs)

    shapes = (32, 64), (64,), (16, 8, 32)
    graph, buffers = _buffers(step, *shapes)
    rounded = _rounded(buffers)
    names = {graph.program.equations[graph.values.producer[t]].name for t in rounded}
    assert names == ({"concatenate", "tanh"} if is_rounded else set())
    assert all(len(graph.program.tensors[t].shape) > 1 for t in rounded)
    assert not _rounded(_buffers(step, *shapes, topology="h100:8")[1])
    shown, buffers = _buffers(showing, *shapes)
    assert not _rounded(buffers) & set(shown.program.outputs)


def _rounded(buffers: Buffers) -> set[int]:
    """Tensors that are held in elements of another width than their dtype's."""
    return {t for t, storage in buffers.storage.items() if storage.itemsize is not None}


def test_matrices_of_a_batch_are_innermost() -> None:
    """Scores of 197 tokens take whole tiles of both, as in a compiled ViT, though 128 images would fit better."""
    graph, buffers = _buffers(lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), (128, 197, 3, 64), (128, 197, 3, 64))
    (scores,) = (e.results[0] for e in graph.program.equations if e.name == "dot_general")
    assert buffers.storage_of(scores).inner == (2, 3)
    assert padded_bytes((128, 3, 197, 197), 2, (2, 3)) == 37.5 * 2**20 > padded_bytes((128, 3, 197, 197), 2)


@pytest.mark.parametrize(("pixels", "is_turned"), [(56, True), (28, False), (64, True), (7, False)])
def test_normalised_images_are_turned_for_dots_where_rows_of_pixels_are_not_padded(
    pixels: int, is_turned: bool
) -> None:
    """The operand of the first dot, and the one computed from its result for the second; on a device with 32 images."""

    def step(images: jax.Array, kernel: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        dimensions = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=dimensions)
        return jnp.tanh(jnp.tanh(x * x) @ up) @ down

    shapes = (32, pixels, pixels, 3), (3, 3, 3, 128), (128, 256), (256, 128)
    graph, buffers = _buffers(step, *shapes)
    tensors, made = graph.program.tensors, graph.values.producer
    turned = [t for t in buffers.turned if buffers.materialised[t]]
    assert sorted(tensors[t].shape[-1] for t in turned) == [128, 256]
    assert {graph.program.equations[made[t]].name for t in turned} == {"tanh"}
    sizes = BufferSizes(build_cost_model(graph, Topology.parse("v5e:1x1")))
    found = [sizes(graph.grouping.tensor_group[t], [t]).item() for t in turned]
    assert all(size == (tensors[t].num_bytes if is_turned else 0) for t, size in zip(turned, found, strict=True))
    assert not _buffers(step, *shapes, topology="h100:8")[1].turned


@pytest.mark.parametrize(("batch", "is_turned"), [(128, True), (64, False), (256, True), (8, False)])
def test_tokens_are_turned_for_dots_of_batches_of_whole_columns(batch: int, is_turned: bool) -> None:
    """A mixer's perceptron over features, behind one over tokens: its operand, and its rectifier. The operand of the
    perceptron over tokens is not."""

    def step(tokens: jax.Array, mix: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        x = jnp.tanh(tokens)
        x = x + jnp.swapaxes(jnp.tanh(jnp.swapaxes(jnp.sin(x), 1, 2) @ mix) @ mix.T, 1, 2)
        return x + jnp.tanh(jnp.tanh(x) @ up) @ down

    graph, buffers = _buffers(step, (batch, 196, 256), (196, 96), (256, 512), (512, 256))
    tensors = graph.program.tensors
    assert sorted(tensors[t].shape for t in buffers.turned) == [(batch, 196, 256), (batch, 196, 512)]
    sizes = BufferSizes(build_cost_model(graph, Topology.parse("v5e:1x1")))
    found = {tensors[t].shape: sizes(graph.grouping.tensor_group[t], [t]).item() for t in buffers.turned}
    whole = {(batch, 196, 256): batch * 200 * 256 * 4, (batch, 196, 512): batch * 196 * 512 * 4}
    assert found == (whole if is_turned else dict.fromkeys(whole, 0))


def test_tokens_that_dots_of_matrices_make_are_not_turned() -> None:
    """Attention's, or the combined results of experts, though tokens and features are innermost in them, too."""

    def step(tokens: jax.Array, weights: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        x = jnp.tanh(jnp.einsum("bst,btd->bsd", weights, tokens))
        return x + jnp.tanh(jnp.tanh(x) @ up) @ down

    _, buffers = _buffers(step, (128, 196, 256), (128, 196, 196), (256, 512), (512, 256))
    assert any(s.inner for s in buffers.storage.values()) and not buffers.turned


@pytest.mark.parametrize(("frames", "is_turned"), [(1500, True), (1496, True), (30, False)])
def test_tokens_of_convolutions_are_turned_where_their_rows_nearly_fill_tiles(frames: int, is_turned: bool) -> None:
    """A Whisper's, 8 spectrograms a device: the operand of the perceptron, its exact GELU and ``erfc``, and not the
    value after the residual sum. 30 rows would take 32."""

    def step(frames: jax.Array, kernel: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        x = jax.lax.conv_general_dilated(frames, kernel, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"))
        x = x + jax.nn.gelu(jnp.sin(x) @ up, approximate=False) @ down
        return jnp.tanh(x) @ up

    graph, buffers = _buffers(step, (8, frames, 128), (3, 128, 128), (128, 256), (256, 128))
    tensors, made = graph.program.tensors, graph.values.producer
    names = sorted(graph.program.equations[made[t]].name for t in buffers.turned)
    assert names[:2] == ["copy", "erfc"] and set(names[2:]) == {"sin", "tanh"}
    sizes = BufferSizes(build_cost_model(graph, Topology.parse("v5e:1x1")))
    found = [sizes(graph.grouping.tensor_group[t], [t]).item() for t in buffers.turned]
    assert all((size >= tensors[t].num_bytes) == is_turned for t, size in zip(buffers.turned, found, strict=True))
    assert is_turned or not any(found)


@pytest.mark.parametrize(
    ("batch", "tokens", "is_turned"),
    [(64, 50, True), (80, 50, True), (96, 50, True), (48, 50, False), (32, 50, False), (128, 50, False)],
)
def test_fewer_tokens_than_sequences_are_turned(batch: int, tokens: int, is_turned: bool) -> None:
    """The operand of a perceptron and its rectifier, as in masked autoencoders compiled for v5e with so many images a
    device; in whole columns they are not."""

    def step(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return x + jnp.tanh(jnp.sin(x) @ up) @ down

    graph, buffers = _buffers(step, (8 * batch, tokens, 256), (256, 512), (512, 256))
    tensors = graph.program.tensors
    turned = [t for t in buffers.turned if buffers.materialised[t]]
    assert {tensors[t].shape[2] for t in turned} == ({256, 512} if batch > tokens else set())
    model = build_cost_model(graph, Topology.parse("v5e:2x4"))
    sizes, splits = BufferSizes(model), {}
    for t in turned:
        v = graph.grouping.tensor_group[t]
        of_batch = graph.spaces[v].tensor_dims[t][0]
        (k,) = [
            k
            for k, config in enumerate(model.configurations[v])
            if all((len(axes) == 3) == (c in of_batch) and len(axes) in (0, 3) for c, axes in enumerate(config))
        ][:1]
        splits[t] = sizes(v, [t])[0, k]
    assert all((size >= tensors[t].num_bytes / 8) == is_turned for t, size in splits.items())
    assert is_turned or not any(splits.values())
    assert bool(splits) == (batch > tokens)


@pytest.mark.parametrize("frames", [1496, 30])
def test_what_a_dot_makes_is_kept_where_what_is_computed_of_it_is_not_written(frames: int) -> None:
    """A dot with a bias behind a convolution, read by another dot and by the gradient of its kernel: where rows
    fill tiles the sum with the bias is written and kept, else the dot's result is, as compiled for a Whisper: one
    of them in the backward pass, whatever the rows."""

    def step(params: list[jax.Array], frames: jax.Array) -> list[jax.Array]:
        def loss(params: list[jax.Array]) -> jax.Array:
            kernel, up, bias, down = params
            x = jax.lax.conv_general_dilated(frames, kernel, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"))
            return jnp.sum(jnp.sin((x @ up + bias) @ down))

        return jax.grad(loss)(params)

    shapes = [(3, 128, 128), (128, 256), (256,), (256, 512)]
    params = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    graph = analyse(trace(step, (params, jax.ShapeDtypeStruct((8, frames, 128), jnp.float32))))
    model = build_cost_model(graph, Topology.parse("v5e:1x1"))
    whole, choices = [0] * len(model.configurations), [0] * len(model.problem.edges)
    predictor = Predictor(model)
    lives = predictor.lifetimes(whole, model.chosen(whole), predictor.transfers(whole, choices))
    forward = [e for e in graph.program.equations if e.phase == "forward" and e.results]
    made = [t for e in forward for t in e.results if graph.program.tensors[t].shape == (8, frames, 256)]
    dot, total = made[0], next(e.results[0] for e in forward if e.name == "add")
    read = max(graph.values.consumers[total])
    assert graph.program.equations[read].phase == "backward"

    def kept(t: int) -> float:
        buffer = lives.home[t]
        return lives.sizes[buffer] if lives.last[buffer] >= 2 * read else 0

    assert kept(dot) + kept(total) == 8 * frames * 256 * 4  # whole tiles: of 1496 rows, or of the 8 of the batch


def test_copies_have_the_innermost_dimensions_of_what_they_copy() -> None:
    """Keys of all positions, gathered for attention: heads of 64 channels take tiles of 128, as compiled for a DiT."""
    dtype = np.dtype(jnp.bfloat16)
    tensor = Tensor(index=7, shape=(512, 64, 12, 64), dtype=dtype, itemsize=dtype.itemsize, kind="intermediate")
    topology = Topology.parse("v5e:2x4")
    sharding = Sharding.replicated(4)
    storage = {7: Storage(inner=(1, 3))}
    whole = Pricer(topology=topology, is_tiled=True, storage=storage).local_bytes(tensor, sharding)
    assert whole == 512 * 12 * 64 * 128 * 2
    assert Pricer(topology=topology, is_tiled=True).local_bytes(tensor, sharding) == whole // 2


@pytest.mark.sample(1)
@pytest.mark.tpu_aot
@pytest.mark.parametrize(("batch", "is_held"), [(512, True), (128, False)])
def test_updates_of_scatters_are_turned(monkeypatch: pytest.MonkeyPatch, batch: int, is_held: bool) -> None:
    """Rows of images repeated twice: the gradient adds 64 rows to 32. 128 MiB of them a device are held in both orders,
    32 lie beside the cores."""

    def loss(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernels[0], (1, 1), "SAME", dimension_numbers=numbers)
        x = jnp.take(x, jnp.arange(64) // 2, axis=1)
        x = jax.lax.conv_general_dilated(x, kernels[1], (1, 1), "SAME", dimension_numbers=numbers)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(kernels: list[jax.Array], x: jax.Array) -> Any:
        return jax.tree.map(lambda k, g: k - 0.1 * g, kernels, jax.grad(loss)(kernels, x))

    half = jnp.bfloat16
    kernels = [jax.ShapeDtypeStruct((3, 3, n, 256), half) for n in (8, 256)]
    x = jax.ShapeDtypeStruct((batch, 32, 64, 8), half)

    def planned() -> jaxplan.Plan:
        return jaxplan.plan(step, kernels, x, topology="v5e:2x4", progress=False).references["data"]

    plan = planned()
    monkeypatch.setattr(_tpu_buffers.TpuBuffers, "_transposed_updates", lambda self, chosen: ())
    updates = batch // 8 * 64 * 64 * 256 * 2
    less = plan.memory_bytes - planned().memory_bytes
    assert less <= 1.03 * updates and (less > updates / 4) == is_held
    audit = plan.audit()
    assert plan.memory_bytes > 0.92 * audit.compiled_memory_bytes, audit.table()


@pytest.mark.slow
@pytest.mark.tpu_aot
@pytest.mark.parametrize(
    ("activation", "op", "features", "most"),
    sampled([("silu", "mul", 128, 1.15), ("relu", "max", 128, 1.15), ("relu", "max", 32, 1.02)]),
)
def test_images_are_written_where_their_edges_are_sent(activation: str, op: str, features: int, most: float) -> None:
    """Three blocks, normalised, a quarter of the rows on each device: compiled programs hold the operand of each
    convolution of 3 x 3, 98 MiB of images. Of equal features everywhere one array too much is counted, at the last."""
    blocks, channels, half = 3, 128, jnp.bfloat16
    shapes = (features, channels), (3, 3, channels, features)
    kernels = [tuple(jax.ShapeDtypeStruct(s, half) for s in shapes)] * blocks
    images = jax.ShapeDtypeStruct((1024, 56, 56, features), half)

    def loss(kernels: Any, x: jax.Array) -> jax.Array:
        for up, kernel in kernels:
            x = x @ up
            wide = x.astype(jnp.float32)
            mean = wide.mean((0, 1, 2))
            wide = (wide - mean) * jax.lax.rsqrt((wide * wide).mean((0, 1, 2)) - mean**2 + 1e-3)
            x = getattr(jax.nn, activation)(wide.astype(x.dtype))
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.mean(x.astype(jnp.float32) ** 2)

    def step(kernels: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda k, g: k - 0.1 * g, kernels, jax.grad(loss)(kernels, x))

    frontier = jaxplan.plan(step, kernels, images, topology="v5e:2x4", progress=False)
    audit = frontier.references["spatial"].audit()
    written = sum(h.count for h in audit.held if h.array == "bf16[512,14,56,128]" and h.op_name.endswith(f"jvp()/{op}"))
    assert written == blocks, audit.held
    assert 0.99 < audit.predicted_memory_bytes / audit.compiled_memory_bytes < most, audit.table()


# Part of a reduce-scatter, and the bytes of it in programs compiled for TPU v5e; none for values sent as they are.
@pytest.mark.parametrize(
    ("part", "itemsize", "compiled"),
    [
        ((3, 3, 128, 8), 2, 5 * 4096),  # a tile of 16 rows of 128 has 4096 bytes: four and a half
        ((3, 3, 128, 4), 2, 3 * 4096),
        ((1152, 12, 4), 2, 27 * 4096),
        ((128, 147, 147, 8), 2, None),
        ((4096, 512), 2, None),
        ((16, 2), 2, None),  # a hundredth of a tile
        ((4096,), 2, None),
    ],
)
def test_small_pieces_are_scattered_in_whole_tiles(part: tuple[int, ...], itemsize: int, compiled: int | None) -> None:
    assert scattered_in_tiles(part, itemsize) == compiled
