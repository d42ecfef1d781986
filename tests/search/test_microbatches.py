"""How many slices of the batch a search tries where memory is short."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxplan.errors import InfeasibleError
from jaxplan.ir import StepGraph
from jaxplan.search import _microbatches
from jaxplan.search._traced import analyse_step


def step(params: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, gradient = jax.value_and_grad(lambda p: jnp.mean((x @ p) ** 2))(params)
    return params - 0.1 * gradient, loss


@pytest.mark.parametrize(
    ("limit", "tried"),
    [(5, [1, 2, 4]), (9, [1, 2, 4]), (20, [1, 2, 4, 8, 16]), (40, [1, 2, 4, 8])],
)
def test_slices_are_tried_while_they_can_still_fit(
    limit: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole 80 bytes; in n slices 64 / n and 10 beside: 42, 26, 18, 14, ... never less than 10."""
    graph = analyse_step(step, (jnp.ones((8, 8)), jnp.ones((512, 8))), {})
    found: list[int] = []

    def plan_graph(of: StepGraph) -> Any:
        microbatches = of.program.microbatches
        found.append(microbatches.num if microbatches else 1)
        needed = 64 // microbatches.num + 10 if microbatches else 80
        if needed > limit:
            raise InfeasibleError("too large", smallest_memory_bytes=needed)
        return needed

    monkeypatch.setattr(_microbatches, "merged", list)
    try:
        fitting = _microbatches.plan_with_microbatches(graph, None, plan_graph, limit_bytes=limit)
    except InfeasibleError as error:
        fitting = [error.smallest_memory_bytes]
    assert found == tried
    assert fitting == {5: [26], 9: [26], 20: [18, 14], 40: [26, 18]}[limit]
