"""Random training steps with arrays in the memory of the host."""

from __future__ import annotations

import jax
import pytest

from benchmarks.lowering.hosted_steps import check
from tests.sampling import sampled


@pytest.mark.parametrize("seed", sampled((2, 11, 31, 102, 205)))
def test_results_equal_one_device(seed):
    with jax.enable_x64(True):
        runs, _, lines = check(seed)
    assert runs and not lines
