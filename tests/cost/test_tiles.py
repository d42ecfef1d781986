"""Arrays in tiles: sizes that compiled TPU programs report, and what a plan for a torus makes of them."""

import pytest

import jaxplan
from benchmarks.models import build
from jaxplan.cost import padded_bytes


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
