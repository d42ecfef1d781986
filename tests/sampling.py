"""Parameters of which every run tries a few, and `make test-all` the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], keep: int = 1) -> list[Any]:
    """Parameters for pytest: the first `keep` of `values` as they are, the others marked `slow`.

    Example:
      >>> [bool(parameter.marks) for parameter in sampled(["erf", "sin", "tan"])]
      [False, True, True]
    """
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=[pytest.mark.slow] * (at >= keep))
        for at, value in enumerate(values)
    ]
