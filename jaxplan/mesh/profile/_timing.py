"""Seconds of one operation of a repeating program."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from jaxplan.mesh.profile._settings import Settings

_MOST_ROUNDS = 1000
# No operation is quicker, and a clock that says so did not resolve it.
_LEAST_SECONDS = 1e-9


def seconds_per_operation(compiled: Any, arrays: tuple[Any, ...], unroll: int, settings: Settings) -> float:
    """Seconds of the quickest sample, less the quickest run of no rounds: the cost of the dispatch."""
    _run(compiled, arrays, 1)
    empty = min(_run(compiled, arrays, 0) for _ in range(2))
    one = max(_run(compiled, arrays, 1) - empty, _LEAST_SECONDS)
    if agreed(one) < settings.sample_seconds / 8:  # too short to tell from dispatch: look again over a few
        one = max((_run(compiled, arrays, 8) - empty) / 8, _LEAST_SECONDS)
    rounds = int(agreed(min(_MOST_ROUNDS, max(1, round(settings.sample_seconds / one)))))
    samples = []
    for _ in range(settings.num_samples):
        empty = min(empty, _run(compiled, arrays, 0))
        samples.append(_run(compiled, arrays, rounds))
    return agreed(max((min(samples) - empty) / (rounds * unroll), _LEAST_SECONDS))


def _run(compiled: Any, arrays: tuple[Any, ...], rounds: int) -> float:
    count = np.int32(rounds)
    start = time.perf_counter()
    jax.block_until_ready(compiled(count, *arrays))
    return time.perf_counter() - start


def agreed(value: float) -> float:
    """The value that the first process has: programs of several processes must repeat equally often."""
    return float(agreed_array(np.asarray([value]))[0])


def agreed_array(values: np.ndarray) -> np.ndarray:
    """The same for an array, rounded to float32 where there are several processes."""
    if jax.process_count() == 1:
        return values
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.broadcast_one_to_all(values.astype(np.float32)), dtype=np.float64)
