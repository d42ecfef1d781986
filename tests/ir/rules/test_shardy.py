"""Our rules against those that the compiler's own partitioner, Shardy, populates for the same operators.

Compared are the factors that either splits freely: map and reduce factors, their sizes and the places they
have in the dimensions. `DIFFERENCES` names every operator on which the two disagree, with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import pytest
from jaxlib.mlir.passmanager import PassManager

from jaxplan.ir.rules import OperatorRule
from tests.ir.rules import _more_cases
from tests.ir.rules._cases import Case
from tests.ir.rules._equations import rule_of, single_equation

# Places of a factor: (side, tensor, dimension, stride within the dimension's factors).
Place = tuple[str, int, int, int]
FreeFactor = tuple[str, int, tuple[Place, ...]]

_STABLEHLO_NAMES = {
    "exp": "exponential",
    "neg": "negate",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "select_n": "select",
    "convert_element_type": "convert",
    "argmax": "reduce",
    "cumsum": "reduce_window",
    "cummax": "reduce_window",
    "rev": "reverse",
    "conv_general_dilated": "convolution",
    "reduce_window_max": "reduce_window",
    "squeeze": "reshape",
    "cos": "cosine",
    "sin": "sine",
    "expm1": "exponential_minus_one",
    "log1p": "log_plus_one",
    "round": "round_nearest_afz",
    "max": "maximum",
    "min": "minimum",
    "pow": "power",
    "rem": "remainder",
    "clz": "count_leading_zeros",
    "population_count": "popcnt",
    "add_any": "add",
    "bitcast_convert_type": "bitcast_convert",
    "argmin": "reduce",
    "select_and_scatter_add": "select_and_scatter",
    "select_and_gather_add": "reduce_window",
    **dict.fromkeys(("eq", "ge", "gt", "le", "lt", "ne", "eq_to", "le_to", "lt_to"), "compare"),
    **dict.fromkeys(("cumprod", "cummin", "cumlogsumexp"), "reduce_window"),
    **{f"reduce_window_{name}": "reduce_window" for name in ("sum", "min")},
    **{f"reduce_{name}": "reduce" for name in ("sum", "max", "min", "prod", "and", "or", "xor")},
    **{f"scatter{suffix}": "scatter" for suffix in ("", "-add", "-mul", "-max", "-min", "-sub")},
}
# Lowered to several operators, to one of another dialect or to a custom call: Shardy has no one rule for them.
_WITHOUT_SHARDY_RULE = frozenset(
    {
        *(
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "bessel_i0e",
            "bessel_i1e",
            "cosh",
            "digamma",
            "erf",
        ),
        *(
            "erf_inv",
            "erfc",
            "exp2",
            "igamma",
            "igamma_grad_a",
            "igammac",
            "lgamma",
            "logistic",
            "mulhi",
            "nextafter",
        ),
        *(
            "polygamma",
            "regularized_incomplete_beta",
            "sinh",
            "square",
            "zeta",
            "clamp",
            "integer_pow",
            "conj",
        ),
        *(
            "copy",
            "device_put",
            "name",
            "optimization_barrier",
            "threefry2x32",
            "ragged_dot_general",
            "scaled_dot",
        ),
        *(
            "cholesky",
            "eig",
            "eigh",
            "geqrf",
            "hessenberg",
            "householder_product",
            "lu",
            "lu_pivots_to_permutation",
        ),
        *(
            "ormqr",
            "qr",
            "schur",
            "svd",
            "symmetric_product",
            "triangular_solve",
            "tridiagonal",
            "tridiagonal_solve",
        ),
        *("random_bits", "random_clone", "random_fold_in", "random_seed", "random_split", "random_unwrap"),
        *("random_wrap", "iota", "split", "stack", "tile", "top_k", "approx_top_k", "unstack"),
    }
)

_STRIDED = (
    "Shardy reduces over kernel positions where it can cut the image into strides; "
    "that is a strided slice of the image, so here the kernel is whole"
)
_PATCHES = "windows side by side need no halo: Shardy permutes, here the image dimension is mapped"
_POINTWISE = "a window of one element needs no halo: Shardy permutes, here the image dimension is mapped"
_UNALIGNED = (
    "behind the part that lines up, Shardy lets minor factors be split with gaps; here they are whole"
)
_ARGMAX = "Shardy reduces (value, index) pairs; no sum, product, minimum or maximum joins two indices"
_OWN_REDUCER = (
    "Shardy reduces with any function; here parts are joined by a sum, product, minimum or maximum only"
)
_SUBTRACTED = (
    "Shardy adds up parts of additions only; here those of subtractions too, the operand counted once"
)
DIFFERENCES = {
    "argmax (4, 6) -> (4,)": _ARGMAX,
    "argmin (4, 6) -> (6,)": _ARGMAX,
    "reduce_xor (4, 6) -> (4,)": _OWN_REDUCER,
    "reduce (4, 6), (4, 6) -> (4,), (4,)": _OWN_REDUCER,
    "scatter-sub (10, 6), (4, 1), (4, 6) -> (10, 6)": _SUBTRACTED,
    **{f"reduce_window{kind} (4, 8, 6) -> (4, 4, 6)": _PATCHES for kind in ("_sum", "_min", "")},
    "select_and_scatter_add (4, 4, 6), (4, 8, 6) -> (4, 8, 6)": _PATCHES,
    "select_and_gather_add (4, 8, 6), (4, 8, 6) -> (4, 4, 6)": _PATCHES,
    "reshape (4, 6) -> (6, 4)": _UNALIGNED,
    "conv_general_dilated (4, 8, 8, 6), (3, 3, 6, 10) -> (4, 4, 4, 10)": _STRIDED,
    "conv_general_dilated (4, 8, 8, 6), (1, 1, 6, 10) -> (4, 8, 8, 10)": _POINTWISE,
    "conv_general_dilated (2, 8, 16, 4), (4, 4, 4, 6) -> (2, 2, 4, 6)": _PATCHES,
    "reduce_window_max (4, 8, 8, 6) -> (4, 4, 4, 6)": _PATCHES,
}
# With jax 0.10 only: that Shardy mapped a padded dimension of the same size, and one that is updated in part;
# the Shardy of jax 0.12 permutes both.
_OLD_SHARDY_DIFFERENCES = {
    "pad (4, 6), () -> (4, 6)",
    "dynamic_update_slice (8, 6), (2, 6), () -> (8, 6)",
}


def _free_factors(tensors: Iterator[Any], kinds: Any, sizes: Any) -> list[FreeFactor]:
    places: dict[Any, list[Place]] = {}
    for side, tensor, dims in tensors:
        for axis, factors in enumerate(dims):
            for position, factor in enumerate(factors):
                stride = math.prod(sizes[minor] for minor in factors[position + 1 :])
                places.setdefault(factor, []).append((side, tensor, axis, stride))
    free = [factor for factor in places if kinds[factor] in ("map", "reduce") and sizes[factor] > 1]
    return sorted((kinds[factor], sizes[factor], tuple(places[factor])) for factor in free)


def _tensors(operands: Sequence[Any], results: Sequence[Any]) -> Iterator[Any]:
    """Without scalars: initial values are operands for one side and parameters for the other."""
    for side, tensors in (("operand", operands), ("result", results)):
        for index, dims in enumerate([dims for dims in tensors if dims]):
            yield side, index, dims


def _ours(rule: OperatorRule) -> list[FreeFactor]:
    kinds = [factor.kind for factor in rule.factors]
    sizes = [factor.size for factor in rule.factors]
    return _free_factors(_tensors(rule.operands, rule.results), kinds, sizes)


def _theirs(text: str) -> list[FreeFactor]:
    """Parse ``#sdy.op_sharding_rule<([i, jk], [k])->([i]) {i=4, j=2, k=3} reduction={k} …>``."""
    sides, _, rest = text.partition("{")
    names, _, notes = rest.partition("}")
    sizes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", names)}
    kinds = dict.fromkeys(sizes, "map")
    for note, factors in re.findall(r"(\w+)=\{([^}]*)\}", notes):
        if note != "blocked_propagation":
            kinds.update(
                dict.fromkeys(re.findall(r"\w+", factors), "reduce" if note == "reduction" else "whole")
            )
    operands, results = (
        [
            [list(dim.strip()) for dim in dims.split(",") if dim.strip()]
            for dims in re.findall(r"\[([^\]]*)\]", side)
        ]
        for side in sides.split("->")
    )
    return _free_factors(_tensors(operands, results), kinds, sizes)


