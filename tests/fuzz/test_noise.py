"""Rounding that noise does not show: long sums of 16-bit floats."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tests.fuzz._check import Subject, numbers_of
from tests.fuzz._noise import with_wide_sums


def _sum(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_sum_p.bind(x, axes=(0, 1, 2, 3), out_sharding=None)


def test_a_sum_that_one_device_rounds_away_is_ill_conditioned() -> None:
    """2,048 ones: bfloat16 has eight bits, so that one by one they add up to 256, and in float32 to 2,048."""
    subject = Subject(_sum, (np.ones((4, 16, 2, 16), jnp.bfloat16),), tolerance=0.06)
    assert [float(x) for x in subject.expected] == [256.0]
    assert [float(x) for x in with_wide_sums(subject.graph, subject.args)] == [2048.0]
    assert subject.judge(numbers_of(jnp.asarray(2048, jnp.bfloat16)))[0] == "ill-conditioned"


def test_a_wrong_sum_is_still_a_mismatch() -> None:
    subject = Subject(_sum, (np.ones((1, 4, 2, 8), jnp.bfloat16),), tolerance=0.06)
    assert [float(x) for x in subject.expected] == [64.0]
    assert subject.judge(numbers_of(jnp.asarray(128, jnp.bfloat16)))[0] == "mismatch"
