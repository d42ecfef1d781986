"""The arithmetic of matrix products and convolutions, as the compiler runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxplan.ir import CONTRACTION_FAMILIES, Count, Equation, OperatorRule, SplitWindow, Tensor
from jaxplan.ir.counts import Border as Border
from jaxplan.ir.counts import convolution_products, pairs, window_sizes
from jaxplan.xla._effects import PadMatrices
from jaxplan.xla._found import Found
from jaxplan.xla._plan_effects import MultiplyBorder, Repeat


def flops_of_equation(
    eqn: Equation,
    rule: OperatorRule,
    count: Count | None,
    tensors: Sequence[Tensor],
    border: Border | None = None,
) -> float:
    """FLOPs of a contraction or convolution, two per multiply-add; 0 for everything else.

    They are those of its count, but for the zeros of ``border``, which are multiplied as well.
    """
    if rule.family not in CONTRACTION_FAMILIES:
        return 0.0
    if border is not None:
        return 2.0 * convolution_products(_shapes(eqn, tensors), eqn.params, border)
    return sum(number for _, number in count.matrix) if count else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledWork:
    """Equations that do other arithmetic than the program's.

    Attributes:
      padded: dots that multiply padded matrices.
      borders: convolution -> the zeros written around its image, which it multiplies.
      times: equation -> how often its work is done.
    """

    padded: frozenset[int]
    borders: Mapping[int, Border]
    times: Mapping[int, int]

    @classmethod
    def of(cls, found: Found) -> CompiledWork:
        """By the effects of the compiler rules."""
        return cls(
            padded=frozenset(effect.equation for effect in found.of(PadMatrices)),
            borders={effect.equation: effect.border for effect in found.of(MultiplyBorder)},
            times={effect.equation: effect.times for effect in found.of(Repeat)},
        )


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
