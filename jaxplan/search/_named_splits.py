"""Configurations of a step's groups in Mesh-TensorFlow's terms: which axes split which named dimension."""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.cost import CostModel
from jaxplan.ir import STORED_KINDS, Configuration
from jaxplan.solvers import Meaning


def named_splits(model: CostModel) -> tuple[tuple[Meaning | None, ...], ...]:
    """For each group and configuration the axes that split each of its named dimensions, as `one_mesh` wants them.

    Two classes of a group can be one named dimension (both sides of a square weight, say): it is split where one of
    them is, and no configuration may split both. State that is kept replicated because it is tiny splits nothing, and
    says nothing of its dimensions.
    """
    graph, names = model.graph, tuple(axis.name for axis in model.topology.axes)
    found: list[tuple[Meaning | None, ...]] = []
    for group, space, configurations in zip(
        graph.grouping.groups, graph.spaces, model.configurations, strict=True
    ):
        dimensions = [
            str(cls.named_dimension) if cls.named_dimension >= 0 else f"{k} of group {group.index}"
            for k, cls in enumerate(space.classes)
        ]
        is_tiny = len(configurations) == 1 and group.kind in STORED_KINDS
        found.append(({},) if is_tiny else tuple(_meaning(dimensions, c, names) for c in configurations))
    return tuple(found)


def _meaning(
    dimensions: Sequence[str], configuration: Configuration, names: Sequence[str]
) -> Meaning | None:
    """The axes of each named dimension; None where two classes split one."""
    meaning: dict[str, tuple[str, ...]] = {}
    for dimension, axes in zip(dimensions, configuration, strict=True):
        if axes and meaning.get(dimension):
            return None
        meaning[dimension] = tuple(names[a] for a in axes) or meaning.get(dimension, ())
    return meaning
