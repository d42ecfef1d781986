"""The ways to lower a plan."""

from __future__ import annotations

from typing import Any, Literal, get_args

from jaxplan.errors import ArgumentError

Backend = Literal["jit", "shard_map"]
"""``"jit"``: sharding constraints and manual islands, the compiler's partitioner between them. ``"shard_map"``: the
whole step as one manual program."""


def check_backend(backend: Any) -> Backend:
    """The backend that was asked for.

    Raises:
      ArgumentError: there is no such backend.

    >>> check_backend("shard_map")
    'shard_map'
    """
    for known in get_args(Backend):
        if isinstance(backend, str) and backend == known:
            return known
    raise ArgumentError(
        f"backend is {backend!r}; expected 'jit' (sharding constraints, and the compiler's partitioner behind them) or "
        "'shard_map' (the whole step as one manual program). Likely cause: a misspelling; fix: leave it out for 'jit'"
    )
