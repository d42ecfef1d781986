"""Until when what a product reads is there, of products that make gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxplan._planner import analyse_step
from jaxplan.cost import analyse_buffers
from jaxplan.mesh import Topology
from tests.cost.one_device import shape


def _step(weights: Any, x: jax.Array) -> Any:
    def loss(weights: Any) -> jax.Array:
        return jnp.sum((x @ weights[0] @ weights[1] @ weights[2]) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


@pytest.mark.parametrize(("machine", "is_late"), [("h100:1", True), ("cpu:1", False), ("v5e:1", False)])
def test_a_gradient_is_made_after_the_next_input_gradient(machine: str, is_late: bool) -> None:
    """Of x A B C: x A B is read for the gradient of C, which is there after the gradient of x A B."""
    arguments = [shape(32, 32)] * 3, shape(16, 32)
    graph = analyse_step(_step, arguments, {}, donate_argnums=None, static_argnums=())
    products = [e for e in graph.program.equations if e.name == "dot_general"]
    _, second, third = [e for e in products if e.phase == "forward"]
    of_third, of_input = [
        next(e for e in products if e.phase == "backward" and t in e.operands)
        for t in (third.operands[0], third.operands[1])
    ]
    assert third.operands[0] == second.results[0] and of_third.index < of_input.index
    chip = Topology.parse(machine).chip
    death = analyse_buffers(graph, chip).death[third.operands[0]]
    assert death == (of_input if is_late else of_third).index
    assert analyse_buffers(graph, chip, in_order=True).death[third.operands[0]] == of_third.index
