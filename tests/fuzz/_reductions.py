"""Reductions, scans along a dimension, sorts, contractions, convolutions, pooling, decompositions."""

from __future__ import annotations

import math

from tests.fuzz._operators import operator
from tests.fuzz._program import Value
from tests.fuzz._scope import MAX_BOUND, Inapplicable, Scope
from tests.fuzz._shapes import axis_of

LETTERS = "abcdefgh"


def _axes(s: Scope, value: Value) -> tuple[int, ...]:
    """One or more dimensions."""
    axes = tuple(d for d in range(value.rank) if s.flag())
    return axes or (axis_of(s, value),)


@operator(14)
def summed(s: Scope) -> None:
    x = s.pick_float()
    axes = _axes(s, x)
    count = math.prod(x.shape[d] for d in axes)
    if s.flag(3):
        s.emit(f"jnp.mean({x.name}, {axes})")
    else:
        s.emit(
            f"jnp.sum({x.name}, {axes}{s.one_of(('', ', keepdims=True'))})",
            bound=x.bound * math.sqrt(count) * 2,
        )


@operator(2)
def summed_integers(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1 and not v.is_float)
    s.emit(f'jnp.sum({x.name}, {_axes(s, x)}, dtype="int32")', bound=x.bound * 64)


@operator(8)
def extreme(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1)
    form = s.one_of(("jnp.max({}, {})", "jnp.min({}, {})"))
    s.emit(form.format(x.name, _axes(s, x)))


@operator(4)
def multiplied(s: Scope) -> None:
    x = s.small(s.pick_float())
    s.emit(f"jnp.prod(1 + {x.name} / 8, {_axes(s, x)})", bound=4.0)


@operator(6)
def any_or_all(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1 and v.dtype == "bool")
    s.emit(f"{s.one_of(('jnp.any', 'jnp.all'))}({x.name}, {_axes(s, x)})")


@operator(2, differentiable=False)
def bitwise(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1 and v.is_int)
    form = s.one_of(("lax.reduce_xor({}, {})", "lax.reduce_and({}, {})", "lax.reduce_or({}, {})"))
    s.emit(form.format(x.name, _axes(s, x)))


@operator(4)
def position(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1 and v.dtype != "bool")
    axis = axis_of(s, x)
    form = s.one_of(("lax.argmax({}, {}, 'int32')", "lax.argmin({}, {}, 'int32')"))
    s.emit(form.format(x.name, axis), bound=float(x.shape[axis]))


@operator(4)
def normalised(s: Scope) -> None:
    x = s.pick_float(max_bound=20.0)
    axis = axis_of(s, x)
    form = s.one_of(
        (
            "jax.nn.softmax({0}, {1})",
            "jax.nn.log_softmax({0}, {1})",
            "jax.nn.logsumexp({0}, {1})",
            "{0} - jnp.mean({0}, {1}, keepdims=True)",
            "jax.nn.standardize({0}, {1}, epsilon=0.1)",
        )
    )
    s.emit(form.format(x.name, axis), bound=x.bound + 4)


@operator(5)
def cumulative(s: Scope) -> None:
    x = s.pick_float(max_bound=20.0)
    axis = axis_of(s, x)
    reverse = s.one_of((True, False))
    name = s.one_of(("cumsum", "cummax", "cummin", "cumlogsumexp", "cumprod"))
    x = s.small(x) if name == "cumprod" else x
    s.emit(f"lax.{name}({x.name}, {axis}, reverse={reverse})", bound=x.bound + x.shape[axis] * x.bound)


@operator(4)
def sorted_values(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1 and v.dtype != "bool")
    axis = axis_of(s, x)
    if s.flag(3):
        y = s.matching(x.shape, "float64")
        s.emit_all(f"lax.sort(({x.name}, {y.name}), dimension={axis})", bounds=[x.bound, y.bound])
    else:
        form = s.one_of(("jnp.sort({}, {})", "jnp.argsort({}, {})"))
        s.emit(form.format(x.name, axis), bound=max(x.bound, float(x.shape[axis])))


@operator(3)
def top_k(s: Scope) -> None:
    x = s.pick_float()
    if x.shape[-1] < 2:
        raise Inapplicable
    s.emit_all(f"tuple(lax.top_k({x.name}, {s.integer(1, x.shape[-1] // 2)}))", bounds=[x.bound, 16.0])


