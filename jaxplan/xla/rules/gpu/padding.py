"""Matrices of 16 bits are padded to whole multiples of eight before XLA hands them to a GPU's library.

https://github.com/openxla/xla/blob/main/xla/service/gpu/transforms/cublas_pad_for_gemms.cc : of float16 and bfloat16,
where tensor cores multiply them, both dimensions of each matrix, those of a batch not. The 49 patches of a Swin
transformer's window become 56, the 197 of a ViT 200.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from jaxplan.ir import WHOLE, Equation, GroupSpace, OperatorRule, StepGraph
from jaxplan.xla._effects import PadMatrices
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import XLA, CompilerRule
from jaxplan.xla._storage import MatrixDims

MULTIPLE = 8


def _padded_dots(facts: Facts) -> Iterator[PadMatrices]:
    for eqn in facts.equations:
        if eqn.name == "dot_general":
            dtypes = {facts.tensors[t].dtype.name for t in eqn.operands}
            if len(dtypes) == 1 and dtypes.pop() in facts.target.padded_dtypes:
                yield PadMatrices(eqn.index)


def padded(sizes: np.ndarray) -> np.ndarray:
    """Sizes as the library gets them; a vector is no matrix, and stays as it is."""
    return np.where(sizes <= 1, sizes, np.ceil(sizes / MULTIPLE) * MULTIPLE)


def matrix_dims(eqn: Equation, side: int, rank: int) -> MatrixDims:
    """Dimensions of an operand of a dot that are neither summed nor shared with the other, and those summed."""
    summed, shared = (dims[side] for dims in eqn.params["dimension_numbers"])
    return tuple(d for d in range(rank) if d not in summed and d not in shared), tuple(summed)


def is_padded(eqn: Equation, side: int, shape: Sequence[int]) -> bool:
    """Whether a dot whose matrices are padded reads an operand, of a local shape, with padding."""
    return bool(padded_share(np.array([shape]), matrix_dims(eqn, side, len(shape)))[0] > 1)


def padded_share(shape: np.ndarray, dims: MatrixDims) -> np.ndarray:
    """(K,) elements of an operand over those that it has without padding, of local shapes (K, rank)."""
    share = np.ones(len(shape))
    for side in dims:
        size = shape[:, list(side)].prod(axis=1)
        share *= padded(size) / np.maximum(size, 1)
    return share


def padded_work(graph: StepGraph, space: GroupSpace, splits: np.ndarray, equation: int) -> np.ndarray:
    """Ratio of a device's multiply-adds with padding to those without, shape (K,); ``splits`` is (K, C)."""
    rule, more = graph.rules[equation], np.ones(len(splits))
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


PADDED_MATRICES = CompilerRule(
    name="matrices-of-16-bits-are-padded",
    backends=("gpu",),
    stage="storage",
    does="Rows and columns of 16-bit matrices are padded to multiples of eight, and kept so.",
    source=f"{XLA}service/gpu/transforms/cublas_pad_for_gemms.cc",
    made_after=("vit", "swin"),
    test="tests/cost/test_work.py::test_what_is_padded_is_kept_so",
    find=_padded_dots,
)
