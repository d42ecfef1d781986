"""Rules of primitives that run on accelerators only, or that tracing rarely makes.

Each is a primitive, operands and results as ``dtype[shape]``, parameters, and the splits that its
documentation implies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True, kw_only=True)
class RuleCase:
    """``rule`` lists the factors that can be split, ``map 4, sum 6``; ``avals`` is such as ``f32[4,6] -> f32[4]``."""

    primitive: str
    avals: str
    rule: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def sides(self) -> tuple[Sequence[Any], Sequence[Any]]:
        operands, results = self.avals.split("->")
        return _avals(operands), _avals(results)

    def __str__(self) -> str:
        return f"{self.primitive} {self.avals}"


_DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "i32": "int32",
    "u32": "uint32",
    "f8": "float8_e4m3fn",
    "b": "bool",
}


def _avals(text: str) -> list[Any]:
    found = re.findall(r"(\w+)\[([\d,]*)\]", text)
    return [_aval(name, tuple(int(size) for size in sizes.split(",") if size)) for name, sizes in found]


def _aval(name: str, shape: tuple[int, ...]) -> Any:
    if name == "key":
        return jax.eval_shape(lambda: jnp.broadcast_to(jax.random.key(0), shape))
    return jax.ShapeDtypeStruct(shape, jnp.dtype(_DTYPES[name]))


def _case(primitive: str, avals: str, rule: str, **params: Any) -> RuleCase:
    return RuleCase(primitive=primitive, avals=avals, rule=rule, params=params)


_UNUSED = "f32[0], f32[0], f32[0], f32[0], f32[0], f32[0], f32[0]"
_QKV = "bf16[2,16,8,64], bf16[2,32,4,64], bf16[2,32,4,64]"
_ATTENTION = [
    case
    for suffix in ("", "_wrapper")
    for case in (
        # Grouped queries: 8 heads of queries share 4 of keys. Batch 2 and 4 heads can be split.
        _case(
            f"dot_product_attention_fwd{suffix}",
            f"{_QKV}, {_UNUSED} -> bf16[2,16,8,64], f32[2,8,16]",
            "map 2, map 4",
            layout=0,
        ),
        _case(
            f"dot_product_attention_bwd{suffix}",
            f"{_QKV}, {_UNUSED}, f32[2,8,16], bf16[2,16,8,64], bf16[2,16,8,64] -> {_QKV}",
            "map 2, map 4",
            layout=0,
        ),
        # Several sequences packed into a row.
        _case(
            f"dot_product_attention_fwd{suffix}",
            f"{_QKV}, f32[0], i32[2], i32[2], i32[3], i32[3], f32[0], f32[0] -> bf16[2,16,8,64]",
            "",
            layout=0,
        ),
    )
]
_SCALED = "f8[2,4,128], f8[2,6,128], f8[2,4,4], f8[2,6,4] -> f32[2,4,6]"
_WHOLE = [
    _case(name, "f32[4,6] -> f32[4,6]", "")
    for name in (
        *("call_exported", "cudnn_fusion", "custom_lin", "debug_callback", "debug_print", "io_callback"),
        *("inspect_sharding", "pure_callback", "dce_sink"),
        *(f"dot_product_attention_fp8_{way}{s}" for way in ("fwd", "bwd") for s in ("", "_wrapper")),
    )
]
_SAME = "map 4, map 6"
RULE_CASES = [
    *_ATTENTION,
    *_WHOLE,
    # Heads first, and a bias that all rows share.
    _case(
        "dot_product_attention_fwd",
        f"bf16[2,8,16,64], bf16[2,8,32,64], bf16[2,8,32,64], bf16[1,8,16,32], {_UNUSED[8:]} -> bf16[2,8,16,64]",
        "map 2, map 8",
        layout=1,
    ),
    _case("scaled_matmul", _SCALED, "map 2, sum 4, map 4, map 6"),
    _case("scaled_matmul_wrapper", _SCALED, "map 2, sum 4, map 4, map 6"),
    _case("rng_bit_generator", "u32[4] -> u32[4], u32[8,6]", ""),
    _case("rng_uniform", "f32[], f32[] -> f32[8,6]", ""),
    _case("random_gamma", "key[], f32[4,6] -> f32[4,6]", ""),
    _case("random_gamma", "key[4], f32[4,6] -> f32[4,6]", "map 4"),
    _case("cholesky_update", "f32[4,4], f32[4] -> f32[4,4]", ""),
    _case("platform_index", "-> i32[]", ""),
    _case("tie", "f32[8], f32[4,6] -> f32[4,6]", _SAME),
    _case(
        "select_and_scatter",
        "f32[8,6], f32[4,6], f32[] -> f32[8,6]",
        "map 4, map 6",
        window_dimensions=(2, 1),
        window_strides=(2, 1),
        padding=((0, 0), (0, 0)),
    ),
    _case("geqp3", "f32[4,3,3], i32[4,3] -> f32[4,3,3], i32[4,3], f32[4,3]", "map 4"),
    _case("threefry4x32", ", ".join(["u32[4,6]"] * 8) + " -> " + ", ".join(["u32[4,6]"] * 4), _SAME),
    _case("philox2x32", "u32[4,6], u32[4,6], u32[4,6] -> u32[4,6], u32[4,6]", _SAME),
    _case("philox4x32", ", ".join(["u32[4,6]"] * 6) + " -> " + ", ".join(["u32[4,6]"] * 4), _SAME),
    _case("iota_2x32_shape", "-> u32[4,6], u32[4,6]", _SAME),
    _case("empty", "-> f32[4,6]", _SAME),
    _case("empty2", "-> f32[4,6]", _SAME),
    _case("broadcast_to", "f32[1,6] -> f32[4,6]", _SAME),
    *[
        _case(name, "f32[4,6] -> f32[4,6]", _SAME)
        for name in (
            *(
                "copy_p",
                "from_edtype",
                "to_edtype",
                "layout_constraint",
                "mesh_cast",
                "relayout",
                "reshard",
                "log2",
            ),
            *(
                "stop_gradient",
                "with_memory_space_constraint",
                "one_minus_square",
                "xla_metadata_value",
            ),
        )
    ],
    _case("polynomial", "f32[4,6] -> f32[4,6]", _SAME),
    _case("rnn_fwd", "f32[4,6,8], f32[1,4,8], f32[1,4,8], f32[99], i32[4] -> f32[4,6,8], f32[1,4,8], f32[7]", ""),
    _case("rnn_bwd", "f32[4,6,8], f32[1,4,8], f32[4,6,8], f32[99] -> f32[4,6,8], f32[99]", ""),
    _case("spsolve", "f32[20], i32[20], i32[5], f32[4] -> f32[4]", ""),
    _case("todense", "f32[20], i32[20,2] -> f32[4,6]", ""),
]