@operator(22)
def contraction(s: Scope) -> None:
    """An einsum with batch, left, right and reduced letters in any order."""
    x = s.pick_float(max_bound=20.0)
    letters = LETTERS[: x.rank]
    roles = [s.one_of(("batch", "left", "reduced", "reduced")) for _ in letters]
    if "reduced" not in roles:
        roles[-1] = "reduced"
    shared = [c for c, role in zip(letters, roles) if role != "left"]
    new = [LETTERS[x.rank + i] for i in range(s.integer(0, min(2, 4 - len(shared))))]
    right = _shuffled(s, [*shared, *new])
    sizes = dict(zip(letters, x.shape)) | {c: s.size() for c in new}
    out = _shuffled(s, [*(c for c, role in zip(letters, roles) if role != "reduced"), *new])
    if len(out) > 4:
        raise Inapplicable
    y = s.matching(tuple(sizes[c] for c in right), x.dtype)
    count = math.prod(sizes[c] for c, role in zip(letters, roles) if role == "reduced")
    spec = f"{''.join(letters)},{''.join(right)}->{''.join(out)}"
    x = s.small(x) if x.bound * y.bound > MAX_BOUND else x
    s.emit(f"jnp.einsum({spec!r}, {x.name}, {y.name})", bound=x.bound * y.bound * math.sqrt(count) * 2)


def _shuffled(s: Scope, items: list[str]) -> list[str]:
    left, result = list(items), []
    while left:
        result.append(left.pop(s.integer(0, len(left) - 1)))
    return result


@operator(6)
def layer(s: Scope) -> None:
    """A dense layer, the most frequent pattern of models."""
    x = s.pick_float(max_bound=20.0)
    width = s.size()
    w, b = s.matching((x.shape[-1], width), x.dtype), s.matching((width,), x.dtype)
    act = s.one_of(("jnp.tanh({})", "jax.nn.relu({})", "({}) * 0.5"))
    s.emit(act.format(f"{x.name} @ {w.name} + {b.name}"), bound=x.bound * w.bound * 8)


@operator(4)
def function_of_product(s: Scope) -> None:
    """Functions that must not be taken of the parts of a sum: a non-linear function, or a cast to as many bits."""
    x = s.small(s.pick_float())
    w = s.matching((x.shape[-1], s.size()), x.dtype)
    form = s.one_of(("jnp.sin({})", "jnp.abs({})", "({}) ** 2", ""))
    if form:
        s.emit(form.format(f"{x.name} @ {w.name}"), bound=16.0)
    else:
        s.emit(f"({x.name}.astype('float32') @ {w.name}.astype('float32')).astype('int32')", bound=16.0)


