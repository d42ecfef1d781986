"""Tests that hold for one end of the supported range of JAX, each with the change of JAX or of its compiler."""

from __future__ import annotations

import jax
import pytest

IS_0_12 = jax.__version_info__ >= (0, 12)
H100_DOT_SCRATCH = (4 if IS_0_12 else 32) * 2**20
"""Bytes of scratch memory of a dot, read off programs compiled for H100 with each version."""


def until_0_12(change: str) -> pytest.MarkDecorator:
    """Skips from JAX 0.12 on; ``change`` says how that differs."""
    return pytest.mark.skipif(IS_0_12, reason=f"from JAX 0.12 on {change}")


def missed_from_0_12(miss: str) -> pytest.MarkDecorator:
    """A known miss from JAX 0.12 on, strict, so that the marker goes when it is mended; ``miss`` has its figures."""
    return pytest.mark.xfail(IS_0_12, strict=True, reason=f"from JAX 0.12 on {miss}")


TRACED_OTHERWISE = until_0_12("derivatives are other equations (`one_minus_square`); figures on record are of 0.10")
