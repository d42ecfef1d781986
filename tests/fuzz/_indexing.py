"""Look-ups and updates at indices: gathers, scatters, dynamic slices."""

from __future__ import annotations

from tests.fuzz._operators import operator
from tests.fuzz._program import Shape, Value
from tests.fuzz._scope import Inapplicable, Scope
from tests.fuzz._shapes import axis_of


def _indices(s: Scope, size: int, shape: Shape, inside: bool = False) -> str:
    """Integers, some of them outside of 0 ... ``size`` unless ``inside``."""
    if s.flag(4):
        return f"jnp.asarray(np.arange({_count(shape)}).reshape({shape}) * 5 % {size}, 'int32')"
    ids = s.matching(shape, "int32")
    return f"({ids.name} % {size})" if inside or s.flag() else ids.name


def _count(shape: Shape) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def _mode(s: Scope) -> str:
    return s.one_of(("'clip'", "'wrap'", "'fill', fill_value=0"))


@operator(10)
def taken(s: Scope) -> None:
    x = s.pick(lambda v: 1 <= v.rank <= 3 and v.dtype != "bool")
    axis = axis_of(s, x)
    shape = s.shape(1, 2)
    if x.rank - 1 + len(shape) > 4:
        raise Inapplicable
    ids = _indices(s, x.shape[axis], shape)
    s.emit(f"jnp.take({x.name}, {ids}, {axis}, mode={_mode(s)})", bound=x.bound)


@operator(8)
def embedded(s: Scope) -> None:
    """A look-up in a table that is an argument."""
    table = s.matching((s.size(), s.size()), "float64")
    ids = _indices(s, table.shape[0], s.shape(1, 2), inside=True)
    s.emit(f"{table.name}[{ids}]", bound=table.bound)


@operator(4)
def taken_along(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 2 and v.dtype != "bool")
    axis = axis_of(s, x)
    size = s.one_of((1, 2, x.shape[axis]))
    shape = tuple(size if d == axis else n for d, n in enumerate(x.shape))
    ids = _indices(s, x.shape[axis], shape)
    mode = s.one_of(("'clip'", "'fill', fill_value=0"))
    s.emit(f"jnp.take_along_axis({x.name}, {ids}, {axis}, mode={mode})", bound=x.bound)


@operator(3)
def looked_up_in_two(s: Scope) -> None:
    """An element, or a row of the rest, at two coordinates."""
    x = s.pick(lambda v: v.rank >= 2 and v.dtype != "bool")
    shape = s.shape(1, 2)
    first = _indices(s, x.shape[0], shape, inside=True)
    second = _indices(s, x.shape[1], shape, inside=True)
    if x.rank - 2 + len(shape) > 4:
        raise Inapplicable
    s.emit(f"{x.name}[{first}, {second}]", bound=x.bound)


@operator(3)
def batched_look_up(s: Scope) -> None:
    x = s.pick(lambda v: 2 <= v.rank <= 3 and v.dtype != "bool")
    ids = s.matching((x.shape[0], s.size()), "int32")
    size = x.shape[1]
    s.emit(f"jax.vmap(lambda row, i: row[i % {size}])({x.name}, {ids.name})", bound=x.bound)


@operator(8)
def added_at(s: Scope) -> None:
    """Updates that may collide; joined by a sum, product, minimum or maximum."""
    x = s.pick(lambda v: 1 <= v.rank <= 3 and v.dtype != "bool" and v.bound <= 50)
    axis = axis_of(s, x)
    method, y_shape, index = _update(s, x, axis)
    y = s.matching(y_shape, x.dtype)
    y = s.small(y) if method == "multiply" and y.is_float else y
    mode = s.one_of(("", ", mode='drop'", ", mode='clip'"))
    s.emit(f"{x.name}.at[{index}].{method}({y.name}{mode})", bound=x.bound + 8 * y.bound)


def _update(s: Scope, x: Value, axis: int) -> tuple[str, Shape, str]:
    """Method, shape of the updates, and the index."""
    methods = ["add", "add", "subtract"]
    if not (s.shared.differentiable and x.is_float):
        methods += ["max", "min", "multiply"]
    method = s.one_of(methods)
    shape = s.shape(1, 2)
    if axis and len(shape) > 1:
        shape = shape[:1]
    ids = _indices(s, x.shape[axis], shape)
    index = ", ".join([":"] * axis + [ids])
    updates = (*x.shape[:axis], *shape, *x.shape[axis + 1 :])
    if len(updates) > 4:
        raise Inapplicable
    return method, updates, index


@operator(3)
def set_at(s: Scope) -> None:
    """Overwritten at distinct indices: where they collide, the last is not defined."""
    x = s.pick(lambda v: v.rank >= 1 and v.shape[0] >= 2)
    size = x.shape[0]
    count = s.integer(1, size)
    y = s.matching((count, *x.shape[1:]), x.dtype)
    ids = f"jnp.asarray([{', '.join(str((i * 5 + 1) % size if size % 5 else i) for i in range(count))}])"
    s.emit(f"{x.name}.at[{ids}].set({y.name})", bound=max(x.bound, y.bound))


@operator(3)
def segments(s: Scope) -> None:
    x = s.pick(lambda v: 1 <= v.rank <= 3 and v.is_float)
    count = s.size()
    ids = _indices(s, count, x.shape[:1], inside=True)
    name = s.one_of(("segment_sum", "segment_max")) if not s.shared.differentiable else "segment_sum"
    text = f"jax.ops.{name}({x.name}, {ids}, {count})"
    s.emit(text if name == "segment_sum" else f"jnp.maximum({text}, -9)", bound=x.bound * 8)


@operator(6)
def dynamic_slice(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1)
    start = s.matching((), "int32")
    axis = axis_of(s, x)
    size = s.integer(1, x.shape[axis])
    s.emit(f"lax.dynamic_slice_in_dim({x.name}, {start.name} % {x.shape[axis]}, {size}, {axis})")


@operator(6)
def dynamic_update(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1)
    start = s.matching((), "int32")
    axis = axis_of(s, x)
    size = s.integer(1, x.shape[axis])
    y = s.matching(tuple(size if d == axis else n for d, n in enumerate(x.shape)), x.dtype)
    text = f"lax.dynamic_update_slice_in_dim({x.name}, {y.name}, {start.name} % {x.shape[axis]}, {axis})"
    s.emit(text, bound=max(x.bound, y.bound))


@operator(2)
def one_element(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1)
    start = s.matching((), "int32")
    axis = axis_of(s, x)
    s.emit(f"lax.dynamic_index_in_dim({x.name}, {start.name} % {x.shape[axis]}, {axis}, False)")
