"""Operators of `jax.experimental.sparse`: stored elements may be split, coordinates and dimensions that they name not.

A BCOO array of shape ``[batch, sparse, dense]`` is ``data[batch, nse, dense]`` and ``indices[batch, nse, n_sparse]``;
BCSR has ``indices[batch, nse]`` and ``indptr[batch, rows + 1]``
(https://docs.jax.dev/en/latest/jax.experimental.sparse.html). Operators run on pieces: the compiler would gather.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from jaxplan.ir._registry import Aval, Avals, Params, register_local_params, register_rule
from jaxplan.ir._rule import Dimension, FactorKind, OperatorRule, Shape, TensorFactors
from jaxplan.ir.rules._builder import Factors, leading_dims_rule

_FAMILY = "sparse"


class _Stored:
    """Factors of the batch, of the stored elements and of the dense dimensions of one sparse array.

    A dimension of the batch may have size 1 in ``data`` or ``indices``: it is the same for all. One that is contracted
    is whole: the result holds no part of it.
    """

    def __init__(
        self,
        factors: Factors,
        shape: Shape,
        num_batch: int,
        num_sparse: int,
        nse: int,
        *,
        nse_kind: FactorKind = "whole",
        dense_kind: FactorKind = "map",
        contracted: Sequence[int] = (),
    ) -> None:
        self.factors = factors
        self.batch = factors.add_except(shape[:num_batch], (axis for axis in contracted if axis < num_batch))
        self._named = shape[num_batch : num_batch + num_sparse]
        self.dense = tuple(factors.add(size, dense_kind) for size in shape[num_batch + num_sparse :])
        self.nse = factors.add(nse, nse_kind, "sum" if nse_kind == "reduce" else None)

    @functools.cached_property
    def whole(self) -> TensorFactors:
        """Dimensions of the array itself; those that coordinates name are whole."""
        return (*self.batch, *map(self.factors.whole, self._named), *self.dense)

    def data(self, aval: Aval) -> TensorFactors:
        return (*self._leading(aval), self.nse, *self.dense)

    def indices(self, aval: Aval) -> TensorFactors:
        """Coordinates, one or several of each stored element."""
        return (*self._leading(aval), self.nse, *map(self.factors.whole, aval.shape[len(self.batch) + 1 :]))

    def pointers(self, aval: Aval) -> TensorFactors:
        """Where the rows begin."""
        return (*self._leading(aval), self.factors.whole(aval.shape[-1]))

    def _leading(self, aval: Aval) -> TensorFactors:
        return tuple(() if size == 1 else dim for size, dim in zip(aval.shape, self.batch))


def _coordinates(factors: Factors, indices: Aval, shape: Shape, **kinds: Any) -> _Stored:
    """Of a BCOO array, from its indices."""
    num_batch, num_sparse = len(indices.shape) - 2, indices.shape[-1]
    return _Stored(factors, shape, num_batch, num_sparse, indices.shape[-2], **kinds)


def _rows(factors: Factors, indices: Aval, shape: Shape, **kinds: Any) -> _Stored:
    """Of a BCSR array, from its column indices."""
    return _Stored(factors, shape, len(indices.shape) - 1, 2, indices.shape[-1], **kinds)


@register_rule("bcoo_todense")
def bcoo_todense_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b e d, b e c -> b s d``: devices that have some of the stored elements hold partial sums."""
    factors = Factors()
    stored = _coordinates(factors, in_avals[1], out_avals[0].shape, nse_kind="reduce")
    operands = [stored.data(in_avals[0]), stored.indices(in_avals[1])]
    return factors.rule(operands, [stored.whole], _FAMILY, ((0,),), manual=True)


@register_rule("bcoo_fromdense")
def bcoo_fromdense_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b s d -> b e d, b e c`` with the batch mapped: an element is stored where any of its dense part is not zero."""
    factors = Factors()
    stored = _coordinates(factors, out_avals[1], in_avals[0].shape, dense_kind="whole")
    return factors.rule(
        [stored.whole], [stored.data(out_avals[0]), stored.indices(out_avals[1])], _FAMILY, manual=True
    )


@register_rule("bcoo_extract")
def bcoo_extract_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b e c, b s d -> b e d``."""
    factors = Factors()
    stored = _coordinates(factors, in_avals[0], in_avals[1].shape, nse_kind="map")
    operands = [stored.indices(in_avals[0]), stored.whole]
    return factors.rule(operands, [stored.data(out_avals[0])], _FAMILY, ((1,),), manual=True)


