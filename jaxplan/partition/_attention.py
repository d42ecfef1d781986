"""Attention in blocks of keys, on one device or on those that a sequence is split over.

Softmax is accumulated online (running maximum, normaliser, weighted sum of values; Milakov and Gimelshein,
arXiv 1805.02867), so no more scores exist than those of one block. The backward pass recomputes them with the
logarithms of the row sums (Dao, arXiv 2307.08691, algorithm 2). Over a split sequence, blocks of keys and values are
passed on round a ring of devices (Liu et al., arXiv 2310.01889), or all are gathered first, or heads are exchanged for
positions (Jacobs et al., arXiv 2309.14509).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxplan.ir.attention import (
    HEADS,
    ONE,
    RING,
    VALUE_WIDTH,
    WIDTH,
    Attention,
    Labels,
    block_keys,
    exchange_of,
    move_of,
    places_of,
)
from jaxplan.partition._halo import moved

_SUM = jnp.float32
_Arrays = tuple[Any, ...]
_Step = Callable[[Any, _Arrays, Any], tuple[Any, _Arrays]]
"""(state, keys and values of a block, first key) -> the state, and gradients of these keys and values if any."""


def attend(attention: Attention, pieces: Sequence[Any], axes: tuple[str, ...]) -> list[Any]:
    """Results of one attention from a device's pieces.

    Args:
      axes: mesh axes that split the sequence, major to minor; none on whole arrays.
    """
    shapes = [np.shape(x) for x in pieces]
    pieces, labels = list(pieces), list(attention.operands)
    run = _backward if attention.is_backward else _forward
    if attention.is_backward:
        pieces[-3] = _dot(pieces[-3], labels[-3], pieces[-1], labels[-1], attention.rows)
        labels[-3] = attention.rows
        if axes:  # or the keys that the forward pass gathered would be kept for this one
            places = (0, 1, 2, -1) if attention.form == HEADS else (1, 2, -1)
            barred = lax.optimization_barrier(tuple(pieces[i] for i in places))
            for i, x in zip(places, barred, strict=True):
                pieces[i] = x
    is_exchanged = attention.form == HEADS and bool(axes)
    exchange = exchange_of(attention, shapes, [lax.axis_size(axis) for axis in axes]) if is_exchanged else None
    if exchange is None:
        return _cast(run(_Local(attention, pieces, axes)), attention)
    kept, among = axes[: -exchange.num_axes], axes[-exchange.num_axes :]
    pieces = [_exchanged(attention, x, of, exchange.label, among) for x, of in zip(pieces, labels, strict=True)]
    results = []
    for x, of in zip(_cast(run(_Local(attention, pieces, kept)), attention), attention.results, strict=True):
        heads, sequence = places_of(attention, of, exchange.label)
        results.append(lax.all_to_all(x, among, split_axis=sequence, concat_axis=heads, tiled=True))
    return results


def _cast(results: Sequence[Any], attention: Attention) -> list[Any]:
    return [r.astype(dtype) for r, dtype in zip(results, attention.dtypes, strict=True)]


def _exchanged(attention: Attention, x: Any, labels: Labels, label: int, axes: tuple[str, ...]) -> Any:
    """All heads of a part of the sequence to all of the sequence for a part of the heads."""
    move = move_of(attention, labels, x.shape, label)
    if move is None:
        return x
    if move.kind == "all-gather":
        return lax.all_gather(x, axes, axis=move.sequence, tiled=True)
    if move.kind == "slice":
        size = x.shape[move.heads] // lax.axis_size(axes)
        return lax.dynamic_slice_in_dim(x, lax.axis_index(axes) * size, size, move.heads)
    return lax.all_to_all(x, axes, split_axis=move.heads, concat_axis=move.sequence, tiled=True)


def _dot(x: Any, of_x: Labels, y: Any, of_y: Labels, of: Labels) -> Any:
    """The dot of two arrays, summed over dimensions that the result lacks, in float32 or more."""
    equation = f"{_letters(of_x)},{_letters(of_y)}->{_letters(of)}"
    sums = jnp.promote_types(_SUM, jnp.result_type(x, y))

    def dot(x: Any, y: Any) -> Any:
        return jnp.einsum(equation, x, y, preferred_element_type=sums)

    if jnp.result_type(x, y) == sums:
        return dot(x, y)
    # XLA's CPU kernels refuse some dots of 16 bits with sums of 32: there operands are widened, which is exact.
    return lax.platform_dependent(x, y, cpu=lambda x, y: dot(x.astype(sums), y.astype(sums)), default=dot)


class _Local:
    """One attention on a device: its operands, and how it meets the keys of the others.

    Of the backward pass, ``late`` holds the products of result and cotangent by row, the logarithms of the row sums,
    and the cotangent.
    """

    def __init__(self, attention: Attention, pieces: Sequence[Any], axes: tuple[str, ...]) -> None:
        self.of, self.axes = attention, axes
        self.place = lax.axis_index(axes) if axes else jnp.int32(0)
        self.sides = pieces[3 : 3 + attention.num_sides]
        self.late = pieces[3 + attention.num_sides :]
        self.queries, self.keys, self.values = pieces[:3]
        self.axis = attention.scores.index(attention.key)
        sizes = zip(attention.operands[0] + attention.operands[1], self.queries.shape + self.keys.shape)
        self.sizes = dict(sizes)

    @property
    def row_shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[label] for label in self.of.rows)

    def by_key(self, row: Any) -> Any:
        """A value of each row, to stand beside scores."""
        return jnp.expand_dims(row, self.axis)

    def scores(self, keys: Any, first: Any) -> tuple[Any, Callable[[Any], Any]]:
        """Scores of a block, as the softmax reads them, and the gradient of its dot from theirs."""
        of = self.of
        product = _dot(self.queries, of.operands[0], keys, of.operands[1], of.scores).astype(of.dtype)
        sizes = self.sizes | {of.key: keys.shape[of.operands[1].index(of.key)], ONE: 1}
        firsts = {of.key: first, of.query: self.place * self.sizes[of.query]}
        sides = [
            lax.dynamic_slice_in_dim(x, first, sizes[of.key], labels.index(of.key)) if of.key in labels else x
            for x, labels in zip(self.sides, of.operands[3:])
        ]
        scores, back = jax.vjp(lambda product: _chained(of, product, sides, sizes, firsts), product)
        return scores, lambda gradient: back(gradient.astype(scores.dtype))[0]

    def over_keys(self, step: _Step, state: Any, sums: _Arrays) -> tuple[Any, _Arrays]:
        """The state after all blocks of keys; ``sums`` are gradients of this device's keys and values, or none."""
        held = (self.keys, self.values)
        num = lax.axis_size(self.axes) if self.axes else 1
        if num == 1:
            return self._over_blocks(step, state, held, sums, 0)
        if self.of.form != RING:
            dims = self._key_dims()
            held = tuple(lax.all_gather(x, self.axes, axis=d, tiled=True) for x, d in zip(held, dims))
            whole = tuple(
                jnp.zeros((*x.shape[:d], num * x.shape[d], *x.shape[d + 1 :]), x.dtype)
                for x, d in zip(sums, dims)
            )
            state, whole = self._over_blocks(step, state, held, whole, 0)
            scattered = [
                lax.psum_scatter(x, self.axes, scatter_dimension=d, tiled=True) for x, d in zip(whole, dims)
            ]
            return state, tuple(scattered)
        pairs = [(i, (i + 1) % num) for i in range(num)]
        local = self.sizes[self.of.key]

        def turn(carry: Any, i: Any) -> tuple[Any, None]:
            state, held, sums = carry
            following = [moved(x, self.axes, pairs) for x in held]
            state, sums = self._over_blocks(step, state, held, sums, (self.place - i) % num * local)
            return (state, tuple(following), tuple(moved(x, self.axes, pairs) for x in sums)), None

        (state, held, sums), _ = lax.scan(turn, (state, held, sums), jnp.arange(num - 1))
        state, sums = self._over_blocks(step, state, held, sums, (self.place + 1) % num * local)
        return state, tuple(moved(x, self.axes, pairs) for x in sums)

    def _over_blocks(
        self, step: _Step, state: Any, held: Any, sums: _Arrays, first: Any
    ) -> tuple[Any, _Arrays]:
        """The state after the keys that the device holds now, of which the first has this number."""
        dims = self._key_dims()
        num_keys = held[0].shape[dims[0]]
        size = block_keys(math.prod(self.row_shape), self.sizes[self.of.key])

        def block(carry: Any, start: Any) -> tuple[Any, None]:
            state, sums = carry
            parts = tuple(lax.dynamic_slice_in_dim(x, start, size, d) for x, d in zip(held, dims))
            state, gradients = step(state, parts, first + start)
            added = tuple(
                lax.dynamic_update_slice_in_dim(x, lax.dynamic_slice_in_dim(x, start, size, d) + g, start, d)
                for x, g, d in zip(sums, gradients, dims)
            )
            return (state, added), None

        if size == num_keys:
            return block((state, sums), 0)[0]
        return lax.scan(block, (state, sums), jnp.arange(0, num_keys, size))[0]

    def _key_dims(self) -> tuple[int, int]:
        """The dimensions of keys and of values that are split."""
        return self.of.operands[1].index(self.of.key), self.of.operands[2].index(self.of.key)


