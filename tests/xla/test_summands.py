"""Sums over columns that fill too little of the chip: their summands are written, as compiled programs were seen to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

import jaxplan
from jaxplan.audit import compile_plan
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.xla import Target, analyse_buffers
from jaxplan.xla.rules.gpu.summands import Summand, num_blocks

NORMS: dict[str, Any] = {
    "group": lambda: nn.GroupNorm(8, dtype=jnp.bfloat16),
    "batch": lambda: nn.BatchNorm(use_running_average=False, dtype=jnp.bfloat16),
    "layer": lambda: nn.LayerNorm(dtype=jnp.bfloat16),
}
# Norm, images, their rows and columns, channels; float32 values of full size that fusions of the gradient write,
# compiled for one H100 (jax 0.10.2).
COMPILED = [
    ("group", 16, 64, 128, 2),
    ("group", 8, 64, 128, 2),
    ("group", 32, 64, 128, 1),
    ("group", 16, 64, 256, 1),
    ("group", 16, 32, 256, 1),
    ("group", 64, 64, 128, 0),
    ("group", 16, 64, 512, 0),
    ("group", 16, 128, 128, 0),
    ("batch", 16, 64, 128, 0),
    ("batch", 4, 32, 128, 2),
    ("layer", 16, 64, 128, 0),
    ("layer", 4, 32, 128, 1),
]


def normalised_step(norm: str, channels: int) -> Any:
    """The gradient of a norm and silu between two convolutions."""
    conv = {"kernel_size": (3, 3), "dtype": jnp.bfloat16}
    net = nn.Sequential([nn.Conv(channels, **conv), NORMS[norm](), nn.silu, nn.Conv(channels, **conv)])

    def loss(variables: Any, x: jax.Array) -> jax.Array:
        out = net.apply(variables, x, mutable=["batch_stats"])[0]
        return jnp.sum(out.astype(jnp.float32) ** 2)

    def arguments(images: int, size: int) -> tuple[Any, Any]:
        x = jax.ShapeDtypeStruct((images, size, size, channels), jnp.bfloat16)
        return jax.eval_shape(lambda key, x: net.init(key, x), jax.random.key(0), x), x

    return jax.grad(loss), arguments


@pytest.mark.sample(6)
@pytest.mark.parametrize(("norm", "images", "size", "channels", "count"), COMPILED)
def test_as_many_summands_are_written_as_were_compiled(
    norm: str, images: int, size: int, channels: int, count: int
) -> None:
    step, arguments = normalised_step(norm, channels)
    graph = analyse_step(step, arguments(images, size), {}, donate_argnums=(), static_argnums=())
    chip = Target.of(Topology.parse("h100:1").chip)
    found = analyse_buffers(graph, chip).found.of(Summand)
    assert sum(s.is_written(graph.program.tensors[s.tensor].shape, chip) for s in found) == count
    assert not analyse_buffers(graph, Target.of(Topology.parse("v5e:1").chip)).found.of(Summand)


def test_blocks_are_of_32_columns() -> None:
    assert num_blocks((16, 64, 64, 128), (1, 2)) == 16 * 4
    assert num_blocks((4096, 100), (0,)) == 4
    assert num_blocks((4, 1, 8, 1, 33), (2,)) == 4 * 2
    assert num_blocks((16, 8, 8, 8, 16), (1, 2, 4)) == 16 * 4, "rows are summed after columns"
    assert num_blocks((4097, 100), (0,)) is None, "taken in two steps"
    assert num_blocks((64, 128), (1,)) is None, "a sum over rows"


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize(("images", "count"), [(16, 2), (64, 0)])
def test_the_compiler_writes_as_many(images: int, count: int) -> None:
    """With few blocks and with many: float32 results of full size of the fusions of the gradient."""
    step, arguments = normalised_step("group", 128)
    plan = jaxplan.plan(step, *arguments(images, 64), topology="h100:1", donate_argnums=()).fastest()
    entry = (compile_plan(plan).hlo_text or "").partition("\nENTRY")[2]
    fusions = [line.partition(" fusion(")[0] for line in entry.splitlines() if " fusion(" in line]
    assert sum(made.count(f"f32[{images},64,64,128]") for made in fusions) == count


def test_two_summands_of_one_gradient_are_written_by_one_kernel() -> None:
    """A group norm of 16 images: mean and variance sum values that are computed of the same gradient."""
    step, arguments = normalised_step("group", 128)
    graph = analyse_step(step, arguments(16, 64), {}, donate_argnums=(), static_argnums=())
    chip = Target.of(Topology.parse("h100:1").chip)
    summands = analyse_buffers(graph, chip).found.of(Summand)
    written = [s for s in summands if s.is_written(graph.program.tensors[s.tensor].shape, chip)]
    assert len(written) == 2 and {s.beside for s in written} == {written[0].tensor}