@register_rule("bcoo_sort_indices", "bcoo_sum_duplicates")
def bcoo_sorted_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b e d, b e c -> b f d, b f c``: stored elements are sorted together, and whole."""
    factors = Factors()
    data, indices = in_avals
    shape = _local_shape(params["spinfo"].shape, data.shape, indices.shape)
    stored = _coordinates(factors, indices, shape)
    nse, num_batch = out_avals[1].shape[-2], len(indices.shape) - 2
    left = stored.nse if nse == indices.shape[-2] else factors.whole(nse)
    results = [stored.data(out_avals[0]), stored.indices(out_avals[1])]
    results = [(*dims[:num_batch], left, *dims[num_batch + 1 :]) for dims in results]
    return factors.rule([stored.data(data), stored.indices(indices)], results, _FAMILY, manual=True)


@register_rule("bcoo_transpose")
def bcoo_transpose_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``a b e c d, a b e k -> b a e d c, b a e k``: stored elements stay where they are."""
    factors = Factors()
    data, indices = in_avals
    shape = _local_shape(params["spinfo"].shape, data.shape, indices.shape)
    stored = _coordinates(factors, indices, shape, nse_kind="map")
    num_batch, num_sparse = len(indices.shape) - 2, indices.shape[-1]
    batch, dense = params["permutation"][:num_batch], params["permutation"][num_batch + num_sparse :]
    of_data, of_indices = stored.data(data), stored.indices(indices)
    turned = tuple(of_data[axis - num_sparse + 1] for axis in dense)
    results = [
        (*(of_data[axis] for axis in batch), stored.nse, *turned),
        (*(of_indices[axis] for axis in batch), stored.nse, of_indices[-1]),
    ]
    return factors.rule([of_data, of_indices], results, _FAMILY, manual=True)


@register_rule("bcoo_dot_general")
def bcoo_dot_general_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b e d, b e c, b k j -> b s d j`` with the stored elements e reduced, and their coordinates, s and k, whole."""
    factors = Factors()
    contracted, _ = params["dimension_numbers"][0]
    shape = params["lhs_spinfo"].shape
    stored = _coordinates(factors, in_avals[1], shape, nse_kind="reduce", contracted=contracted)
    rhs, result = _product(factors, stored, in_avals[2], params)
    operands = [stored.data(in_avals[0]), stored.indices(in_avals[1]), rhs]
    return factors.rule(operands, [result], _FAMILY, ((0,), (2,)), manual=True)


@register_rule("bcsr_dot_general")
def bcsr_dot_general_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """The same for compressed rows; stored elements are whole."""
    factors = Factors()
    contracted, _ = params["dimension_numbers"][0]
    stored = _rows(factors, in_avals[1], params["lhs_spinfo"].shape, contracted=contracted)
    rhs, result = _product(factors, stored, in_avals[3], params)
    operands = [stored.data(in_avals[0]), stored.indices(in_avals[1]), stored.pointers(in_avals[2]), rhs]
    return factors.rule(operands, [result], _FAMILY, ((0,), (3,)), manual=True)


def _product(
    factors: Factors, stored: _Stored, dense: Aval, params: Params
) -> tuple[TensorFactors, TensorFactors]:
    """Dimensions of the dense operand and of the result, which has batch, left and right dimensions."""
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    left = stored.whole
    shared = {right: left[axis] for axis, right in zip((*left_batch, *left_sum), (*right_batch, *right_sum))}
    rhs = tuple(
        shared[axis] if axis in shared else factors.add(size) for axis, size in enumerate(dense.shape)
    )
    kept = [dim for axis, dim in enumerate(left) if axis not in (*left_batch, *left_sum)]
    free = [dim for axis, dim in enumerate(rhs) if axis not in shared]
    return rhs, (*(left[axis] for axis in left_batch), *kept, *free)


@register_rule("bcoo_dot_general_sampled")
def bcoo_dot_general_sampled_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``i k, k j, e c -> e``: each stored element of the result by itself."""
    factors = Factors()
    lhs, rhs, indices = in_avals
    nse = factors.add(indices.shape[-2])
    dims = [tuple(map(factors.whole, aval.shape)) for aval in (lhs, rhs)]
    leading = tuple(map(factors.whole, indices.shape[:-2]))
    rest = tuple(map(factors.whole, out_avals[0].shape[len(leading) + 1 :]))
    coordinates = (*leading, nse, factors.whole(indices.shape[-1]))
    return factors.rule([*dims, coordinates], [(*leading, nse, *rest)], _FAMILY, manual=True)


@register_rule("bcoo_spdot_general")
def bcoo_spdot_general_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Two sparse operands: the batch is mapped where all of it is shared by both in order."""
    num_batch = len(in_avals[1].shape) - 2
    numbers, shared = params["dimension_numbers"][1], tuple(range(num_batch))
    sizes = {aval.shape[:num_batch] for aval in (*in_avals, *out_avals)}
    is_shared = tuple(numbers[0]) == tuple(numbers[1]) == shared and len(sizes) == 1
    num_leading = num_batch if is_shared and len(in_avals[3].shape) - 2 == num_batch else 0
    return leading_dims_rule(in_avals, out_avals, num_leading=num_leading, family=_FAMILY, manual=True)


@register_rule("bcsr_todense")
def bcsr_todense_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b e d, b e, b r -> b s d``."""
    factors = Factors()
    data, indices, pointers = in_avals
    stored = _rows(factors, indices, out_avals[0].shape)
    operands = [stored.data(data), stored.indices(indices), stored.pointers(pointers)]
    return factors.rule(operands, [stored.whole], _FAMILY, ((0,),), manual=True)