def _forward(local: _Local) -> list[Any]:
    """The result, and the logarithms of the row sums."""
    of, rows = local.of, local.of.rows
    result = (*rows, VALUE_WIDTH)
    width = local.values.shape[of.operands[2].index(VALUE_WIDTH)]
    sums = jnp.promote_types(_SUM, local.values.dtype)
    start = (
        jnp.full(local.row_shape, -jnp.inf, sums),
        jnp.zeros(local.row_shape, sums),
        jnp.zeros((*local.row_shape, width), sums),
    )

    def step(state: Any, held: _Arrays, first: Any) -> tuple[Any, _Arrays]:
        most, total, mean = state
        scores = local.scores(held[0], first)[0].astype(sums)
        larger = jnp.maximum(most, scores.max(axis=local.axis))
        finite = jnp.where(jnp.isfinite(larger), larger, 0)  # a row may be masked as far as it is known
        weights = jnp.exp(scores - local.by_key(finite))
        shrink = jnp.exp(most - finite)
        part = _dot(weights.astype(held[1].dtype), of.scores, held[1], of.operands[2], result)
        return (larger, total * shrink + weights.sum(axis=local.axis), mean * shrink[..., None] + part), ()

    (most, total, mean), _ = local.over_keys(step, start, ())
    order = [result.index(label) for label in of.results[0]]
    return [jnp.transpose(mean / total[..., None], order), most + jnp.log(total)]


