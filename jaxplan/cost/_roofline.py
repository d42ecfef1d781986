"""Seconds of arithmetic on one device: the units of a chip work side by side, each at a share of its peak."""

from __future__ import annotations

import jax.numpy as jnp

from jaxplan.ir import Count
from jaxplan.mesh import ChipSpec

EXACT_EFFICIENCY = 0.5
"""Share of the peak in full precision that factorisations reach: a blocked one spends its time in dots, as far as
its panels, which are narrow, do not hold it up; assumed until calibrated on the device."""
VECTOR_EFFICIENCY = 0.5
"""Share of the peak of vector units: a peak counts two operations for a fused multiply-add, which a lone addition,
comparison or step of a function is not."""
_NARROW = 2
"""Bytes of the operands of dots that run on matrix units as they are."""
_COMPLEX_PRODUCT = 4
"""Real multiply-adds of a complex one."""


def arithmetic_seconds(count: Count, chip: ChipSpec) -> float:
    """Seconds of the slowest unit for the work of an operator."""
    matrix = sum(number / product_rate(chip, dtype) for dtype, number in count.matrix)
    exact = sum(number / (chip.peak_flops_per_second(d) * EXACT_EFFICIENCY) for d, number in count.exact)
    vector = sum(number / (chip.vector_flops_per_second(d) * VECTOR_EFFICIENCY) for d, number in count.vector)
    return max(matrix, exact, vector)


def product_rate(chip: ChipSpec, dtype: str) -> float:
    """Achievable FLOP/s of large dots in a dtype; of complex ones, which take four real ones each, a quarter."""
    is_wide = chip.efficiency.wide_products and jnp.dtype(dtype).itemsize > _NARROW
    share = chip.efficiency.wide_products if is_wide else chip.efficiency.products
    rate = chip.matmul_flops_per_second(dtype) * share
    return rate / _COMPLEX_PRODUCT if dtype.startswith("complex") else rate


def attention_seconds(count: Count, chip: ChipSpec) -> float:
    """Seconds of a fused attention kernel, of which softmax is a part, or of its vector units where they are slower."""
    matrix = sum(number / chip.matmul_flops_per_second(dtype) for dtype, number in count.matrix)
    vector = sum(number / (chip.vector_flops_per_second(d) * VECTOR_EFFICIENCY) for d, number in count.vector)
    return max(matrix / chip.efficiency.attention, vector)


def memory_bytes_per_second(chip: ChipSpec) -> float:
    """Achievable bandwidth of device memory."""
    return chip.memory_bytes_per_second * chip.efficiency.memory
