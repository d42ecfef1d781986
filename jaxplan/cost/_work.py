"""The arithmetic of matrix products and convolutions, as the compiler runs them."""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.ir import CONTRACTION_FAMILIES, Count, Equation, OperatorRule, SplitWindow, StepGraph, Tensor
from jaxplan.ir.counts import Border as Border
from jaxplan.ir.counts import convolution_products, pairs, window_sizes
from jaxplan.xla._target import Target
from jaxplan.xla.rules.both.deferred import is_gradient
from jaxplan.xla.rules.gpu.schedule import RAGGED_DOTS


def flops_of_equation(
    eqn: Equation,
    rule: OperatorRule,
    count: Count | None,
    tensors: Sequence[Tensor],
    border: Border | None = None,
) -> float:
    """FLOPs of a contraction or convolution, two per multiply-add; 0 for everything else.

    They are those of its count, but for the zeros of ``border`` (`written_border`), which are multiplied as well.
    """
    if rule.family not in CONTRACTION_FAMILIES:
        return 0.0
    if border is not None:
        return 2.0 * convolution_products(_shapes(eqn, tensors), eqn.params, border)
    return sum(number for _, number in count.matrix) if count else 0.0


def groups_multiplied(eqn: Equation, tensors: Sequence[Tensor], target: Target) -> int:
    """How often the compiler does the work of a contraction.

    XLA for GPUs lowers a product of groups of rows to one over all groups, in which the rows of others are zeros (seen
    in programs compiled for H100); everything else runs once.
    """
    is_ragged = eqn.name == "ragged_dot_general" and RAGGED_DOTS.applies_to(target)
    return tensors[eqn.operands[2]].shape[-1] if is_ragged else 1


def written_border(graph: StepGraph, equation: int) -> Border | None:
    """Zeros that XLA for GPUs writes around the image of a convolution, for its result or for a gradient of it.

    Its library pads both sides alike and takes no image with holes. Where a convolution does not pad so, or has holes
    (``SAME`` with a stride of two), all padding and the holes are written before it; for the gradients the excess of
    one side over the other: that of the image is made with the border and cut (``CanonicalizeBackwardInputConvolution``
    and its neighbours,
    https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/conv_padding_legalization.cc).
    The gradient of the image where channels are in groups, and that of a dilated kernel, are convolutions like others
    (``MatchBackwardInput`` and ``MatchBackwardFilter``,
    https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/conv_rewriter.cc): of a depthwise one with a
    stride of two the first takes four times the work. None where nothing is written.
    """
    eqn = graph.program.equations[equation]
    if graph.rules[equation].family != "convolution":
        return None
    made_by = graph.values.producer[eqn.operands[1]]
    is_reversed = made_by >= 0 and graph.program.equations[made_by].name == "rev"
    of_image = eqn.phase == "backward" and is_reversed and eqn.params["feature_group_count"] == 1
    has_stride = set(eqn.params["window_strides"]) != {1}  # the gradient of a dilated kernel
    of_kernel = eqn.phase == "backward" and is_gradient(graph, eqn.results[0]) and not has_stride
    pads: list[tuple[int, int]] = []
    for axis, (before, after) in enumerate(eqn.params["padding"]):
        num_inputs, num_kernel, num_outputs = window_sizes(_shapes(eqn, graph.program.tensors), eqn.params, axis)
        extent = (num_kernel - 1) * eqn.params["rhs_dilation"][axis] + 1
        if of_image:
            before, stride = extent - 1 - before, eqn.params["lhs_dilation"][axis]
            after = _nearest(before, (num_inputs - 1) * stride + extent - num_outputs - before, stride)
        elif of_kernel:
            after = extent + num_outputs - 1 - num_inputs - before
            after = _nearest(before, after, eqn.params["rhs_dilation"][axis])
        pads.append((max(before, 0), max(after, 0)))
    if of_image or of_kernel:
        pads = [(b - min(b, a), a - min(b, a)) for b, a in pads]
        return Border(tuple(pads), of_image) if any(map(any, pads)) else None
    is_dilated = set(eqn.params["lhs_dilation"]) != {1}
    is_written = is_dilated or any(before != after for before, after in pads)
    return Border(tuple(pads), False, is_dilated) if is_written else None


def _nearest(before: int, least: int, stride: int) -> int:
    """Padding after an image that is most like that before it: the last windows reach as far with any of ``stride``."""
    return min(max(before, least), least + stride - 1)


def _shapes(eqn: Equation, tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Of the image, the kernel and the result of a convolution."""
    return [tensors[t].shape for t in (*eqn.operands[:2], eqn.results[0])]


def work_beside_halos(
    eqn: Equation,
    rule: OperatorRule,
    tensors: Sequence[Tensor],
    split: SplitWindow,
    parts: int,
    border: Border | None = None,
) -> float:
    """A device's work on a convolution with an image that is cut into parts, over an equal share of the whole.

    Where blocks meet there is no padding: windows multiply there with the neighbour's edge, and those of the
    outer blocks with the zeros that stand for it, so that every device runs the same program.
    """
    halo = split.window.halo(parts)
    if parts == 1 or rule.family != "convolution" or halo is None:
        return 1.0
    numbers = eqn.params["dimension_numbers"]
    axis = next(a for a, d in enumerate(numbers[0][2:]) if split.factor in rule.operands[0][d])
    num_inputs, num_kernel, num_outputs = window_sizes(_shapes(eqn, tensors), eqn.params, axis)
    padding = eqn.params["padding"][axis][0]
    whole = pairs(eqn.params, axis, num_inputs, num_kernel, num_outputs, padding, border)
    block = num_inputs // parts + halo.before + halo.after
    if halo.starts:  # the operand of the windows is cut out
        block = split.window.reach(split.window.out_size // parts)
    if split.factor in rule.operands[1][numbers[1][2 + axis]]:  # a weight gradient: its kernel is cut
        num_kernel //= parts
    else:
        num_outputs //= parts
    own_border = None
    if border and border.fills_holes:  # all padding of a device's own convolution is written with them
        before, after = (max(0, width) for width in halo.padding)
        own_border = border._replace(widths=((before, after),) * len(border.widths))
    own = pairs(eqn.params, axis, block, num_kernel, num_outputs, halo.padding[0], own_border)
    return parts * own / whole
