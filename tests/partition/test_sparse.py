"""Sparse arrays on devices' own pieces, and in planned steps, equal those of one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

import jaxplan
from tests.ir.rules._equations import applied, rule_of
from tests.ir.rules._sparse_cases import SPARSE_CASES
from tests.partition.test_local import _splits, run_split
from tests.sampling import sampled


@pytest.mark.sample(6)
@pytest.mark.parametrize("number", sampled(range(len(SPARSE_CASES)), 9), ids=lambda n: f"{SPARSE_CASES[n][0]} {n}")
def test_pieces_put_together_are_the_whole(number: int) -> None:
    primitive, fn, args, ways = SPARSE_CASES[number]
    eqn, operands, expected = applied(fn, primitive, *args)
    rule = rule_of(eqn)
    assert rule.family != "unknown"
    splits = _splits(rule)
    assert len(splits) == ways, rule
    for split in splits[:4]:
        for whole, result in zip(expected, run_split(eqn, rule, operands, split)):
            np.testing.assert_allclose(result, whole, rtol=2e-5, atol=1e-5, err_msg=f"{split} of {rule}")


def test_a_step_on_sparse_features_is_planned_and_runs(caplog: pytest.LogCaptureFixture) -> None:
    """A linear model of sparse features, and its gradient."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(64, 128)) * (rng.uniform(size=(64, 128)) < 0.1)
    stored = sparse.BCOO.fromdense(jnp.asarray(features, jnp.float32), nse=1024)
    w, y = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((128, 16), (64, 16)))

    def step(w: jax.Array, data: jax.Array, indices: jax.Array, y: jax.Array) -> Any:
        x = sparse.BCOO((data, indices), shape=(64, 128))
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - 0.1 * gradient, loss

    args = w, stored.data, stored.indices, y
    expected = step(*args)
    frontier = jaxplan.plan(step, *args, topology="cpu:8", progress=False)
    assert not caplog.records
    for plan in (frontier.fastest(), frontier.leanest(), *frontier.references.values()):
        for found, value in zip(plan.jit(donate_argnums=())(*args), expected):
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
