"""Element-wise operators of floats, integers and truth values, and random numbers."""

from __future__ import annotations

from tests.fuzz._operators import operator
from tests.fuzz._program import Shape, Value
from tests.fuzz._scope import MAX_BOUND, Inapplicable, Scope

_LINEAR = (
    "-{}",
    "{} * 0.5",
    "0.25 * {}",
    "{} / 4",
    "jnp.real({})",
    "lax.reduce_precision({}, 11, 52)",
    "jnp.copy({})",
)
_BOUNDED = (
    "jnp.sin({})",
    "jnp.cos({})",
    "jnp.tanh({})",
    "jax.nn.sigmoid({})",
    "lax.erf({})",
    "lax.erfc({})",
    "jnp.arctan({})",
    "jnp.arcsinh({})",
    "jax.nn.relu({})",
    "jax.nn.gelu({})",
    "jnp.abs({})",
    "jnp.sign({})",
    "jnp.floor({})",
    "jnp.ceil({})",
    "jnp.round({})",
    "jax.lax.stop_gradient({})",
    "lax.optimization_barrier({})",
    "jnp.maximum({}, 0.25)",
    "jnp.clip({}, -0.5, 0.5)",
    "jnp.where({0} > 0.25, {0}, 0.5)",
    "lax.clamp(-0.5, {0}, 0.5)",
    "lax.real(lax.complex({0}, {0}))",
    "lax.imag(lax.conj(lax.complex({0}, {0})))",
)
_OF_SMALL = (
    "jnp.exp({})",
    "jnp.exp2({})",
    "jnp.expm1({})",
    "jnp.sinh({})",
    "jnp.cosh({})",
    "jnp.tan({})",
    "jnp.arcsin({} * 0.9)",
    "jnp.arccos({} * 0.9)",
    "jnp.arctanh({} * 0.9)",
    "lax.erf_inv({} * 0.9)",
    "lax.bessel_i1e({})",
)
_OF_POSITIVE = (
    "jnp.log({})",
    "jnp.log1p({})",
    "jnp.sqrt({})",
    "lax.rsqrt({})",
    "jnp.cbrt({})",
    "1 / {}",
    "lax.lgamma({})",
    "jnp.log2({})",
    "lax.pow({0}, 0.3 * {0} / {0})",
    "jnp.arccosh({} + 1)",
)
_OF_INTEGERS = (
    "jnp.abs({})",
    "jnp.sign({})",
    "~{}",
    "-{}",
    "{} * 3",
    "{} // 2",
    "lax.rem({}, jnp.int32(5))",
    "{} % 7",
)
_OF_TWO_INTEGERS = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} & {}",
    "{} | {}",
    "{} ^ {}",
    "jnp.maximum({}, {})",
    "jnp.minimum({}, {})",
    "{} << ({} & 3)",
    "{} >> ({} & 3)",
    "lax.shift_right_logical({}, {} & 7)",
)
_COMPARISONS = ("<", "<=", ">", ">=", "!=", "==")


def partner(s: Scope, value: Value) -> Value:
    """A second operand of the same shape, or of one that broadcasts to it."""
    if value.rank and s.flag(3):
        start = s.integer(0, value.rank - 1)
        shape = tuple(1 if s.flag(3) else size for size in value.shape[start:])
        return s.matching(shape, value.dtype)
    return s.matching(value.shape, value.dtype)


@operator(6)
def linear(s: Scope) -> None:
    s.emit(s.one_of(_LINEAR).format(s.pick_float(0).name))


@operator(12)
def bounded(s: Scope) -> None:
    s.emit(s.one_of(_BOUNDED).format(s.pick_float(0).name))


@operator(4)
def of_small(s: Scope) -> None:
    x = s.small(s.pick_float(0))
    s.emit(s.one_of(_OF_SMALL).format(x.name), bound=15.0)


@operator(4)
def of_positive(s: Scope) -> None:
    x = s.positive(s.pick_float(0, max_bound=10.0))
    s.emit(s.one_of(_OF_POSITIVE).format(x.name), bound=max(8.0, x.bound))


@operator(2, differentiable=False)
def special(s: Scope) -> None:
    x = s.positive(s.pick_float(0, max_bound=10.0))
    form = s.one_of(
        (
            "lax.digamma({})",
            "jnp.isfinite({})",
            "jnp.nextafter({0}, {0} + 1)",
            "lax.bessel_i0e({})",
            "lax.igamma({0}, {0} + 0.5)",
            "lax.igammac({0}, 2 * {0})",
            "lax.betainc({0}, {0} + 1, jnp.full_like({0}, 0.25))",
            "lax.zeta({0} + 1.5, {0})",
            "jnp.hypot({0}, {0})",
            "lax.bitcast_convert_type({0}.astype('float32'), 'int32') >> 20",
        )
    )
    s.emit(form.format(x.name), bound=10.0)


@operator(3)
def power(s: Scope) -> None:
    x = s.pick_float(0, max_bound=5.0)
    n = s.integer(2, 3)
    s.emit(f"{x.name} ** {n}", bound=x.bound**n)


