"""Built-in rules of contractions, convolutions, pooling and batched linear algebra, against descriptions of them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxplan.ir import OperatorRule
from jaxplan.tdl import Max, Opaque, Sum, analyse, padded
from tests.ir.rules._equations import rule_of, single_equation
from tests.ir.rules.test_shardy import _ours


def _matmul(a: Any, b: Any) -> Any:
    return lambda i, j: Sum(lambda k: a[i, k] * b[k, j])


def _attention_scores(q: Any, k: Any) -> Any:
    return lambda b, h, t, s: Sum(lambda d: q[b, t, h, d] * k[b, s, h, d])


def _convolution(stride: int, pad: int) -> Any:
    """``NHWC, HWIO -> NHWC`` with a square stride and padding."""

    def description(x: Any, w: Any) -> Any:
        return lambda n, h, v, o: Sum(
            lambda c, i, j: padded(x)[n, stride * h + i - pad, stride * v + j - pad, c] * w[i, j, c, o]
        )

    return description


def _conv(stride: int, pad: int) -> Any:
    return lambda x, w: lax.conv_general_dilated(
        x, w, (stride, stride), ((pad, pad),) * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _pool(window: int, stride: int) -> Any:
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, window, 1), (1, stride, 1), "VALID")


def _matrix_function(m: Any) -> Any:
    return lambda b, i, j: Opaque()(m[b, :, :])[i, j]


_IMAGE = (2, 8, 8, 4)
_CASES = [
    ("dot_general", lambda a, b: a @ b, _matmul, [(4, 6), (6, 8)]),
    ("dot_general", lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k), _attention_scores, [(2, 4, 6, 8), (2, 10, 6, 8)]),
    ("conv_general_dilated", _conv(1, 1), _convolution(1, 1), [_IMAGE, (3, 3, 4, 6)]),
    ("conv_general_dilated", _conv(2, 1), _convolution(2, 1), [_IMAGE, (3, 3, 4, 6)]),
    ("conv_general_dilated", _conv(1, 0), _convolution(1, 0), [_IMAGE, (3, 3, 4, 6)]),
    ("conv_general_dilated", _conv(1, 0), _convolution(1, 0), [_IMAGE, (1, 1, 4, 6)]),
    ("conv_general_dilated", _conv(4, 0), _convolution(4, 0), [_IMAGE, (4, 4, 4, 6)]),
    ("reduce_window_max", _pool(2, 2), lambda x: lambda b, h, c: Max(lambda d: x[b, 2 * h + d, c], d=2), [(2, 8, 4)]),
    ("reduce_window_max", _pool(3, 1), lambda x: lambda b, h, c: Max(lambda d: x[b, h + d, c], d=3), [(2, 8, 4)]),
    ("cholesky", lambda m: lax.linalg.cholesky(m, symmetrize_input=False), _matrix_function, [(4, 3, 3)]),
    ("transpose", lambda x: lax.transpose(x, (2, 0, 1)), lambda x: lambda k, i, j: x[i, j, k], [(4, 6, 2)]),
    ("reshape", lambda x: lax.reshape(x, (4, 6)), lambda x: lambda i, j: x[6 * i + j], [(24,)]),
    ("slice", lambda x: x[:, 2:5], lambda x: lambda i, j: x[i, j + 2], [(4, 7)]),
    ("rev", lambda x: lax.rev(x, (1,)), lambda x: lambda i, j: x[i, 5 - j], [(4, 6)]),
]  # fmt: skip


@pytest.mark.parametrize("primitive, fn, description, shapes", _CASES)
def test_description_and_rule_agree(primitive: str, fn: Any, description: Any, shapes: list) -> None:
    operands = [np.ones(shape, np.float32) for shape in shapes]
    eqn = single_equation(fn, primitive, *operands)
    in_shapes, out_shapes = ([var.aval.shape for var in side] for side in (eqn.invars, eqn.outvars))
    assert in_shapes == shapes  # einsum may change places, and in these cases does not
    rule, described = rule_of(eqn), analyse(description, in_shapes, out_shapes).rule
    assert _ours(rule) == _ours(described), f"{rule} is described as {described}"
    assert _windows(rule) == _windows(described), f"{rule} is described as {described}"


def _windows(rule: OperatorRule) -> list[int]:
    return sorted(rule.factors[f].size for f in rule.factors_of_kind("window"))
