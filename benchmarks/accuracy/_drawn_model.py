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
      recomputed: whether layers that are scanned are recomputed in the backward pass.
    """

    batch: int
    dtype: Any
    param_dtype: Any
    activation: Callable[[Any], Any]
    bias: bool
    recomputed: bool

    def in_loop(self, layer: Callable[..., Any]) -> Callable[..., Any]:
        """A layer as a loop runs it."""
        return jax.checkpoint(layer) if self.recomputed else layer

    def trait(self, scanned: bool) -> str:
        """How equal layers are written: unrolled, scanned, or scanned and recomputed."""
        return "unrolled" if not scanned else "scanned, recomputed" if self.recomputed else "scanned"


def shape(dims: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(dims), dtype)


def pick(draw: Draw, options: Sequence[Any]) -> Any:
    return options[int(draw.integers(len(options)))]


def dense(params: Params, name: str, x: Any, dtype: Any) -> Any:
    y = x @ params[name].astype(dtype)
    return y + params[f"{name}_bias"].astype(dtype) if f"{name}_bias" in params else y


def dense_shapes(name: str, rows: int, columns: int, regime: Regime) -> Params:
    shapes = {name: shape((rows, columns), regime.param_dtype)}
    return {**shapes, f"{name}_bias": shape((columns,), regime.param_dtype)} if regime.bias else shapes
