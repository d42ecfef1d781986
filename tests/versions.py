"""Tests that hold for one end of the supported range of JAX, each with the change of JAX or of its compiler."""

from __future__ import annotations

import jax
import pytest

IS_0_12 = jax.__version_info__ >= (0, 12)


def until_0_12(change: str) -> pytest.MarkDecorator:
    """Skips from JAX 0.12 on; ``change`` says how that differs."""
    return pytest.mark.skipif(IS_0_12, reason=f"from JAX 0.12 on {change}")


SMALLER_WORKSPACE = until_0_12("a dot on an H100 has 4 MiB of scratch memory in place of 32 (docs/prediction.md)")
TRACED_OTHERWISE = until_0_12("derivatives are other equations (`one_minus_square`); figures on record are of 0.10")
