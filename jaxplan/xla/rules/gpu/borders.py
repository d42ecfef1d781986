"""Zeros that GPU programs write around images, and the copies of images that hold them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from jaxplan.ir.counts import Border, window_sizes
from jaxplan.xla._effects import Absorb, Temporary
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import XLA, CompilerRule
from jaxplan.xla.rules.both.deferred import is_gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedImage(Temporary):
    """A copy of a tensor with zeros around it, or the cells of one that are cut off again.

    Attributes:
      equation: the convolution that reads the copy, or makes the border.
      tensor: the image.
      widths: dimension -> elements that it has more.
      uneven: dimensions with more of them on one side; the copy is made for these, or for its holes.
      holes: dimension -> distance of its elements.
      is_whole: a buffer beside the tensor's own; else only its additional cells are.
    """

    equation: int
    tensor: int
    widths: tuple[tuple[int, int], ...]
    uneven: frozenset[int]
    holes: tuple[tuple[int, int], ...]
    is_whole: bool

    def num_elements(self, shape: Sequence[int], cut: Collection[int] = ()) -> int:
        """How many elements a device holds for it, of a local shape of the tensor; 0: it makes no copy.

        Along dimensions that are ``cut`` over devices, a neighbour's edge is in place of zeros.
        """
        if not (self.uneven.difference(cut) or self.holes) or any(d in cut for d, _ in self.holes):
            return 0
        whole, sizes = 1, {d: size for d, size in self.widths if d not in cut}
        distances = dict(self.holes)
        for d, size in enumerate(shape):
            whole *= (size - 1) * distances.get(d, 1) + 1 + sizes.get(d, 0)
        own = 1
        for size in shape:
            own *= size
        return whole if self.is_whole else whole - own


def written_border(facts: Facts, equation: int) -> Border | None:
    """Zeros that XLA for GPUs writes around the image of a convolution, for its result or for a gradient of it.

    Its library pads both sides alike and takes no image with holes. Where a convolution does not pad so, or has holes
    (``SAME`` with a stride of two), all padding and the holes are written before it; for the gradients the excess of
    one side over the other (from JAX 0.11 on all of it for that of the kernel): that of the image is made with the
    border and cut (``CanonicalizeBackwardInputConvolution`` and its neighbours,
    https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/conv_padding_legalization.cc).
    The gradient of the image where channels are in groups, and that of a dilated kernel, are convolutions like others
    (``MatchBackwardInput`` and ``MatchBackwardFilter``,
    https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/conv_rewriter.cc): of a depthwise one with a
    stride of two the first takes four times the work. None where nothing is written.
    """
    graph, eqn = facts.graph, facts.equations[equation]
    if graph.rules[equation].family != "convolution":
        return None
    made_by = graph.values.producer[eqn.operands[1]]
    is_reversed = made_by >= 0 and graph.program.equations[made_by].name == "rev"
    of_image = eqn.phase == "backward" and is_reversed and eqn.params["feature_group_count"] == 1
    has_stride = set(eqn.params["window_strides"]) != {1}  # the gradient of a dilated kernel
    of_kernel = eqn.phase == "backward" and is_gradient(graph, eqn.results[0]) and not has_stride
    shapes = [graph.program.tensors[t].shape for t in (*eqn.operands[:2], eqn.results[0])]
    pads: list[tuple[int, int]] = []
    for axis, (before, after) in enumerate(eqn.params["padding"]):
        num_inputs, num_kernel, num_outputs = window_sizes(shapes, eqn.params, axis)
        extent = (num_kernel - 1) * eqn.params["rhs_dilation"][axis] + 1
        if of_image:
            before, stride = extent - 1 - before, eqn.params["lhs_dilation"][axis]
            after = _nearest(before, (num_inputs - 1) * stride + extent - num_outputs - before, stride)
        elif of_kernel:
            after = extent + num_outputs - 1 - num_inputs - before
            after = _nearest(before, after, eqn.params["rhs_dilation"][axis])
        pads.append((max(before, 0), max(after, 0)))
    if of_image or of_kernel:
        excess = [(b - min(b, a), a - min(b, a)) for b, a in pads]
        is_whole = of_kernel and facts.target.pads_images_wholly and set(eqn.params["lhs_dilation"]) == {1}
        return Border(tuple(pads if is_whole else excess), of_image) if any(map(any, excess)) else None
    is_dilated = set(eqn.params["lhs_dilation"]) != {1}
    is_written = is_dilated or any(before != after for before, after in pads)
    return Border(tuple(pads), False, is_dilated) if is_written else None


def _nearest(before: int, least: int, stride: int) -> int:
    """Padding after an image that is most like that before it: the last windows reach as far with any of ``stride``."""
    return min(max(before, least), least + stride - 1)


def _images_with_borders(facts: Facts) -> Iterator[Absorb | PaddedImage]:
    """Copies of images with the zeros around them that convolutions read, and the border of image gradients."""
    for eqn in facts.equations:
        border = written_border(facts, eqn.index)
        if border is None:
            continue
        if not border.around_output:
            yield Absorb(eqn.index, eqn.operands[0])
        dims = eqn.params["dimension_numbers"][2 if border.around_output else 0][2:]
        steps = eqn.params["lhs_dilation"] if border.fills_holes else ()
        yield PaddedImage(
            equation=eqn.index,
            tensor=eqn.results[0] if border.around_output else eqn.operands[0],
            widths=tuple((d, before + after) for d, (before, after) in zip(dims, border.widths) if before + after),
            uneven=frozenset(d for d, (before, after) in zip(dims, border.widths) if before != after),
            holes=tuple((d, step) for d, step in zip(dims, steps) if step > 1),
            is_whole=not border.around_output,
        )


PADDED_IMAGES = CompilerRule(
    name="images-are-padded-in-copies",
    backends=("gpu",),
    stage="kernels",
    does="A convolution that pads unlike on both sides reads a padded copy; the gradient of its image is cut from one.",
    source=f"{XLA}service/gpu/transforms/conv_padding_legalization.cc",
    made_after=(),
    test="tests/xla/test_borders.py::test_a_convolution_with_a_stride_reads_a_padded_copy",
    find=_images_with_borders,
)
