"""Every strategy computes the same on eight devices as on one."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from tests.sampling import sampled
from tests.strategies.small_models import Sizes, cnn_case, gpt_case, references_of

TINY = {"batch": 16, "tokens": 16, "width": 64, "hidden": 128, "vocabulary": 128, "capacity": 8, "layers": 1}
CASES: dict[str, tuple[Any, str]] = {
    "gpt": (lambda: gpt_case(Sizes(**TINY)), "cpu:8"),
    "moe": (lambda: gpt_case(Sizes(**TINY, experts=8)), "cpu:8"),
    "nodes": (lambda: gpt_case(Sizes(**TINY)), "cpu:2x4"),
    "cnn": (cnn_case, "cpu:8"),
}
WANTED = {
    "gpt": ("megatron", "megatron_sequence", "context"),
    "moe": ("experts",),
    "nodes": ("hybrid_fsdp",),
    "cnn": ("data", "zero2", "one_weird_trick", "data2_tensor4"),
}


@functools.cache
def _case(case: str) -> tuple[dict[str, jaxplan.Plan], tuple[Any, ...], Any]:
    make, topology = CASES[case]
    step, args = make()
    rng = np.random.default_rng(0)

    def value(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if leaf.dtype == jnp.int32:
            return rng.integers(0, TINY["vocabulary"], leaf.shape, dtype=np.int32)
        return rng.normal(size=leaf.shape, scale=0.1).astype(leaf.dtype)

    values = jax.tree.map(value, args)
    return references_of(step, args, topology)[0], values, jax.jit(step)(*values)


PARAMETERS = [
    (case, name)
    for case, names in WANTED.items()
    for name in names
]


@pytest.mark.parametrize(("case", "name"), sampled(PARAMETERS, len(PARAMETERS) // 2))
def test_a_strategy_computes_the_same(case: str, name: str) -> None:
    plans, values, expected = _case(case)
    found = plans[name].jit(donate_argnums=())(*values)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = np.abs(np.asarray(b)).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * scale)
