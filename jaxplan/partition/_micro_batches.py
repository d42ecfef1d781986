"""Micro-batches as the devices cut them out of their own examples: one arrangement for all arrays of the batch.

Which examples are in a micro-batch does not matter (`jaxplan.ir._micro_batches`), but the labels must be those of the
images. So the batch is cut into equal parts, as many as its finest split has, and every array takes micro-batch k of
the k-th piece of each part. Where an array is split over fewer devices, or is whole, each device cuts several parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import lax

from jaxplan.ir import CUT, Program


def num_parts(program: Program, splits: Mapping[int, int]) -> int:
    """Parts that the batch is cut in: a multiple of the devices over which each array of it is split.

    Args:
      splits: tensor of micro-batches -> number of devices over which its examples are split; 1 where it is not named.
    """
    found = [(eqn.results[0], eqn.params["levels"]) for eqn in program.equations if eqn.name == CUT]
    cuts = [t for t, _ in found]
    sizes = math.gcd(*(program.tensors[t].shape[levels] for t, levels in found))
    return math.gcd(math.lcm(*(splits.get(t, 1) for t in cuts)), sizes)


def cut(
    x: Any, shape: Sequence[int], levels: int, parts: int, pin: Callable[[Any, int], Any] = lambda x, _: x
) -> Any:
    """Micro-batches ``(K, b, ...)`` of ``(K * b, ...)``, or ``(K, L, b, ...)`` of two levels.

    Args:
      shape: of the result.
      levels: dimensions of it that number micro-batches.
      parts: see `num_parts`.
      pin: splits a dimension of an array as the examples are; nothing is sent then.
    """
    number, size, rest = math.prod(shape[:levels]), shape[levels], shape[levels + 1 :]
    x = pin(lax.reshape(x, (parts, number, size // parts, *rest)), 0)
    x = pin(lax.transpose(x, (1, 0, *range(2, x.ndim))), 1)
    return lax.reshape(x, tuple(shape))


def join(x: Any, levels: int, parts: int) -> Any:
    """``(K * b, ...)`` of micro-batches ``(K, b, ...)``: the inverse of `cut` into as many parts."""
    number, size, rest = math.prod(x.shape[:levels]), x.shape[levels], x.shape[levels + 1 :]
    x = lax.reshape(x, (number, parts, size // parts, *rest))
    x = lax.transpose(x, (1, 0, *range(2, x.ndim)))
    return lax.reshape(x, (number * size, *rest))
