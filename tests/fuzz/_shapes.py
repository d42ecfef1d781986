"""Operators that move elements: reshapes, transposes, slices, pads, concatenations."""

from __future__ import annotations

import math

from tests.fuzz._operators import operator
from tests.fuzz._program import Shape, Value
from tests.fuzz._scope import Inapplicable, Scope


def _pick(s: Scope, min_rank: int = 1) -> Value:
    return s.pick(lambda v: v.rank >= min_rank)


def axis_of(s: Scope, value: Value) -> int:
    """A dimension of it."""
    if not value.rank:
        raise Inapplicable
    return s.integer(0, value.rank - 1)


def other_shape(s: Scope, shape: Shape) -> Shape:
    """Another shape of as many elements: neighbours merged, a dimension split, or all of it anew."""
    way = s.integer(0, 3)
    if way == 0 and len(shape) >= 2:
        at = s.integer(0, len(shape) - 2)
        return (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
    if way == 1 and len(shape) < 4:
        at = s.integer(0, len(shape) - 1)
        divisors = [d for d in range(2, shape[at]) if shape[at] % d == 0]
        d = s.one_of(divisors)
        return (*shape[:at], d, shape[at] // d, *shape[at + 1 :])
    left, result = math.prod(shape), []
    while left > 1 and len(result) < 3:
        d = s.one_of([d for d in range(2, min(left, 24) + 1) if left % d == 0])
        result.append(d)
        left //= d
    return (*result, left) if left > 1 else tuple(result)


@operator(10)
def reshape(s: Scope) -> None:
    x = _pick(s)
    s.emit(f"{x.name}.reshape({other_shape(s, x.shape)})")


@operator(8)
def transpose(s: Scope) -> None:
    x = _pick(s, 2)
    order, left = [], list(range(x.rank))
    while left:
        order.append(left.pop(s.integer(0, len(left) - 1)))
    s.emit(f"{x.name}.transpose({tuple(order)})")


@operator(4)
def broadcast(s: Scope) -> None:
    x = s.pick(lambda v: v.rank <= 3)
    at, size = s.integer(0, x.rank), s.size()
    form = s.one_of(
        (
            f"jnp.expand_dims({x.name}, {at})",
            f"jnp.broadcast_to(jnp.expand_dims({x.name}, {at}), {(*x.shape[:at], size, *x.shape[at:])})",
        )
    )
    s.emit(form)


@operator(3)
def squeeze(s: Scope) -> None:
    x = s.pick(lambda v: 1 in v.shape)
    s.emit(f"jnp.squeeze({x.name}, {x.shape.index(1)})")


@operator(6)
def sliced(s: Scope) -> None:
    x = _pick(s)
    axis = axis_of(s, x)
    size = x.shape[axis]
    if size < 2:
        raise Inapplicable
    start = s.integer(0, size // 2)
    stop = s.integer(max(start + 1, size // 2), size)
    s.emit(f"lax.slice_in_dim({x.name}, {start}, {stop}, {s.integer(1, 2)}, {axis})")


@operator(4)
def reversed_dimension(s: Scope) -> None:
    x = _pick(s)
    s.emit(f"jnp.flip({x.name}, {axis_of(s, x)})")


@operator(4)
def rolled(s: Scope) -> None:
    x = _pick(s)
    s.emit(f"jnp.roll({x.name}, {s.integer(1, 3)}, {axis_of(s, x)})")


@operator(5)
def padded(s: Scope) -> None:
    """A spread value begins where it began: otherwise the compiler of jax 0.10 aborts, or computes something else, when
    the step has a shard_map of its own, without any plan."""
    x = s.pick(lambda v: v.rank >= 1 and v.is_float)
    low, high, inner = s.integer(-1, 2), s.integer(-1, 2), s.integer(0, 1)
    axis = axis_of(s, x)
    low = 0 if inner else low
    config = tuple((low, high, inner) if d == axis else (0, 0, 0) for d in range(x.rank))
    s.emit(f"lax.pad({x.name}, jnp.zeros((), {x.dtype!r}) + {s.integer(0, 1)}, {config})")


@operator(6)
def concatenated(s: Scope) -> None:
    x = _pick(s)
    axis = axis_of(s, x)
    shape = tuple(s.size() if d == axis and s.flag(3) else n for d, n in enumerate(x.shape))
    y = s.matching(shape, x.dtype)
    s.emit(f"jnp.concatenate([{x.name}, {y.name}], {axis})", bound=max(x.bound, y.bound))


@operator(4)
def split(s: Scope) -> None:
    x = _pick(s)
    axis = axis_of(s, x)
    size = x.shape[axis]
    if size < 2:
        raise Inapplicable
    first = s.integer(1, size - 1) if s.flag() else size // 2
    s.emit_all(f"lax.split({x.name}, ({first}, {size - first}), axis={axis})", bounds=[x.bound] * 2)


@operator(3)
def stacked(s: Scope) -> None:
    x = s.pick(lambda v: 1 <= v.rank <= 3)
    y = s.matching(x.shape, x.dtype)
    s.emit(f"jnp.stack([{x.name}, {y.name}], {s.integer(0, x.rank)})", bound=max(x.bound, y.bound))


@operator(3)
def unstacked(s: Scope) -> None:
    x = s.pick(lambda v: any(2 <= n <= 4 for n in v.shape))
    axis = next(d for d, n in enumerate(x.shape) if 2 <= n <= 4)
    n = x.shape[axis]
    s.emit_all(f"tuple(jnp.unstack({x.name}, axis={axis}))", bounds=[x.bound] * n)


@operator(3)
def tiled(s: Scope) -> None:
    x = _pick(s)
    axis = axis_of(s, x)
    s.emit(f"jnp.tile({x.name}, {tuple(2 if d == axis else 1 for d in range(x.rank))})")


@operator(3)
def repeated(s: Scope) -> None:
    x = _pick(s)
    s.emit(f"jnp.repeat({x.name}, 2, {axis_of(s, x)})")


@operator(2)
def triangle(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 2 and v.dtype != "bool")
    s.emit(f"{s.one_of(('jnp.tril', 'jnp.triu'))}({x.name})")
