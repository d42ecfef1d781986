"""Convolutions of groups of channels on TPUs."""

from __future__ import annotations

from collections.abc import Iterator

from jaxplan.ir import Equation, StepGraph
from jaxplan.xla._effects import GroupChannels, Hold, Write
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import CompilerRule, Observed, zoo
from jaxplan.xla._storage import ChannelGroups
from jaxplan.xla._target import Target

_COLUMNS = 128
"""Of a tile."""


def _images_in_groups(facts: Facts) -> Iterator[Write | GroupChannels]:
    """Images that only convolutions of groups of channels read in the forward pass, as those lie in memory.

    Compiled TPU programs write them so, for the convolution and for the gradient of its kernel: 64 channels of a
    RegNet's groups take 128.
    """
    graph, found = facts.graph, dict[int, ChannelGroups]()
    for eqn in _grouped(graph, facts.target):
        t = eqn.operands[0]
        forward = facts.readers(t, "forward")
        if not graph.values.free[t] and all(e.index == eqn.index for e in forward):
            batch, features, *_ = eqn.params["dimension_numbers"].lhs_spec
            found[t] = ChannelGroups(batch=batch, features=features, width=_width(graph, eqn))
    for t, groups in found.items():
        yield Write(t)
        yield GroupChannels(t, groups)


def _wide_results(facts: Facts) -> Iterator[Hold]:
    """Results of such convolutions that are widened, with the bytes of the elements that they are held in.

    Their kernel widens them and puts groups side by side, where a group does not fill the columns of one tile.
    """
    graph, tensors = facts.graph, facts.tensors
    for eqn in _grouped(graph, facts.target):
        (t,) = eqn.results
        casts = [e.results[0] for e in facts.readers(t, "forward") if e.name == "convert_element_type"]
        widest = max((tensors[r].itemsize for r in casts if tensors[r].dtype.kind == "f"), default=0)
        if widest > tensors[t].itemsize and _width(graph, eqn) != _COLUMNS:
            yield Hold(t, widest, copies=True)


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


CHANNEL_GROUPS = CompilerRule(
    name="channel-groups-are-innermost",
    backends=("tpu",),
    stage="fusion",
    does="An image that only convolutions of channel groups read has batch and channels of one group innermost.",
    source=Observed(evidence="a RegNetY compiled for v5e", command=zoo("v5e:2x4", "regnet")),
    made_after=("regnet",),
    test="tests/xla/test_channel_groups.py::test_an_image_lies_as_the_groups_of_its_channels_do",
    find=_images_in_groups,
)
WIDE_GROUPS = CompilerRule(
    name="convolutions-of-channel-groups-write-wide",
    backends=("tpu",),
    stage="storage",
    does="The result of a convolution of channel groups is held widened unless a group fills a tile.",
    source=Observed(evidence="a RegNetY compiled for v5e", command=zoo("v5e:2x4", "regnet")),
    made_after=("regnet",),
    test="tests/xla/test_channel_groups.py::test_what_such_a_convolution_makes_is_held_wide",
    find=_wide_results,
)
