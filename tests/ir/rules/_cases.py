"""Operators to try rules on: each a function of its operands and of the shapes that its results shall have.

Reading parameters such as slice sizes off the shapes lets the same function run on a part of the operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One operator: ``fn(out_shapes, *operands)``.

    Attributes:
      bounds: operand -> upper bound of its random integers; other operands are random numbers.
      booleans: operands that are truth values.
    """

    primitive: str
    fn: Callable[..., Any]
    shapes: Sequence[Shape]
    out_shapes: Sequence[Shape]
    bounds: Mapping[int, int] = field(default_factory=dict)
    booleans: tuple[int, ...] = ()

    def operands(self, seed: int = 0) -> list[np.ndarray]:
        generator = np.random.default_rng(seed)
        return [self._operand(generator, index) for index in range(len(self.shapes))]

    def _operand(self, generator: np.random.Generator, index: int) -> np.ndarray:
        shape = self.shapes[index]
        if index in self.booleans:
            return generator.random(shape) < 0.5
        if index in self.bounds:
            return generator.integers(0, self.bounds[index], shape, dtype=np.int32)
        return generator.uniform(0.5, 1.5, shape).astype(np.float32)

    def __str__(self) -> str:
        return (
            f"{self.primitive} {', '.join(map(str, self.shapes))} -> {', '.join(map(str, self.out_shapes))}"
        )


def _case(
    primitive: str, fn: Callable[..., Any], shapes: Sequence[Shape], *out_shapes: Shape, **options: Any
) -> Case:
    return Case(primitive=primitive, fn=fn, shapes=shapes, out_shapes=out_shapes, **options)


def _conv(strides: tuple[int, int], padding: Any, layout: str = "NHWC") -> Callable[..., Any]:
    """Feature and batch groups follow from the shapes."""

    def fn(out: Sequence[Shape], lhs: Any, rhs: Any) -> Any:
        kernel = "HWIO" if layout == "NHWC" else "OIHW"
        channel, batch = layout.index("C"), layout.index("N")
        return lax.conv_general_dilated(
            lhs,
            rhs,
            strides,
            padding,
            dimension_numbers=(layout, kernel, layout),
            feature_group_count=lhs.shape[channel] // rhs.shape[kernel.index("I")],
            batch_group_count=lhs.shape[batch] // out[0][batch],
        )

    return fn


