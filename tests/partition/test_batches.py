"""`plan.batches` gives the step every batch that fits, in order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan


def step(w: jax.Array, batch: dict[str, Any]) -> Any:
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w) ** 2))(w)
    return w - 0.1 * gradient, loss


def rows(number: int, size: int = 16) -> dict[str, Any]:
    return {"x": np.full((size, 8), number, np.float32)}


@pytest.mark.parametrize("prefetch", [0, 1, 2, 9])
def test_batches_before_one_that_is_refused_are_used(prefetch: int) -> None:
    plan = jaxplan.plan(step, jnp.ones((8, 8)), rows(0), topology="cpu:8").leanest()
    used = []
    with pytest.raises(jaxplan.ArgumentError, match=r"(?s)\['x'\] has shape \(9, 8\).*drop_remainder"):
        for batch in plan.batches([*map(rows, range(4)), rows(4, 9), rows(5)], prefetch=prefetch):
            used.append(float(batch["x"][0, 0]))
    assert used == [0, 1, 2, 3]


def test_what_is_no_iterable_is_named() -> None:
    plan = jaxplan.plan(step, jnp.ones((8, 2)), rows(0), topology="cpu:4").fastest()
    with pytest.raises(jaxplan.ArgumentError, match="given 5; expected an iterable of batches"):
        next(plan.batches(5))  # type: ignore[arg-type]