@operator(14)
def sum_or_difference(s: Scope) -> None:
    x = s.pick_float()
    y = partner(s, x)
    s.emit(s.one_of(("{} + {}", "{} - {}", "0.5 * {} + {}")).format(x.name, y.name), bound=x.bound + y.bound)


@operator(10)
def product(s: Scope) -> None:
    x = s.pick_float(max_bound=MAX_BOUND)
    y = partner(s, x)
    x = s.small(x) if x.bound * y.bound > MAX_BOUND else x
    s.emit(f"{x.name} * {y.name}", bound=x.bound * y.bound)


@operator(4)
def of_two(s: Scope) -> None:
    x = s.pick_float(max_bound=20.0)
    y = partner(s, x)
    form = s.one_of(
        (
            "jnp.maximum({}, {})",
            "jnp.minimum({}, {})",
            "jnp.arctan2({}, jnp.abs({}) + 0.5)",
            "{} / (jnp.abs({}) + 0.5)",
        )
    )
    s.emit(form.format(x.name, y.name), bound=2 * max(x.bound, y.bound))


@operator(2)
def power_of_two_operands(s: Scope) -> None:
    x = s.positive(s.pick_float(max_bound=5.0))
    y = s.small(partner(s, x))
    s.emit(f"{x.name} ** {y.name}", bound=max(2.0, x.bound))


@operator(6)
def select(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1)
    y = s.matching(x.shape, x.dtype)
    choice = s.matching(() if s.flag(5) else x.shape, "bool")
    form = s.one_of(("jnp.where({}, {}, {})", "lax.select_n({}, {}, {})"))
    s.emit(form.format(choice.name, x.name, y.name), bound=max(x.bound, y.bound))


@operator(5)
def comparison(s: Scope) -> None:
    x = s.pick(lambda v: v.is_float or v.is_int)
    y = s.matching(x.shape, x.dtype)
    s.emit(f"{x.name} {s.one_of(_COMPARISONS)} {y.name}", bound=1.0)


@operator(3)
def logic(s: Scope) -> None:
    x = s.pick(lambda v: v.dtype == "bool")
    y = s.matching(x.shape, x.dtype)
    s.emit(s.one_of(("{} & {}", "{} | {}", "{} ^ {}", "~{} & {}")).format(x.name, y.name), bound=1.0)


@operator(4)
def integers(s: Scope) -> None:
    x = s.pick(lambda v: v.is_int)
    form = s.one_of((*_OF_INTEGERS, "lax.population_count({})", "lax.clz({})"))
    s.emit(form.format(x.name), bound=x.bound * 3 + 32)


@operator(4)
def two_integers(s: Scope) -> None:
    x = s.pick(lambda v: v.is_int)
    y = s.matching(x.shape, x.dtype)
    s.emit(s.one_of(_OF_TWO_INTEGERS).format(x.name, y.name), bound=max(8 * x.bound, x.bound * y.bound))


@operator(6)
def cast(s: Scope) -> None:
    """Between any two dtypes; a float is rounded on its way to an integer half of the time, truncated otherwise."""
    x = s.pick(lambda v: v.rank >= 1)
    dtype = s.one_of(("int32", "bool", "float64", *s.shared.dtypes))
    if dtype == x.dtype:
        raise Inapplicable
    x = s.small(x) if x.is_float and x.bound > MAX_BOUND else x
    if dtype == "int32" and x.is_float:
        s.emit(
            s.one_of(("jnp.round({} * 4)", "({} * 4)")).format(x.name) + '.astype("int32")',
            bound=4 * x.bound + 1,
        )
    elif dtype == "bool":
        s.emit(f'{x.name}.astype("bool")', bound=1.0)
    elif x.is_int:
        s.emit(f'({x.name} % 5).astype("{dtype}") / 4', bound=1.0)
    else:
        s.emit(f'{x.name}.astype("{dtype}")')


@operator(2)
def truncated_and_back(s: Scope) -> None:
    x = s.small(s.pick_float(), 8.0)
    s.emit(f'{x.name} + (3 * {x.name}).astype("int32").astype("{x.dtype}")', bound=4 * x.bound)


@operator(2)
def random_numbers(s: Scope) -> None:
    shape: Shape = s.shape()
    key = f"jax.random.fold_in(jax.random.key({s.integer(0, 9)}), {s.integer(0, 9)})"
    form = s.one_of(
        (
            "jax.random.uniform({}, {}, 'float64')",
            "jax.random.randint({}, {}, 0, 9, 'int32')",
            "jax.random.bernoulli({}, 0.5, {})",
        )
    )
    s.emit(form.format(key, shape), bound=9.0)


@operator(3)
def made_from_nothing(s: Scope) -> None:
    shape = s.shape()
    form = s.one_of(
        (f"lax.broadcasted_iota('int32', {shape}, {s.integer(0, len(shape) - 1)})", f"jnp.full({shape}, 0.5)")
    )
    s.emit(form, bound=16.0)
