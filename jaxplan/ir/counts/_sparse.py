"""Operators of `jax.experimental.sparse`: a multiply-add per stored element, and the rows that stored elements name."""

from __future__ import annotations

import math
from typing import Any

from jaxplan.core import _compat
from jaxplan.ir._count import Count
from jaxplan.ir._count_registry import register_count
from jaxplan.ir._registry import Aval, Avals, Params
from jaxplan.ir.counts._transforms import sort

_DENSE_OPERANDS = {"bcoo_dot_general": 2, "bcsr_dot_general": 3, "coo_matmat": 3, "csr_matmat": 3}
_VECTOR_PRODUCTS = ("coo_matvec", "csr_matvec", "coo_spmv", "csr_spmv")
_MATRIX_PRODUCTS = ("coo_spmm", "csr_spmm")


def _size(aval: Aval) -> int:
    return math.prod(aval.shape)


def _bytes(aval: Aval, elements: float) -> float:
    return float(elements * _compat.itemsize(aval.dtype))


def _products(data: Aval, dense: Aval, result: Aval, columns: int, num_operands: int, position: int) -> Count:
    """Every stored element is multiplied with ``columns`` elements of the dense operand, and added to as many of the
    result, which begins as zeros."""
    pairs = _size(data) * columns
    rows = min(_bytes(dense, pairs), _bytes(dense, _size(dense)))
    touched: list[float | None] = [None] * (num_operands + 1)
    touched[position] = rows
    own = sum(_bytes(aval, _size(aval)) for aval in (data, result))
    return Count(
        vector=((str(data.dtype), 2.0 * pairs),),
        touched=tuple(touched),
        moved=own + rows + 2 * _bytes(result, pairs),
    )


def _free_elements(dense: Aval, params: Params) -> int:
    (_, contracted), (_, batch) = params["dimension_numbers"]
    return math.prod(size for axis, size in enumerate(dense.shape) if axis not in (*contracted, *batch))


def _register(name: str, position: int) -> None:
    @register_count(name, kind="multiply-adds per stored element")
    def count(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
        dense = in_avals[position]
        is_general = "dimension_numbers" in params
        columns = _free_elements(dense, params) if is_general else math.prod(dense.shape[1:])
        return _products(in_avals[0], dense, out_avals[0], columns, len(in_avals), position)


for _name, _position in _DENSE_OPERANDS.items():
    _register(_name, _position)
for _name in (*_VECTOR_PRODUCTS, *_MATRIX_PRODUCTS):
    _register(_name, 3)


@register_count("bcoo_spdot_general", kind="multiply-adds per pair of stored elements")
def sparse_times_sparse(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Every stored element of one operand is compared with every one of the other, as JAX computes it."""
    lhs, lhs_indices, rhs, _ = in_avals
    batch = math.prod(lhs_indices.shape[:-2])
    pairs = _size(lhs) * _size(rhs) / max(1, batch)
    return Count(vector=((str(lhs.dtype), 3.0 * pairs),))


@register_count("bcoo_dot_general_sampled", kind="multiply-adds per stored element")
def sampled_product(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """One dot product per stored element of the result."""
    (contracted, _), _ = params["dimension_numbers"]
    summands = math.prod(in_avals[0].shape[axis] for axis in contracted)
    return Count(vector=((str(in_avals[0].dtype), 2.0 * _size(out_avals[0]) * summands),))


@register_count("bcoo_extract", "bcsr_extract", kind="rows touched")
def extract(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """As many elements of the dense operand as are stored."""
    touched: list[float | None] = [None] * (len(in_avals) + 1)
    touched[len(in_avals) - 1] = _bytes(in_avals[-1], _size(out_avals[0]))
    return Count(touched=tuple(touched))


@register_count("bcoo_todense", "bcsr_todense", "coo_todense", "csr_todense", "todense", kind="rows touched")
def to_dense(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Zeros, and an addition per stored element."""
    stored = max(_size(aval) for aval in in_avals)
    moved = sum(_bytes(aval, _size(aval)) for aval in (*in_avals, *out_avals)) + 2 * _bytes(
        out_avals[0], stored
    )
    return Count(vector=((str(out_avals[0].dtype), float(stored)),), moved=moved, kernels=2)


@register_count(
    "bcoo_fromdense", "bcsr_fromdense", "coo_fromdense", "csr_fromdense", kind="comparisons and a scan"
)
def from_dense(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Each element is compared with zero, and a scan over the comparisons numbers those that are stored."""
    return Count(vector=((str(in_avals[0].dtype), 3.0 * _size(in_avals[0])),), kernels=2)


@register_count("bcoo_transpose", kind="moves bytes")
def transpose(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """Stored elements stay where they are; their coordinates change places."""
    return Count(streams=True)


@register_count("bcoo_sort_indices", "bcoo_sum_duplicates", kind="n log2 n comparisons")
def sort_indices(in_avals: Avals, out_avals: Avals, params: Params) -> Count:
    """The stored elements of each batch are sorted by their coordinates, one key after the other."""
    indices: Any = in_avals[1]
    return sort((indices,), (), {"dimension": len(indices.shape) - 2, "num_keys": indices.shape[-1]})
