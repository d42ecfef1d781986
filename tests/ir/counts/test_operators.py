"""Products, transforms, sorts, windows, random numbers and kernels: brute force, closed forms, and XLA's own counts."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental import sparse

from jaxplan import Count
from jaxplan.ir import operator_count
from tests.ir.counts._counted import Number, Tally, count_of
from tests.ir.rules import _rule_cases

_RNG = np.random.default_rng(0)


def _s(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _total(amounts: Any) -> float:
    return sum(number for _, number in amounts)


def _xla(fn: Any, *args: Any) -> dict[str, float]:
    return jax.jit(fn).lower(*args).cost_analysis()


# ---- products


@pytest.mark.parametrize(
    "numbers",
    [
        (((1,), (0,)), ((), ())),
        (((2,), (1,)), ((0,), (0,))),
        (((0, 2), (0, 1)), ((), ())),
        (((), ()), ((), ())),
    ],
)
def test_dots_are_counted_as_xla_does(numbers: Any) -> None:
    shapes = {1: ((5, 7), (7, 3)), 2: ((4, 5, 7), (4, 7, 3))}
    rank = 2 if numbers[1][0] or 2 in numbers[0][0] else 1
    fn = lambda a, b: lax.dot_general(a, b, numbers)  # noqa: E731
    args = [_s(*shape) for shape in shapes[rank]]
    analysis = jax.jit(fn).trace(*args).lower(lowering_platforms=("tpu",)).cost_analysis()
    assert _total(count_of(fn, "dot_general", *args).matrix) == analysis["flops"]


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("stride", "groups", "dilation"), [(1, 1, 1), (2, 1, 1), (1, 4, 1), (1, 1, 2)])
def test_convolutions_are_counted_as_xla_does(padding: str, stride: int, groups: int, dilation: int) -> None:
    def fn(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(
            x, k, (stride, stride), padding, rhs_dilation=(dilation, dilation), feature_group_count=groups
        )

    args = _s(2, 8, 9, 10), _s(12, 8 // groups, 3, 3)
    analysis = jax.jit(fn).trace(*args).lower(lowering_platforms=("tpu",)).cost_analysis()
    assert _total(count_of(fn, "conv_general_dilated", *args).matrix) == analysis["flops"]


def test_rows_of_groups_are_multiplied_once() -> None:
    x, w, sizes = _s(512, 64), _s(8, 64, 32), _s(8, dtype=jnp.int32)
    count = count_of(lax.ragged_dot, "ragged_dot_general", x, w, sizes)
    assert _total(count.matrix) == 512 * 2 * 64 * 32  # one matrix per row, whichever group it is in


# ---- transforms, sorts, scans


def _fft(x: list[complex], tally: Tally) -> list[complex]:
    """Cooley and Tukey; a butterfly is a complex product (6 operations) and two complex sums (2 each)."""
    if len(x) == 1:
        return x
    even, odd = _fft(x[::2], tally), _fft(x[1::2], tally)
    half = len(even)
    twisted = [np.exp(-2j * np.pi * k / len(x)) * odd[k] for k in range(half)]
    tally.operations += 10 * half
    return [a + b for a, b in zip(even, twisted)] + [a - b for a, b in zip(even, twisted)]


def test_a_transform_does_the_operations_of_its_butterflies() -> None:
    n, tally = 64, Tally()
    x = _RNG.normal(size=n) + 0j
    np.testing.assert_allclose(_fft(list(x), tally), np.fft.fft(x), atol=1e-10)
    count = count_of(jnp.fft.fft, "fft", _s(3, n, dtype=jnp.complex64))
    assert _total(count.vector) == 3 * tally.operations
    assert _total(count_of(jnp.fft.rfft, "fft", _s(3, n)).vector) == 3 * tally.operations / 2
    two = count_of(jnp.fft.fft2, "fft", _s(n, n, dtype=jnp.complex64))
    assert _total(two.vector) == 2 * n * tally.operations  # a transform per row and per column
    assert two.moved == 2 * two.kernels * n * n * 8  # each of them reads and writes everything


def test_a_sort_compares_as_often_as_a_merge_sort() -> None:
    n = 256
    compared = 0

    def merge_sort(x: list[float]) -> list[float]:
        nonlocal compared
        if len(x) == 1:
            return x
        a, b, merged = merge_sort(x[: len(x) // 2]), merge_sort(x[len(x) // 2 :]), []
        while a and b:
            compared += 1
            merged.append((a if a[0] <= b[0] else b).pop(0))
        return [*merged, *a, *b]

    merge_sort(list(_RNG.normal(size=n)))
    found = _total(count_of(jnp.sort, "sort", _s(10, n)).vector)
    assert 10 * compared <= found <= 1.2 * 10 * compared


def test_long_rows_pass_through_memory_several_times_when_sorted() -> None:
    short, long = (count_of(jnp.sort, "sort", _s(2**22 // n, n)) for n in (2**10, 2**20))
    assert short.moved == 2 * 2**22 * 4
    assert long.moved == 4 * short.moved  # a pass per byte of the key


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
def test_scans_combine_at_least_as_often_as_there_are_elements(name: str) -> None:
    fn = lambda x: getattr(lax, name)(x, axis=1)  # noqa: E731
    found = _total(count_of(fn, name, _s(7, 100)).vector)
    per_combination = 20 if name == "cumlogsumexp" else 1
    assert 7 * 99 * per_combination <= found <= 2 * 7 * 100 * per_combination


def test_selection_is_cheaper_than_sorting() -> None:
    x = _s(4, 10_000)
    sort, top, approximate = (
        _total(count_of(fn, name, x).vector)
        for fn, name in (
            (jnp.sort, "sort"),
            (lambda x: lax.top_k(x, 8), "top_k"),
            (lambda x: lax.approx_max_k(x, 8), "approx_top_k"),
        )
    )
    assert 40_000 == approximate < top < sort


# ---- element-wise, reductions, windows


@pytest.mark.parametrize(
    "name",
    ["digamma", "lgamma", "erf_inv", "bessel_i1e", "acosh", "asin", "sinh", "atanh", "erfc", "tanh", "sqrt"],
)
def test_functions_take_about_the_operations_that_they_are_lowered_to(name: str) -> None:
    """XLA counts products and sums by themselves, which one instruction does together, and a function as one."""
    fn, n = getattr(lax, name), 1000
    analysis = _xla(fn, _s(n))
    if name == "lgamma" and "transcendentals" not in analysis:
        pytest.skip("this compiler has written the logarithms as polynomials before it counts (JAX 0.12)")
    least, most = (share * analysis.get("flops", 0) + 8 * analysis["transcendentals"] for share in (0.4, 1.0))
    assert least <= _total(count_of(fn, name, _s(n)).vector) <= most + 12 * n


def test_functions_that_loop_cost_as_much_as_their_loops() -> None:
    """The incomplete beta function runs 200 trips of its continued fraction, each of several dozens of operations."""
    count = count_of(lax.betainc, "regularized_incomplete_beta", _s(10), _s(10), _s(10))
    assert 200 * 30 * 10 <= _total(count.vector) <= 200 * 100 * 10


@pytest.mark.parametrize("fn", [jnp.sum, jnp.max, jnp.argmax, lambda x: jnp.any(x > 0)])
def test_reductions_combine_each_element(fn: Any) -> None:
    names = {"reduce_sum", "reduce_max", "argmax", "reduce_or"}
    (name,) = {e.primitive.name for e in jax.make_jaxpr(fn)(_s(10, 20)).jaxpr.eqns} & names
    assert _total(count_of(fn, name, _s(10, 20)).vector) == 200


def test_windows_combine_their_elements() -> None:
    fn = lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3), (1, 1, 1), "VALID")  # noqa: E731
    count = count_of(fn, "reduce_window_sum", _s(2, 10, 10))
    assert _total(count.vector) == 2 * 8 * 8 * 9


# ---- random numbers


def _threefry(key: tuple[int, int], block: tuple[int, int], tally: Tally) -> tuple[int, int]:
    """Threefry 2x32 of 20 rounds on numbers that count (Salmon et al. 2011, section 3.3)."""
    rotations = (13, 15, 26, 6), (17, 29, 16, 24)
    words = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    wrap = lambda x: Number(x.value & 0xFFFFFFFF, tally)  # noqa: E731
    x, y = (wrap(Number(b, tally) + k) for b, k in zip(block, words))
    for group in range(5):
        for distance in rotations[group % 2]:
            x = wrap(x + y)
            y = ((y << distance) | (y >> (32 - distance))) ^ x
        x, y = wrap(x + words[(group + 1) % 3]), wrap(y + words[(group + 2) % 3] + (group + 1))
    return x.value, y.value


def test_random_bits_take_the_operations_of_their_generator() -> None:
    tally = Tally()
    hashed = _threefry((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), tally)
    assert hashed == (0xC4923A9C, 0x483DF7A0)  # known answer of the Random123 distribution
    key = jax.eval_shape(lambda: jax.random.key(0))
    bits = lambda dtype: lambda k: jax.random.bits(k, (100,), dtype)  # noqa: E731
    assert _total(count_of(bits("uint32"), "random_bits", key).vector) == 100 * (tally.operations + 1)
    with jax.threefry_partitionable(False):
        assert _total(count_of(bits("uint32"), "random_bits", key).vector) == 50 * tally.operations
    fast = jax.eval_shape(lambda: jax.random.key(0, impl="rbg"))
    assert 0 < _total(count_of(bits("uint32"), "random_bits", fast).vector) < 50 * tally.operations


# ---- attention and recurrent layers of libraries


def _attention(queries: int, keys: int, **params: Any) -> tuple[Count, Count]:
    shapes = [(2, queries, 4, 64), (2, keys, 4, 64), (2, keys, 4, 64)]
    ins = [_s(*shape, dtype=jnp.bfloat16) for shape in shapes]
    options = {"layout": 0, "mask_type": 0, "sliding_window_length": None, **params}
    out = [ins[0], _s(2, 4, queries)]
    forward = operator_count("dot_product_attention_fwd_wrapper", ins, out, options)
    backward = operator_count("dot_product_attention_bwd_wrapper", ins, out, options)
    assert forward is not None and backward is not None
    return forward, backward


@pytest.mark.parametrize(("mask", "window"), [(0, None), (2, None), (3, None), (2, 16)])
@pytest.mark.parametrize(("queries", "keys"), [(48, 48), (32, 80)])
def test_attention_multiplies_the_scores_that_are_not_masked(
    mask: int, window: int | None, queries: int, keys: int
) -> None:
    last = np.arange(queries)[:, None] + keys - queries  # queries are the last of the sequence
    seen = np.arange(keys) <= last if mask else np.ones((queries, keys), bool)
    if window:
        seen &= np.arange(keys) > last - window
    forward, backward = _attention(queries, keys, mask_type=mask, sliding_window_length=window)
    product = 2 * 2 * 4 * 64 * seen.sum()
    assert forward.matrix == (("bfloat16", 2 * product),)
    assert backward.matrix == (("bfloat16", 5 * product),)


def test_grouped_heads_of_keys_save_no_arithmetic() -> None:
    case = _rule_cases.RULE_CASES[0]
    count = operator_count(case.primitive, *case.sides(), case.params)
    query, key, value = (aval.shape for aval in case.sides()[0][:3])
    pairs = query[0] * query[2] * query[1] * key[1]
    assert count is not None and _total(count.matrix) == 2 * pairs * (query[3] + value[3])


def test_a_recurrent_layer_multiplies_with_its_weights_each_step() -> None:
    rnn = {"input_size": 10, "hidden_size": 20, "num_layers": 2, "bidirectional": True}
    count = operator_count("rnn_fwd", [_s(8, 30, 10)], [], rnn)
    of_layers = 2 * 4 * 20 * (10 + 20) + 2 * 4 * 20 * (40 + 20)
    assert count is not None and _total(count.matrix) == 8 * 30 * 2 * of_layers


# ---- kernels


def _matmul(x: Any, y: Any, *, block: int, **options: Any) -> Any:
    (m, k), n = x.shape, y.shape[1]

    def kernel(x: Any, y: Any, o: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            o[...] = jnp.zeros_like(o)

        o[...] += x[...] @ y[...]

    return pl.pallas_call(
        kernel,
        grid=(m // block, n // block, k // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
            pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        out_shape=_s(m, n),
        **options,
    )(x, y)


def test_a_kernel_is_counted_at_every_point_of_its_grid() -> None:
    m, n, k, block = 256, 384, 512, 128
    count = count_of(functools.partial(_matmul, block=block), "pallas_call", _s(m, k), _s(k, n))
    assert count.matrix == (("float32", 2.0 * m * n * k),)
    assert count.moved == 4 * (
        m * k * n / block + k * n * m / block + m * n
    )  # blocks come again per row and column


def test_loops_inside_of_a_kernel_count_their_trips() -> None:
    def kernel(x: Any, y: Any, o: Any) -> None:
        body = lambda i, total: total + x[...] @ y[i]  # noqa: E731
        o[...] = lax.fori_loop(0, 6, body, jnp.zeros((16, 16)))

    def fn(x: Any, y: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=_s(16, 16))(x, y)

    count = count_of(fn, "pallas_call", _s(16, 16), _s(6, 16, 16))
    assert _total(count.matrix) == 6 * 2 * 16**3
    assert not count.caveat


def test_loops_of_unknown_length_are_admitted() -> None:
    def kernel(x: Any, y: Any, o: Any) -> None:
        body = lambda i, total: total + x[...] @ y[i]  # noqa: E731
        o[...] = lax.fori_loop(0, pl.program_id(0) + 1, body, jnp.zeros((16, 16)))

    def fn(x: Any, y: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=_s(16, 16), grid=(6,))(x, y)

    count = count_of(fn, "pallas_call", _s(16, 16), _s(6, 16, 16))
    assert _total(count.matrix) == 6 * 2 * 16**3
    assert "trips" in count.caveat


def test_an_estimate_of_the_author_replaces_the_count() -> None:
    estimate = pl.CostEstimate(flops=12345, transcendentals=10, bytes_accessed=678)
    fn = functools.partial(_matmul, block=128, cost_estimate=estimate)
    count = count_of(fn, "pallas_call", _s(256, 256), _s(256, 256))
    assert (_total(count.matrix), count.moved) == (12345, 678)
    assert set(count.touched) == {0.0}


def test_called_programs_count_their_equations() -> None:
    from jax.experimental.custom_partitioning import custom_partitioning

    @custom_partitioning
    def double_product(x: Any) -> Any:
        return lax.scan(lambda c, _: (c @ x, None), x, length=5)[0]

    double_product.def_partition(lambda *args: None, sharding_rule="i j -> i j")
    count = count_of(lambda x: double_product(x), "custom_partitioning", _s(8, 8))
    assert _total(count.matrix) == 5 * 2 * 8**3


# ---- sparse arrays


def test_sparse_products_multiply_each_stored_element_with_a_row() -> None:
    dense = _RNG.normal(size=(20, 30)) * (_RNG.uniform(size=(20, 30)) < 0.3)
    stored = sparse.BCOO.fromdense(jnp.asarray(dense, jnp.float32))
    product = lambda d, i, b: sparse.BCOO((d, i), shape=(20, 30)) @ b  # noqa: E731
    count = count_of(product, "bcoo_dot_general", stored.data, stored.indices, _s(30, 7))
    assert _total(count.vector) == 2 * np.count_nonzero(dense) * 7
    assert count.touched[2] == min(30 * 7, np.count_nonzero(dense) * 7) * 4
    rows = sparse.BCSR.from_bcoo(stored)
    product = lambda d, i, p, b: sparse.BCSR((d, i, p), shape=(20, 30)) @ b  # noqa: E731
    of_rows = count_of(product, "bcsr_dot_general", rows.data, rows.indices, rows.indptr, _s(30, 7))
    assert of_rows.vector == count.vector


def test_sampled_products_do_a_sum_per_stored_element() -> None:
    numbers = (((1,), (0,)), ((), ()))
    fn = lambda a, b, i: sparse.bcoo_dot_general_sampled(a, b, i, dimension_numbers=numbers)  # noqa: E731
    count = count_of(fn, "bcoo_dot_general_sampled", _s(8, 5), _s(5, 9), _s(11, 2, dtype=jnp.int32))
    assert _total(count.vector) == 11 * 2 * 5
