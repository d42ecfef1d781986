"""The rest of the operators to try rules on, so that every primitive that can be split is in one case at least."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import primitives

from tests.ir.rules import _cases
from tests.ir.rules._cases import Case, _case, _positive

_SQUARE, _TABLE = (4, 3, 3), (4, 6)
_SPECIAL_UNARY = {
    "bessel_i0e": jax.scipy.special.i0e,
    "bessel_i1e": jax.scipy.special.i1e,
    "conj": lambda x: lax.real(lax.conj(lax.complex(x, x))),
    "copy": jnp.copy,
    "device_put": lambda x: jax.device_put(x),
    "exp2": jnp.exp2,
    "imag": lambda x: lax.imag(lax.complex(x, 2 * x)),
    "name": lambda x: checkpoint_name(x, "here"),
    "optimization_barrier": lax.optimization_barrier,
    "real": lambda x: lax.real(lax.complex(x, x)),
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 20),
    "square": lax.square,
}
_UNARY = (
    *(
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cbrt",
        "ceil",
        "cos",
        "cosh",
        "digamma",
        "erf",
    ),
    *(
        "erf_inv",
        "erfc",
        "expm1",
        "floor",
        "is_finite",
        "lgamma",
        "log",
        "log1p",
        "logistic",
        "round",
        "rsqrt",
    ),
    *("sign", "sin", "sinh", "sqrt", "tan", "tanh"),
)
_BINARY = (
    *(
        "atan2",
        "complex",
        "eq",
        "ge",
        "gt",
        "igamma",
        "igamma_grad_a",
        "igammac",
        "le",
        "lt",
        "max",
        "min",
        "ne",
    ),
    *("nextafter", "pow", "rem", "zeta"),
)
_WHOLE_NUMBERS = {
    "and": 2,
    "or": 2,
    "xor": 2,
    "shift_left": 2,
    "shift_right_arithmetic": 2,
    "shift_right_logical": 2,
}
_WHOLE_NUMBER = {"clz": 1, "not": 1, "population_count": 1}
_LAX_NAMES = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_not"}


def _lax(name: str) -> Callable[..., Any]:
    found = getattr(lax, _LAX_NAMES.get(name, name), None)
    return found if found is not None else _bound(name)


def _bound(name: str) -> Callable[..., Any]:
    return getattr(primitives, f"{name}_p").bind


def _without_shapes(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda out, *operands: fn(*operands)


ELEMENTWISE = [
    *[
        _case(name, _without_shapes(fn), [_TABLE], _TABLE)
        for name, fn in [*((n, _lax(n)) for n in _UNARY), *_SPECIAL_UNARY.items()]
    ],
    *[_case(name, _without_shapes(_lax(name)), [_TABLE] * 2, _TABLE) for name in _BINARY],
    *[
        _case(name, _without_shapes(_lax(name)), [_TABLE] * n, _TABLE, bounds=dict.fromkeys(range(n), 30))
        for name, n in (_WHOLE_NUMBERS | _WHOLE_NUMBER).items()
    ],
    *[
        _case(name, _without_shapes(_bound(name)), [_TABLE] * 2, _TABLE)
        for name in ("eq_to", "le_to", "lt_to")
    ],
    _case("add_any", lambda out, x, y: jax.vjp(lambda z: (z, z), x)[1]((x, y))[0], [_TABLE] * 2, _TABLE),
    None if not hasattr(lax, "mulhi") else _case(
        "mulhi",
        lambda out, x, y: lax.mulhi(x.astype("uint32") * 2**20, y.astype("uint32") * 2**20),
        [_TABLE] * 2,
        _TABLE,
        bounds={0: 4000, 1: 4000},
    ),
    _case("polygamma", lambda out, x, y: lax.polygamma(jnp.round(x), y), [_TABLE] * 2, _TABLE),
    _case(
        "regularized_incomplete_beta", _without_shapes(lambda a, b, x: lax.betainc(a, b, x / 2)), [_TABLE] * 3, _TABLE
    ),
    _case("bitcast_convert_type", lambda out, x: lax.bitcast_convert_type(x, "int32"), [_TABLE], _TABLE),
    _case("bitcast_convert_type", lambda out, x: lax.bitcast_convert_type(x, "uint8"), [_TABLE], (*_TABLE, 4)),
    _case(
        "threefry2x32", lambda out, *words: _bound("threefry2x32")(*(w.astype("uint32") for w in words)),
        [_TABLE] * 4, _TABLE, _TABLE, bounds=dict.fromkeys(range(4), 1000),
    ),
]  # fmt: skip
REDUCTION = [
    _case("argmin", lambda out, x: lax.argmin(x, 0, "int32"), [_TABLE], (6,)),
    _case("reduce_xor", lambda out, x: _bound("reduce_xor")(x, axes=(1,)), [_TABLE], (4,), bounds={0: 30}),
    _case(
        "reduce",
        lambda out, x, y: lax.reduce((x, y), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)),
        [_TABLE, _TABLE],
        (4,),
        (4,),
    ),
    *[
        _case(name, lambda out, x, name=name: getattr(lax, name)(x, 1), [_TABLE], _TABLE)
        for name in ("cumprod", "cummin", "cumlogsumexp")
    ],
    _case("approx_top_k", lambda out, x: lax.approx_max_k(x, 2), [_TABLE], (4, 2), (4, 2)),
    _case("top_k", lambda out, x: lax.top_k(x, 2, axis=0), [_TABLE], (2, 6), (2, 6)),
]
SHAPE = [
    _case("tile", lambda out, x: jnp.tile(x, (1, 2)), [_TABLE], (4, 12)),
    _case("stack", lambda out, x, y: jnp.stack([x, y], axis=1), [_TABLE] * 2, (4, 2, 6)),
    _case("unstack", lambda out, x: [*jnp.unstack(x, axis=1)], [(4, 2)], (4,), (4,)),
    # Merging and splitting as models do: heads and width, fused projections, patches.
    _case("reshape", lambda out, x: lax.reshape(x, out[0]), [(4, 2, 6)], (4, 12)),
    _case("reshape", lambda out, x: lax.reshape(x, out[0]), [(4, 6, 8)], (24, 8)),
    _case("split", lambda out, x: lax.split(x, (4, 4, 4), axis=1), [(4, 12)], (4, 4), (4, 4), (4, 4)),
    _case("broadcast_to", lambda out, x: jnp.broadcast_to(x, out[0]), [(1, 6)], (4, 6))
    if "broadcast_to" in str(jax.make_jaxpr(lambda x: jnp.broadcast_to(x, (4, 6)))(np.ones((1, 6))))
    else None,
]


def _pool(kind: Any, start: float, window: tuple[int, ...], strides: tuple[int, ...]) -> Callable[..., Any]:
    return lambda out, x: lax.reduce_window(x, start, kind, window, strides, "VALID")


def _pool_gradient(out: Any, ct: Any, x: Any) -> Any:
    """`select_and_scatter_add`, of pooling in windows that lie side by side."""
    return jax.vjp(_pool(lax.max, -np.inf, (1, 2, 1), (1, 2, 1)), out, x)[1](ct)[1]


def _pool_tangent(out: Any, x: Any, t: Any) -> Any:
    """`select_and_gather_add`."""
    pool = functools.partial(_pool(lax.max, -np.inf, (1, 2, 1), (1, 2, 1)), out)
    return jax.jvp(pool, (x,), (t,))[1]


_IMAGE, _POOLED = (4, 8, 6), (4, 4, 6)
WINDOW = [
    _case("reduce_window_sum", _pool(lax.add, 0.0, (1, 2, 1), (1, 2, 1)), [_IMAGE], _POOLED),
    _case("reduce_window_sum", _pool(lax.add, 0.0, (1, 3, 1), (1, 1, 1)), [_IMAGE], (4, 6, 6)),
    _case("reduce_window_min", _pool(lax.min, np.inf, (1, 2, 1), (1, 2, 1)), [_IMAGE], _POOLED),
    _case("reduce_window", _pool(lambda a, b: a * b, 1.0, (1, 2, 1), (1, 2, 1)), [_IMAGE], _POOLED),
    _case("select_and_scatter_add", _pool_gradient, [_POOLED, _IMAGE], _IMAGE),
    _case("select_and_gather_add", _pool_tangent, [_IMAGE, _IMAGE], _POOLED),
]
INDEXED = [
    _case(
        "scatter-min", _cases._scatter(lax.scatter_min), [(10, 6), (4, 1), (4, 6)], (10, 6), bounds={1: 10}
    ),
    _case(
        "scatter-sub", _cases._scatter(lax.scatter_sub), [(10, 6), (4, 1), (4, 6)], (10, 6), bounds={1: 10}
    ),
    # `take_along_axis`, and a look-up along the second dimension.
    _case(
        "gather", lambda out, x, i: jnp.take_along_axis(x, i, axis=1), [_TABLE, (4, 2)], (4, 2), bounds={1: 6}
    ),
    _case("gather", lambda out, x, i: jnp.take(x, i, axis=1), [(4, 10), (8,)], (4, 8), bounds={1: 10}),
]


_linalg = lax.linalg


def _geqrf(out: Any, x: Any) -> Any:
    """Both halves of ``q.T @ x`` without the matrix q."""
    return jax.scipy.linalg.qr_multiply(x, x, mode="left")[0]


LINALG = [
    _case("eig", lambda out, x: _linalg.eig(x), [_SQUARE], (4, 3), _SQUARE, _SQUARE),
    _case(
        "eigh", lambda out, x: _linalg.eigh(_positive(x), symmetrize_input=False), [_SQUARE], _SQUARE, (4, 3)
    ),
    _case("geqrf", _geqrf, [_SQUARE], _SQUARE),
    _case("ormqr", _geqrf, [_SQUARE], _SQUARE),
    _case("hessenberg", lambda out, x: _linalg.hessenberg(x), [_SQUARE], _SQUARE, (4, 2)),
    _case(
        "householder_product",
        lambda out, x, t: _linalg.householder_product(x, t),
        [_SQUARE, (4, 3)],
        _SQUARE,
    ),
    _case("lu", lambda out, x: _linalg.lu(x), [_SQUARE], _SQUARE, (4, 3), (4, 3)),
    _case(
        "lu_pivots_to_permutation",
        lambda out, p: _linalg.lu_pivots_to_permutation(p, 6),
        [(4, 3)],
        (4, 6),
        bounds={0: 3},
    ),
    _case("qr", lambda out, x: _linalg.qr(x, full_matrices=False), [_SQUARE], _SQUARE, _SQUARE),
    _case("schur", lambda out, x: _linalg.schur(x), [_SQUARE], _SQUARE, _SQUARE),
    _case("svd", lambda out, x: _linalg.svd(x, full_matrices=False), [_SQUARE], _SQUARE, (4, 3), _SQUARE),
    _case(
        "symmetric_product",
        lambda out, x, y: _linalg.symmetric_product(x, y),
        [_SQUARE, _SQUARE],
        _SQUARE,
    ),
    _case(
        "triangular_solve",
        lambda out, a, b: _linalg.triangular_solve(_positive(a), b, left_side=True),
        [_SQUARE, (4, 3, 6)],
        (4, 3, 6),
    ),
    _case(
        "triangular_solve",
        lambda out, a, b: _linalg.triangular_solve(_positive(a), b, left_side=False),
        [_SQUARE, (4, 6, 3)],
        (4, 6, 3),
    ),
    _case(
        "tridiagonal",
        lambda out, x: _linalg.tridiagonal(_positive(x)),
        [_SQUARE],
        _SQUARE,
        (4, 3),
        (4, 2),
        (4, 2),
    ),
    _case(
        "tridiagonal_solve",
        lambda out, a, d, u, b: _linalg.tridiagonal_solve(
            a.at[..., 0].set(0), d + 4, u.at[..., -1].set(0), b
        ),
        [(4, 6)] * 3 + [(4, 6, 2)],
        (4, 6, 2),
    ),
    _case("fft", lambda out, x: lax.fft(x.astype("complex64"), "fft", x.shape[-1:]), [(4, 2, 6)], (4, 2, 6)),
]


def _keys(data: Any) -> Any:
    return jax.random.wrap_key_data(data.astype("uint32"))


_KEYS = (4, 2)
_KEY = {"bounds": {0: 1000}}
# Numbers drawn for a part of the shape are not a part of the numbers: the compiler makes it so.
BY_POSITION = [
    _case("random_bits", lambda out, k: jax.random.bits(_keys(k), out[0]), [(2,)], (4, 6), **_KEY),
    _case("random_split", lambda out, k: jax.random.key_data(jax.random.split(_keys(k), 4)), [(2,)], (4, 2), **_KEY),
    _case("iota", lambda out: lax.broadcasted_iota("int32", out[0], 1), [], (4, 6)),
    _case(
        "iota_2x32_shape",
        lambda out: primitives.iota_2x32_shape_p.bind(shape=tuple(out[0])) if hasattr(primitives, "iota_2x32_shape_p")
        else jax.random.bits(jax.random.wrap_key_data(jnp.zeros(2, "uint32")), out[0]),
        [],
        (4, 6),
        (4, 6),
    )
    if hasattr(primitives, "iota_2x32_shape_p")
    else None,
]  # fmt: skip
RANDOM = [
    _case(
        "random_seed", lambda out, s: jax.random.key_data(jax.vmap(jax.random.key)(s)), [(4,)], (4, 2), **_KEY
    ),
    _case(
        "random_fold_in",
        lambda out, k, d: jax.random.key_data(jax.vmap(jax.random.fold_in)(_keys(k), d)),
        [_KEYS, (4,)],
        (4, 2),
        bounds={0: 1000, 1: 1000},
    ),
    _case(
        "random_clone", lambda out, k: jax.random.key_data(jax.random.clone(_keys(k))), [_KEYS], _KEYS, **_KEY
    ),
    _case("random_wrap", lambda out, k: jax.random.key_data(_keys(k)), [_KEYS], _KEYS, **_KEY),
    _case("random_unwrap", lambda out, k: jax.random.key_data(_keys(k)), [_KEYS], _KEYS, **_KEY),
]


def _scaled_dot(out: Any, x: Any, y: Any, a: Any, b: Any) -> Any:
    return lax.scaled_dot(
        x.astype("float8_e4m3fn"),
        y.astype("float8_e4m3fn"),
        lhs_scale=a.astype("float8_e8m0fnu"),
        rhs_scale=b.astype("float8_e8m0fnu"),
        dimension_numbers=(((2,), (2,)), ((0,), (0,))),
        preferred_element_type=jnp.float32,
    )


QUANTISED = [
    _case(
        "scaled_dot",
        _scaled_dot,
        [(2, 4, 128), (2, 6, 128), (2, 4, 4), (2, 6, 4)],
        (2, 4, 6),
        bounds={0: 7, 1: 7},
    ),
    _case(
        "dot_general",
        lambda out, x, y: lax.dot_general(
            x.astype("int8"), y.astype("int8"), (((1,), (0,)), ((), ())), preferred_element_type="int32"
        ),
        [(4, 6), (6, 8)],
        (4, 8),
        bounds={0: 50, 1: 50},
    ),
]
_OPTIONAL = [
    *ELEMENTWISE, *REDUCTION, *SHAPE, *WINDOW, *INDEXED, *LINALG, *RANDOM, *QUANTISED
]  # fmt: skip
PARTS: list[Case] = [*_cases.ALL, *(case for case in _OPTIONAL if case is not None)]
"""Cases with parts that can be computed by the same function on parts of the operands."""
WHOLES: list[Case] = [*PARTS, *(case for case in BY_POSITION if case is not None)]
"""All cases."""