def _dims(text: str) -> list[list[str]]:
    """``i, jk`` as [[i], [j, k]]."""
    return [list(dim.strip()) for dim in text.split(",") if dim.strip()]


def _shardy_rules(case: Case) -> list[str]:
    """The rules that Shardy gives the operators of a lowered case, of those that the primitive lowers to."""
    module = jax.jit(lambda *operands: case.fn(case.out_shapes, *operands)).lower(*case.operands())
    module = module.compiler_ir("stablehlo")
    with module.context:
        for pipeline in ("inline", "func.func(sdy-populate-op-sharding-rules)"):
            PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
        name = "stablehlo." + _STABLEHLO_NAMES.get(case.primitive, case.primitive)
        return [
            str(op.attributes["sdy.sharding_rule"]) for op in _operations(module.operation) if op.name == name
        ]


def _operations(operation: Any) -> Iterator[Any]:
    yield operation
    if operation.name.startswith("stablehlo."):
        return  # the scalar program of a reduction
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _operations(inner.operation)


CASES = [case for case in _more_cases.WHOLES if case.primitive not in _WITHOUT_SHARDY_RULE]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule_agrees_with_shardy(case: Case) -> None:
    fn = lambda *operands: case.fn(case.out_shapes, *operands)  # noqa: E731
    rule = rule_of(single_equation(fn, case.primitive, *case.operands()))
    shardy = _shardy_rules(case)
    assert shardy, f"no operator of {case} has a Shardy rule"
    agrees = any(_ours(rule) == _theirs(text) for text in shardy)
    if str(case) not in _OLD_SHARDY_DIFFERENCES:
        assert agrees == (str(case) not in DIFFERENCES), f"ours: {rule}\nShardy: {shardy}"


def test_table_of_differences_names_cases_that_exist() -> None:
    assert {*DIFFERENCES, *_OLD_SHARDY_DIFFERENCES} <= set(map(str, CASES))
