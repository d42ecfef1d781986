"""Convolutions of groups of channels on TPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jaxplan.ir import Equation, StepGraph
from jaxplan.xla._effects import Write
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import CompilerRule, Observed, zoo
from jaxplan.xla._target import Target

_COLUMNS = 128
"""Of a tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelGroups:
    """Layout of an image with channels in groups of ``width``: batch and width are innermost."""

    batch: int
    features: int
    width: int

    def shape(self, local: tuple[int, ...]) -> tuple[int, ...]:
        """A local shape with groups and the channels of each instead of features."""
        width = min(self.width, local[self.features])
        groups = math.ceil(local[self.features] / width)
        return (*local[: self.features], groups, width, *local[self.features + 1 :])

    @property
    def inner(self) -> tuple[int, int]:
        """The innermost dimensions of such a shape."""
        return self.batch + (self.batch > self.features), self.features + 1


def grouped_operands(graph: StepGraph, target: Target) -> dict[int, ChannelGroups]:
    """Images that only convolutions of groups of channels read in the forward pass, as those lie in memory.

    Compiled TPU programs write them so, for the convolution and for the gradient of its kernel: 64 channels of a
    RegNet's groups take 128.
    """
    found = {}
    for eqn in _grouped(graph, target) if CHANNEL_GROUPS.applies_to(target) else ():
        t = eqn.operands[0]
        readers = [graph.program.equations[c] for c in graph.values.consumers[t]]
        if not graph.values.free[t] and all(e.index == eqn.index for e in readers if e.phase == "forward"):
            batch, features, *_ = eqn.params["dimension_numbers"].lhs_spec
            found[t] = ChannelGroups(batch=batch, features=features, width=_width(graph, eqn))
    return found


def wide_results(graph: StepGraph, target: Target) -> dict[int, int]:
    """Results of such convolutions that are widened, and bytes of the elements that they are held in.

    Their kernel widens them and puts groups side by side, where a group does not fill the columns of one tile.
    """
    tensors, found = graph.program.tensors, {}
    for eqn in _grouped(graph, target) if WIDE_GROUPS.applies_to(target) else ():
        (t,) = eqn.results
        readers = [graph.program.equations[c] for c in graph.values.consumers[t]]
        casts = [e.results[0] for e in readers if e.phase == "forward" and e.name == "convert_element_type"]
        widest = max((tensors[r].itemsize for r in casts if tensors[r].dtype.kind == "f"), default=0)
        if widest > tensors[t].itemsize and _width(graph, eqn) != _COLUMNS:
            found[t] = widest
    return found


def grouped_results(graph: StepGraph, target: Target) -> frozenset[int]:
    """Results of convolutions of groups of channels in the forward pass."""
    return frozenset(eqn.results[0] for eqn in _grouped(graph, target))


def _grouped(graph: StepGraph, target: Target) -> Iterator[Equation]:
    """Forward convolutions of groups of several channels; those of single channels are another kernel."""
    for eqn in graph.program.equations if target.tiles_arrays else ():
        is_forward = eqn.name == "conv_general_dilated" and eqn.phase == "forward"
        if is_forward and eqn.params["feature_group_count"] > 1 and _width(graph, eqn) > 1:
            yield eqn


def _width(graph: StepGraph, eqn: Equation) -> int:
    features = eqn.params["dimension_numbers"].lhs_spec[1]
    return graph.program.tensors[eqn.operands[0]].shape[features] // eqn.params["feature_group_count"]


def _images_in_groups(facts: Facts) -> Iterator[Write]:
    return map(Write, grouped_operands(facts.graph, facts.target))


CHANNEL_GROUPS = CompilerRule(
    name="channel-groups-are-innermost",
    backends=("tpu",),
    stage="fusion",
    does="What only convolutions of channel groups read has the batch and the channels of one group innermost.",
    source=Observed(evidence="a RegNetY compiled for v5e", command=zoo("v5e:2x4", "regnet")),
    made_after=("regnet",),
    test="tests/xla/test_channel_groups.py::test_an_image_lies_as_the_groups_of_its_channels_do",
    find=_images_in_groups,
)
WIDE_GROUPS = CompilerRule(
    name="convolutions-of-channel-groups-write-wide",
    backends=("tpu",),
    stage="layouts",
    does="What a convolution of channel groups makes is held widened unless a group fills a tile.",
    source=Observed(evidence="a RegNetY compiled for v5e", command=zoo("v5e:2x4", "regnet")),
    made_after=("regnet",),
    test="tests/xla/test_channel_groups.py::test_what_such_a_convolution_makes_is_held_wide",
)
