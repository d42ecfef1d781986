"""Training steps with recomputed layers in a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def recomputed_layers(block: Callable[[Any, Any], Any]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """A step of SGD on (stacked parameters, activations), and its loss; ``block``: (activations, parameters) -> the
    same."""

    def step(p: Any, x: Any) -> tuple[Any, Any]:
        def loss(p: Any) -> Any:
            h, _ = jax.lax.scan(lambda h, w: (jax.checkpoint(block)(h, w), None), x, p)
            return jnp.mean(h**2)

        value, gradient = jax.value_and_grad(loss)(p)
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, gradient), value

    return step
