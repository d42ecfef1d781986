"""Convolutions on GPUs read blocks of images with the edges of their neighbours around them, as arrays of their own."""

from __future__ import annotations

import pytest

from jaxplan.cost import build_cost_model
from jaxplan.cost._extended import ExtendedImages
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.strategies import apply_strategies, reference_solution
from tests.strategies.small_models import F32, IMAGES, image_case

DEVICES = 8
HIDDEN = 128


def _copies(topology: str, strategy: str) -> list[tuple[int, int, int]]:
    step, args = image_case()
    graph = analyse_step(step, args, {}, donate_argnums=(0, 1), static_argnums=())
    machine = Topology.parse(topology)
    references = apply_strategies(graph, machine)
    model = build_cost_model(graph, machine, always=references.configurations())
    assignment, _ = reference_solution(model, references.plans[strategy])
    images = ExtendedImages(model, model.buffers.read_end)
    return list(images.copies(assignment, model.chosen(assignment)))


def test_blocks_with_edges() -> None:
    """Eight rows a device, one more on both sides: around the argument, which stays; the hidden image, of which it is
    all that is written; and the cotangent, which the gradient of the kernel reads without them."""
    batch, rows, columns, channels = IMAGES
    row, own = F32 * batch * columns, rows // DEVICES
    found = sorted(num_bytes for _, _, num_bytes in _copies(f"h100:{DEVICES}", "spatial"))
    assert found == sorted([(own + 2) * row * channels, 2 * row * HIDDEN, (own + 2) * row * channels])


def test_they_live_until_the_gradient_of_the_kernel() -> None:
    """A value that both passes read lives from the one to the other; a cotangent for one convolution."""
    spans = [last - first for first, last, _ in sorted(_copies(f"h100:{DEVICES}", "spatial"))]
    assert len(spans) == 3 and spans[-1] < min(spans[:2])


@pytest.mark.parametrize(("topology", "strategy"), [("h100:8", "data"), ("cpu:8", "spatial"), ("v5e:2x4", "spatial")])
def test_none_where_nothing_is_split_or_libraries_do_not_read(topology: str, strategy: str) -> None:
    assert _copies(topology, strategy) == []
