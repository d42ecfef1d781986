"""Matrices of 16 bits are padded to whole multiples of eight before XLA hands them to a GPU's library.

https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/cublas_pad_for_gemms.cc : of float16 and bfloat16,
where tensor cores multiply them, both dimensions of each matrix, those of a batch not. The 49 patches of a Swin
transformer's window become 56, the 197 of a ViT 200.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jaxplan.ir import WHOLE, Equation, GroupSpace, OperatorRule, StepGraph
from jaxplan.xla._target import Target
from jaxplan.xla.rules.gpu.layouts import PADDED_MATRICES

MULTIPLE = 8

MatrixDims = tuple[tuple[int, ...], tuple[int, ...]]
"""The dimensions of an operand that are the rows of its matrices, and those that are their columns."""


def _pads(graph: StepGraph, eqn: Equation, target: Target) -> bool:
    if not PADDED_MATRICES.applies_to(target) or eqn.name != "dot_general":
        return False
    dtypes = {graph.program.tensors[t].dtype.name for t in eqn.operands}
    return len(dtypes) == 1 and dtypes.pop() in target.padded_dtypes


def padded(sizes: np.ndarray) -> np.ndarray:
    """Sizes as the library gets them; a vector is no matrix, and stays as it is."""
    return np.where(sizes <= 1, sizes, np.ceil(sizes / MULTIPLE) * MULTIPLE)


def padded_operands(graph: StepGraph, target: Target) -> dict[int, MatrixDims]:
    """Operands that dots read padded; the copy is kept for the next dot that reads it, in the backward pass too."""
    found: dict[int, MatrixDims] = {}
    for eqn in graph.program.equations:
        if not _pads(graph, eqn, target):
            continue
        for side, t in enumerate(eqn.operands):
            found.setdefault(t, matrix_dims(eqn, side, len(graph.program.tensors[t].shape)))
    return found


def matrix_dims(eqn: Equation, side: int, rank: int) -> MatrixDims:
    """Dimensions of an operand of a product that are neither summed nor shared with the other, and those summed."""
    summed, shared = (dims[side] for dims in eqn.params["dimension_numbers"])
    return tuple(d for d in range(rank) if d not in summed and d not in shared), tuple(summed)


def is_padded(graph: StepGraph, eqn: Equation, side: int, target: Target, shape: Sequence[int]) -> bool:
    """Whether a product reads an operand, of a local shape, padded."""
    if not _pads(graph, eqn, target):
        return False
    return bool(padded_share(np.array([shape]), matrix_dims(eqn, side, len(shape)))[0] > 1)


def padded_share(shape: np.ndarray, dims: MatrixDims) -> np.ndarray:
    """(K,) elements of an operand over those that it has without padding, of local shapes (K, rank)."""
    share = np.ones(len(shape))
    for side in dims:
        size = shape[:, list(side)].prod(axis=1)
        share *= padded(size) / np.maximum(size, 1)
    return share


def padded_work(
    graph: StepGraph, space: GroupSpace, splits: np.ndarray, equation: int, target: Target
) -> np.ndarray:
    """Ratio of a device's multiply-adds with padding to those without, shape (K,); ``splits`` is (K, C)."""
    eqn, rule = graph.program.equations[equation], graph.rules[equation]
    more = np.ones(len(splits))
    if _pads(graph, eqn, target):
        for side in _sides(rule):
            size = np.ones(len(splits))
            for factor in side:
                c = space.factor_class[equation][factor]
                size *= rule.factors[factor].size / (1 if c == WHOLE else splits[:, c])
            more *= padded(size) / size
    return more


def _sides(rule: OperatorRule) -> tuple[set[int], set[int], set[int]]:
    """The factors of the rows, of the columns and of the sum."""
    left, right, out = (
        _factors(dims) for dims in (rule.operands[0], rule.operands[1], rule.results[0])
    )
    return (left & out) - right, (right & out) - left, (left & right) - out


def _factors(dims: Iterable[Iterable[int]]) -> set[int]:
    return {factor for dim in dims for factor in dim}