@operator(5)
def convolution(s: Scope) -> None:
    x = s.pick(lambda v: v.rank in (3, 4) and v.is_float and v.bound <= 20)
    spatial = x.rank - 2
    groups = s.one_of([g for g in (1, 1, 2, 4) if x.shape[1] % g == 0])
    features = groups * s.integer(1, 4)
    kernel = tuple(s.one_of([k for k in (1, 2, 3) if k <= n]) for n in x.shape[2:])
    w = s.matching((features, x.shape[1] // groups, *kernel), x.dtype)
    strides = tuple(k if s.flag(3) else 1 for k in kernel)
    names = "NCH" if spatial == 1 else "NCHW"
    numbers = (names, "OI" + names[2:], names)
    dilation = (s.one_of((1, 1, 2)),) * spatial
    s.emit(
        f"lax.conv_general_dilated({x.name}, {w.name}, {strides}, {s.one_of(('SAME', 'VALID'))!r}, "
        f"rhs_dilation={dilation}, dimension_numbers={numbers}, feature_group_count={groups})",
        bound=x.bound * w.bound * 8,
    )


@operator(4)
def pooling(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 2 and v.is_float)
    window = tuple(s.one_of([k for k in (1, 2, 3) if k <= n]) for n in x.shape)
    strides = tuple(k if s.flag() else 1 for k in window)
    kind, start = s.one_of((("lax.max", "-np.inf"), ("lax.add", "0.0"), ("lax.min", "np.inf")))
    s.emit(
        f"lax.reduce_window({x.name}, np.array({start}, jnp.dtype({x.dtype!r})), {kind}, {window}, {strides}, "
        f"{s.one_of(('SAME', 'VALID'))!r})",
        bound=x.bound * 9,
    )


@operator(1)
def decomposition(s: Scope) -> None:
    """Cholesky of a positive matrix, and a solve with it."""
    x = s.pick(lambda v: v.rank >= 2 and v.dtype == "float64" and v.shape[-1] <= 4)
    x = s.small(x)
    n = x.shape[-1]
    gram = s.emit(
        f"jnp.einsum('...ij,...ik->...jk', {x.name}, {x.name}) + {4 * n} * jnp.eye({n})", bound=20.0
    )
    low = s.emit(f"jnp.linalg.cholesky({gram.name})", bound=10.0)
    if s.flag():
        y = s.matching((*low.shape[:-1], s.size()), "float64")
        solved = f"lax.linalg.triangular_solve({low.name}, {y.name}, left_side=True, lower=True)"
        s.emit(solved, bound=y.bound)


@operator(1, differentiable=False)
def of_matrices(s: Scope) -> None:
    """Results of decompositions that are unique."""
    x = s.pick(lambda v: v.rank >= 2 and v.dtype == "float64" and 2 <= v.shape[-1] <= 4)
    n = x.shape[-1]
    gram = f"(jnp.einsum('...ij,...ik->...jk', {x.name}, {x.name}) + jnp.eye({n}))"
    form = s.one_of(
        (
            "jnp.linalg.eigvalsh({})",
            "jnp.linalg.svd({}, compute_uv=False)",
            "lax.linalg.lu({})[0]",
            "jnp.abs(jnp.linalg.qr({}, mode='r'))",
            "jnp.linalg.det({})",
        )
    )
    s.emit(form.format(gram), bound=100.0)


@operator(2, differentiable=False)
def ragged(s: Scope) -> None:
    """A dot per group of rows."""
    x = s.pick(lambda v: v.rank == 2 and v.dtype == "float64" and v.bound <= 20)
    groups = s.integer(2, 3)
    w = s.matching((groups, x.shape[1], s.size()), x.dtype)
    counts = [x.shape[0] // groups] * (groups - 1)
    counts.append(x.shape[0] - sum(counts))
    s.emit(f"lax.ragged_dot({x.name}, {w.name}, jnp.asarray({counts}, 'int32'))", bound=x.bound * w.bound * 8)


@operator(2, differentiable=False)
def reduced_by_a_function(s: Scope) -> None:
    """Not in bfloat16: the compiler for CPU aborts where a constraint of the step itself splits the reduced value."""
    x = s.pick_float(max_bound=20.0)
    name, dtype = (f"{x.name}.astype('float32')", "float32") if x.dtype == "bfloat16" else (x.name, x.dtype)
    axes = _axes(s, x)
    form = s.one_of(
        (
            "lax.reduce({}, np.zeros((), jnp.dtype({!r})), lambda a, b: jnp.hypot(a, b), {})",
            "lax.reduce({}, np.ones((), jnp.dtype({!r})), lambda a, b: jnp.maximum(a, 2 * b), {})",
        )
    )
    s.emit(form.format(name, dtype, axes), bound=x.bound * 8)


@operator(1, differentiable=False)
def along_one_line(s: Scope) -> None:
    """Tridiagonal systems, the largest by an approximate search, and forward derivatives of pooling."""
    x = s.small(s.pick(lambda v: v.rank >= 2 and v.dtype == "float64" and v.shape[-1] >= 4))
    form = s.one_of(
        (
            "lax.linalg.tridiagonal_solve("
            "{0}.at[..., 0].set(0), {0} + 4, {0}.at[..., -1].set(0), {0}[..., None])[..., 0]",
            "lax.approx_max_k({0}, 2)[0]",
            "jax.jvp(lambda z: jnp.cumsum(jnp.max(z, -1)), ({0},), ({0},))[1]",
        )
    )
    s.emit(form.format(x.name), bound=10.0)


@operator(1)
def fourier(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1 and v.dtype == "float64")
    form = s.one_of(("jnp.fft.fft({}).real", "jnp.abs(jnp.fft.rfft({})) ** 2"))
    s.emit(form.format(s.small(x).name), bound=40.0)