@register_rule("bcsr_fromdense")
def bcsr_fromdense_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b s d -> b e d, b e, b r`` with the batch mapped."""
    factors = Factors()
    data, indices, pointers = out_avals
    stored = _rows(factors, indices, in_avals[0].shape, dense_kind="whole")
    results = [stored.data(data), stored.indices(indices), stored.pointers(pointers)]
    return factors.rule([stored.whole], results, _FAMILY, manual=True)


@register_rule("bcsr_extract")
def bcsr_extract_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``b e, b r, b s d -> b e d``."""
    factors = Factors()
    indices, pointers, dense = in_avals
    stored = _rows(factors, indices, dense.shape)
    operands = [stored.indices(indices), stored.pointers(pointers), stored.whole]
    return factors.rule(operands, [stored.data(out_avals[0])], _FAMILY, ((2,),), manual=True)


@register_rule("coo_todense", "coo_matvec", "coo_matmat")
def coo_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``e, e, e, k j -> i j`` with the stored elements e reduced: data, rows, columns, and a dense operand or none."""
    factors = Factors()
    nse: Dimension = factors.add(in_avals[0].shape[0], "reduce", "sum")
    columns = tuple(map(factors.add, out_avals[0].shape[1:])) if len(in_avals) > 3 else ()
    dense = [(*map(factors.whole, aval.shape[:1]), *columns) for aval in in_avals[3:]]
    rest = columns or tuple(map(factors.whole, out_avals[0].shape[1:]))
    result = (factors.whole(out_avals[0].shape[0]), *rest)
    linear = ((0,), (3,)) if dense else ((0,),)
    return factors.rule([(nse,)] * 3 + dense, [result], _FAMILY, linear, manual=True)


@register_rule("csr_matmat")
def csr_matmat_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """``e, e, r, k j -> i j`` with the columns j of the dense operand mapped."""
    factors = Factors()
    columns = factors.add(out_avals[0].shape[1])
    stored = [tuple(map(factors.whole, aval.shape)) for aval in in_avals[:3]]
    dense = (factors.whole(in_avals[3].shape[0]), columns)
    result = (factors.whole(out_avals[0].shape[0]), columns)
    return factors.rule([*stored, dense], [result], _FAMILY, ((0,), (3,)), manual=True)


@register_rule("coo_fromdense", "csr_fromdense", "csr_todense", "csr_matvec", "spsolve", "todense")
@register_rule("coo_spmv", "coo_spmm", "csr_spmv", "csr_spmm")
def whole_rule(in_avals: Avals, out_avals: Avals, params: Params) -> OperatorRule:
    """Nothing is split: rows begin where others end, and a solver needs all of them."""
    return leading_dims_rule(in_avals, out_avals, num_leading=0, family=_FAMILY)


@register_local_params("bcoo_todense", "bcsr_todense")
def todense_params(params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> dict[str, Any]:
    """A piece of the result has a shape of its own."""
    return _with_shape(params, "spinfo", out_shapes[0])


@register_local_params("bcoo_sort_indices", "bcoo_sum_duplicates", "bcoo_transpose")
def bcoo_params(params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> dict[str, Any]:
    """A piece has its own batch and dense dimensions; those that coordinates name are those of the whole."""
    return _with_shape(params, "spinfo", _local_shape(params["spinfo"].shape, *in_shapes))


@register_local_params("bcoo_dot_general", "bcsr_dot_general")
def dot_params(params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> dict[str, Any]:
    """Dimensions of the sparse operand are those of the dense one that they meet, or of the result."""
    (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
    rank, dense = len(params["lhs_spinfo"].shape), in_shapes[-1]
    sizes = {left: dense[right] for left, right in zip((*left_sum, *left_batch), (*right_sum, *right_batch))}
    free = [axis for axis in range(rank) if axis not in sizes]
    sizes.update(zip(free, out_shapes[0][len(left_batch) :]))
    return _with_shape(params, "lhs_spinfo", tuple(sizes[axis] for axis in range(rank)))


@register_local_params("bcoo_spdot_general")
def spdot_params(params: Params, in_shapes: Sequence[Shape], out_shapes: Sequence[Shape]) -> dict[str, Any]:
    """Both operands have the batch of a piece."""
    left = _with_shape(params, "lhs_spinfo", _local_shape(params["lhs_spinfo"].shape, *in_shapes[:2]))
    return _with_shape(left, "rhs_spinfo", _local_shape(params["rhs_spinfo"].shape, *in_shapes[2:]))


def _with_shape(params: Params, name: str, shape: Shape) -> dict[str, Any]:
    return {**params, name: params[name]._replace(shape=tuple(shape))}


def _local_shape(shape: Shape, data: Shape, indices: Shape) -> Shape:
    """Shape of the array that has these stored elements and coordinates."""
    num_batch, num_sparse = len(indices) - 2, indices[-1]
    batch = map(max, data[:num_batch], indices[:num_batch])
    return (*batch, *shape[num_batch : num_batch + num_sparse], *data[num_batch + 1 :])