def _backward(local: _Local) -> list[Any]:
    """Gradients of queries, keys and values."""
    of, of_cotangent = local.of, local.of.operands[-1]
    dotted, logs, cotangent = local.late
    sums = jnp.promote_types(_SUM, local.queries.dtype)

    def step(queries: Any, held: _Arrays, first: Any) -> tuple[Any, _Arrays]:
        keys, values = held
        scores, back = local.scores(keys, first)
        weights = jnp.exp(scores.astype(sums) - local.by_key(logs))
        of_weights = _dot(cotangent, of_cotangent, values, of.operands[2], of.scores)
        product = back(weights * (of_weights - local.by_key(dotted))).astype(keys.dtype)
        more = _dot(product, of.scores, keys, of.operands[1], of.operands[0])
        of_keys = _dot(product, of.scores, local.queries, of.operands[0], of.operands[1])
        of_values = _dot(
            weights.astype(cotangent.dtype), of.scores, cotangent, of_cotangent, of.operands[2]
        )
        return queries + more, (of_keys, of_values)

    zeros = [jnp.zeros(x.shape, sums) for x in (local.queries, local.keys, local.values)]
    queries, gradients = local.over_keys(step, zeros[0], tuple(zeros[1:]))
    found = [queries, *gradients]
    return [
        jnp.transpose(x, [labels.index(label) for label in wanted])
        for x, labels, wanted in zip(found, of.operands, of.results, strict=False)
    ]


def _chained(
    of: Attention, product: Any, sides: Sequence[Any], sizes: dict[int, int], firsts: dict[int, Any]
) -> Any:
    """Scores in the order of the dot: scaled, biased, masked."""
    values, labels = [product, *sides], of.scores
    for score in of.chain:
        operands = [values[i] if isinstance(i, int) else i[0] for i in score.operands]
        shape, params, labels = (
            tuple(sizes[label] for label in score.labels),
            dict(score.params),
            score.labels,
        )
        if score.primitive.name == "iota":
            dim = params["dimension"]
            position = lax.broadcasted_iota(params["dtype"], shape, dim)
            values.append(position + firsts[labels[dim]].astype(params["dtype"]))
            continue
        if "shape" in params:
            params["shape"] = shape
        if "new_sizes" in params:
            params["new_sizes"] = shape
        values.append(score.primitive.bind(*operands, **params))
    return jnp.transpose(values[-1], [labels.index(label) for label in of.scores])


def _letters(labels: Labels) -> str:
    return "".join({WIDTH: "y", VALUE_WIDTH: "z"}.get(label) or chr(ord("a") + label) for label in labels)
