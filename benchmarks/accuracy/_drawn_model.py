"""Parts that random models share: sizes and dtypes, dense layers, and the shapes of their parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Draw = np.random.Generator
Params = dict[str, Any]
Apply = Callable[[Params, Any], Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of one family: shapes of its parameters, its function of parameters and input, and its two ends."""

    params: Params
    apply: Apply
    inputs: jax.ShapeDtypeStruct
    outputs: tuple[int, ...]
    traits: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Sizes and dtypes that all families draw from.

    Attributes:
      batch: examples; dtype: of activations; param_dtype: of parameters.
    """

    batch: int
    dtype: Any
    param_dtype: Any
    activation: Callable[[Any], Any]
    bias: bool


def shape(dims: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(dims), dtype)


def pick(draw: Draw, options: Sequence[Any]) -> Any:
    return options[int(draw.integers(len(options)))]


def pick_layers(draw: Draw, scanned: bool) -> str:
    """`unrolled`, `scanned`, or `scanned, recomputed`: how equal layers are written. Other draws stay as they are."""
    recomputed = scanned and bool(draw.spawn(1)[0].integers(2))
    return "scanned, recomputed" if recomputed else "scanned" if scanned else "unrolled"


def dense(params: Params, name: str, x: Any, dtype: Any) -> Any:
    y = x @ params[name].astype(dtype)
    return y + params[f"{name}_bias"].astype(dtype) if f"{name}_bias" in params else y


def dense_shapes(name: str, rows: int, columns: int, regime: Regime) -> Params:
    shapes = {name: shape((rows, columns), regime.param_dtype)}
    return {**shapes, f"{name}_bias": shape((columns,), regime.param_dtype)} if regime.bias else shapes