def _lookup(out: Sequence[Shape], table: Any, indices: Any) -> Any:
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(indices.ndim - 1,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return lax.gather(table, indices, numbers, (1, table.shape[1]))


def _batched_lookup(out: Sequence[Shape], table: Any, indices: Any) -> Any:
    """``b v d, b k 1 -> b k d``, one table per b; of d only the first two are taken."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(2,),
        collapsed_slice_dims=(1,),
        start_index_map=(1,),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
    )
    return lax.gather(table, indices, numbers, (1, 1, 2))


def _scatter(kind: Callable[..., Any]) -> Callable[..., Any]:
    def fn(out: Sequence[Shape], table: Any, indices: Any, updates: Any) -> Any:
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=(indices.ndim - 1,),
            inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
        )
        return kind(table, indices, updates, numbers)

    return fn


def _batched_scatter_add(out: Sequence[Shape], table: Any, indices: Any, updates: Any) -> Any:
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(2,),
        inserted_window_dims=(1,),
        scatter_dims_to_operand_dims=(1,),
        operand_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
    )
    return lax.scatter_add(table, indices, updates, numbers)


def _max_pool(out: Sequence[Shape], image: Any) -> Any:
    return lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def _to_shape(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda out, *operands: fn(*operands, out[0])


# Rows of each of three groups, eight in all.
_GROUPS = np.array([2, 3, 0, 3], np.int32)


def _ragged_contraction(lhs: Any, rhs: Any) -> Any:
    """Weight gradient of a ragged dot: rows are contracted group by group."""
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    return lax.ragged_dot_general(lhs, rhs, _GROUPS, numbers)


def _ragged_blocks(lhs: Any, rhs: Any, counts: Any) -> Any:
    """Two blocks of rows, each with counts of its own."""
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((2,), (1,)), ((), ())), lhs_ragged_dimensions=[1], rhs_group_dimensions=[0]
    )
    return lax.ragged_dot_general(lhs, rhs, counts, numbers)


def _ragged_block_contraction(lhs: Any, rhs: Any, counts: Any) -> Any:
    """Weight gradient of it: the blocks are summed."""
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0, 1), (0, 1)), ((), ())), lhs_ragged_dimensions=[1], rhs_group_dimensions=[]
    )
    return lax.ragged_dot_general(lhs, rhs, counts, numbers)


ELEMENTWISE = [
    _case("exp", lambda out, x: lax.exp(x), [(4, 6)], (4, 6)),
    _case("neg", lambda out, x: lax.neg(x), [(4, 6)], (4, 6)),
    _case("add", lambda out, x, y: lax.add(x, y), [(4, 6), (4, 6)], (4, 6)),
    _case("sub", lambda out, x, y: lax.sub(x, y), [(4, 1), (4, 1)], (4, 1)),
    _case("mul", lambda out, x, y: lax.mul(x, y), [(4, 6), (4, 6)], (4, 6)),
    _case("div", lambda out, x, y: lax.div(x, y), [(4, 6), (4, 6)], (4, 6)),
    _case("integer_pow", lambda out, x: lax.integer_pow(x, 3), [(4, 6)], (4, 6)),
    _case("clamp", lambda out, a, x, b: lax.clamp(a, x, b), [(), (4, 6), ()], (4, 6)),
    _case(
        "select_n",
        lax_select := lambda out, p, x, y: lax.select_n(p, x, y),
        [(4, 6)] * 3,
        (4, 6),
        booleans=(0,),
    ),
    _case("select_n", lax_select, [(), (4, 6), (4, 6)], (4, 6), booleans=(0,)),
    _case("convert_element_type", lambda out, x: lax.convert_element_type(x, "float16"), [(4, 6)], (4, 6)),
    _case("convert_element_type", lambda out, x: lax.convert_element_type(x, "int32"), [(4, 6)], (4, 6)),
]
CONTRACTION = [
    _case("dot_general", lambda out, x, y: x @ y, [(4, 6), (6, 8)], (4, 8)),
    _case("dot_general", lambda out, x, y: x @ y, [(4, 4), (4, 4)], (4, 4)),  # no shape tells dimensions apart
    _case("dot_general", lambda out, x, y: x @ y, [(2, 4, 6), (2, 6, 8)], (2, 4, 8)),
    _case(
        "dot_general",
        lambda out, x, y: lax.dot_general(x, y, (((0, 3), (2, 1)), ((2,), (0,)))),
        [(4, 6, 2, 8), (2, 8, 4, 10)],
        (2, 6, 10),
    ),
    _case("dot_general", lambda out, x, y: lax.dot_general(x, y, (((), ()), ((), ()))), [(4,), (6,)], (4, 6)),
]
RAGGED = [
    _case("ragged_dot_general", lambda out, x, y: lax.ragged_dot(x, y, _GROUPS), [(8, 4), (4, 4, 6)], (8, 6)),
    _case("ragged_dot_general", lambda out, x, y: _ragged_contraction(x, y), [(8, 4), (8, 6)], (4, 4, 6)),
    _case(
        "ragged_dot_general",
        lambda out, *xs: _ragged_blocks(*xs),
        [(2, 4, 6), (4, 6, 8), (2, 4)],
        (2, 4, 8),
        bounds={2: 2},
    ),
    _case(
        "ragged_dot_general",
        lambda out, *xs: _ragged_block_contraction(*xs),
        [(2, 4, 6), (2, 4, 8), (2, 4)],
        (4, 6, 8),
        bounds={2: 2},
    ),
]
REDUCTION = [
    _case(
        "reduce_sum",
        lambda out, x: lax.reduce_sum_p.bind(x, axes=(0, 2), out_sharding=None),
        [(4, 6, 2)],
        (6,),
    ),
    _case("reduce_max", lambda out, x: jnp.max(x, 1), [(4, 6, 2)], (4, 2)),
    _case("reduce_min", lambda out, x: jnp.min(x, 1), [(4, 6, 2)], (4, 2)),
    _case("reduce_prod", lambda out, x: jnp.prod(x, (0, 1)), [(4, 6)], ()),
    _case("reduce_and", lambda out, x: jnp.all(x, 1), [(4, 2)], (4,), booleans=(0,)),
    _case("reduce_or", lambda out, x: jnp.any(x, 0), [(2, 4)], (4,), booleans=(0,)),
    _case("argmax", lambda out, x: lax.argmax(x, 1, "int32"), [(4, 6)], (4,)),
    _case("cumsum", lambda out, x: lax.cumsum(x, 1), [(4, 6)], (4, 6)),
    _case("cummax", lambda out, x: lax.cummax(x, 0), [(4, 6)], (4, 6)),
    _case("sort", lambda out, x, y: lax.sort((x, y), dimension=0), [(4, 6), (4, 6)], (4, 6), (4, 6)),
    _case("top_k", lambda out, x: lax.top_k(x, 2), [(4, 6)], (4, 2), (4, 2)),
]
SHAPE = [
    *[
        _case("reshape", _to_shape(lax.reshape), [before], after)
        for before, after in [
            ((24,), (4, 6)),
            ((4, 6), (24,)),
            ((8, 6), (4, 12)),
            ((4, 6), (6, 4)),
            ((2, 1, 6), (12, 1)),
        ]
    ],
    _case("transpose", lambda out, x: lax.transpose(x, (2, 0, 1)), [(2, 4, 6)], (6, 2, 4)),
    _case("transpose", lambda out, x: lax.transpose(x, (1, 0)), [(4, 4)], (4, 4)),
    _case("squeeze", lambda out, x: lax.squeeze(x, (1,)), [(4, 1, 6)], (4, 6)),
    _case("broadcast_in_dim", lambda out, x: lax.broadcast_in_dim(x, out[0], (0, 2)), [(4, 1)], (4, 6, 8)),
    _case("broadcast_in_dim", lambda out, x: lax.broadcast_in_dim(x, out[0], (1,)), [(4,)], (4, 4)),
    _case("slice", lambda out, x: lax.slice_in_dim(x, 1, 4, axis=1), [(4, 6)], (4, 3)),
    _case("rev", lambda out, x: lax.rev(x, (1,)), [(4, 6)], (4, 6)),
    _case("pad", lambda out, x, y: lax.pad(x, y, ((0, 0, 0), (1, -1, 0))), [(4, 6), ()], (4, 6)),
    _case("concatenate", lambda out, x, y: lax.concatenate((x, y), 1), [(4, 6), (4, 2)], (4, 8)),
    _case("split", lambda out, x: lax.split(x, (2, 4), axis=1), [(4, 6)], (4, 2), (4, 4)),
    _case(
        "dynamic_slice",
        lambda out, x, i: lax.dynamic_slice(x, (i, 0), (2, x.shape[1])),
        [(8, 6), ()],
        (2, 6),
        bounds={1: 4},
    ),
    _case(
        "dynamic_update_slice",
        lambda out, x, y, i: lax.dynamic_update_slice(x, y, (i, 0)),
        [(8, 6), (2, 6), ()],
        (8, 6),
        bounds={2: 4},
    ),
]
INDEXED = [
    _case("gather", _lookup, [(10, 6), (4, 8, 1)], (4, 8, 6), bounds={1: 10}),
    _case("gather", _batched_lookup, [(4, 10, 6), (4, 8, 1)], (4, 8, 2), bounds={1: 10}),
    _case("scatter-add", _scatter(lax.scatter_add), [(10, 6), (4, 8, 1), (4, 8, 6)], (10, 6), bounds={1: 10}),
    _case("scatter-mul", _scatter(lax.scatter_mul), [(10, 6), (4, 1), (4, 6)], (10, 6), bounds={1: 10}),
    _case("scatter-max", _scatter(lax.scatter_max), [(10, 6), (4, 1), (4, 6)], (10, 6), bounds={1: 10}),
    _case("scatter", _scatter(lax.scatter), [(10, 6), (4, 1), (4, 6)], (10, 6), bounds={1: 10}),
    _case(
        "scatter-add", _batched_scatter_add, [(4, 10, 6), (4, 8, 1), (4, 8, 6)], (4, 10, 6), bounds={1: 10}
    ),
]
WINDOW = [
    _case("conv_general_dilated", _conv((2, 2), "SAME"), [(4, 8, 8, 6), (3, 3, 6, 10)], (4, 4, 4, 10)),
    _case(
        "conv_general_dilated", _conv((1, 1), "SAME", "NCHW"), [(4, 6, 8, 8), (10, 6, 3, 3)], (4, 10, 8, 8)
    ),
    _case("conv_general_dilated", _conv((1, 1), "VALID"), [(4, 8, 8, 6), (1, 1, 6, 10)], (4, 8, 8, 10)),
    _case("conv_general_dilated", _conv((4, 4), "VALID"), [(2, 8, 16, 4), (4, 4, 4, 6)], (2, 2, 4, 6)),
    _case("conv_general_dilated", _conv((1, 1), "SAME"), [(2, 8, 8, 8), (3, 3, 2, 16)], (2, 8, 8, 16)),
    _case("conv_general_dilated", _conv((1, 1), "SAME"), [(8, 8, 8, 4), (3, 3, 4, 8)], (2, 8, 8, 8)),
    _case("reduce_window_max", _max_pool, [(4, 8, 8, 6)], (4, 4, 4, 6)),
]
LINALG = [
    _case(
        "cholesky",
        lambda out, x: lax.linalg.cholesky(_positive(x), symmetrize_input=False),
        [(4, 3, 3)],
        (4, 3, 3),
    ),
    _case(
        "fft",
        lambda out, x: lax.fft(lax.convert_element_type(x, jnp.complex64), "fft", x.shape[-1:]),
        [(4, 6)],
        (4, 6),
    ),
]
ALL = [*ELEMENTWISE, *CONTRACTION, *RAGGED, *REDUCTION, *SHAPE, *INDEXED, *WINDOW, *LINALG]


def _positive(matrices: Any) -> Any:
    """Symmetric, diagonally dominant."""
    return (matrices + jnp.swapaxes(matrices, -1, -2)) / 2 + 2 * math.prod(matrices.shape[-1:]) * jnp.eye(
        matrices.shape[-1]
    )
