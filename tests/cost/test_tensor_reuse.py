"""Tensor reuse (TensorOpt, section 4.2): of an activation that is resharded, the source, the copy, or both are
kept for the backward pass. Each is seen in the live bytes at the turning point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxplan.cost import CostModel, Predictor, build_cost_model
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from tests.cost.one_device import shape

ROWS, WIDTH = 64, 32
BYTES = ROWS * WIDTH * 4 // 8


def _step(between: Callable[[jax.Array], jax.Array]) -> Any:
    def step(first: jax.Array, second: jax.Array, x: jax.Array) -> Any:
        return jax.grad(lambda first, second: jnp.sum((between(x @ first) @ second) ** 2), (0, 1))(first, second)

    return step


def _forced(between: Callable[[jax.Array], jax.Array]) -> tuple[CostModel, int]:
    """The first dot on columns, the second on rows: the value between them is exchanged; and its tensor."""
    weights = shape(WIDTH, WIDTH), shape(WIDTH, WIDTH)
    graph = analyse_step(_step(between), (*weights, shape(ROWS, WIDTH)), {}, donate_argnums=(), static_argnums=())
    program, groups = graph.program, graph.grouping.equation_group
    first, second = [e for e in program.equations if e.name == "dot_general" and e.phase == "forward"]
    t = second.operands[0]
    configs: list[Any] = [(((),) * len(space.classes),) for space in graph.spaces]
    maker = program.equations[graph.values.producer[t]]
    for eqn, dim in ((first, 1), (maker, 1), (second, 0)):
        space = graph.spaces[groups[eqn.index]]
        (split,) = space.tensor_dims[eqn.results[0]][dim]
        configs[groups[eqn.index]] = (
            tuple((0, 1, 2) if c == split else () for c in range(len(space.classes))),
        )
    return build_cost_model(graph, Topology.parse("h100:8"), configurations=configs), t


def _alive_at_the_turn(model: CostModel, t: int, choice: int) -> tuple[list[int], list[int]]:
    """Bytes of the tensor as it was made, and of copies of it, that live when the backward pass begins."""
    predictor, nothing = Predictor(model), [0] * len(model.configurations)
    choices = [choice if any(model.reads[f].tensor == t for f in reads) else 0 for reads in model.edge_reads]
    _, transfers = predictor.predict(nothing, choices)
    lives = predictor.lifetimes(nothing, model.chosen(nothing), transfers)
    turn = 2 * model.buffers.turning_point
    alive = (lives.first < turn) & (turn <= lives.last)
    copies = [place for (number, _), place in lives.copies.items() if transfers[number].tensor == t]
    assert copies
    return (
        [int(lives.sizes[i]) for i in [lives.home[t]] if alive[i]],
        [int(lives.sizes[i]) for i in copies if alive[i]],
    )


KEEP, REPEAT = 0, 1


@pytest.mark.parametrize(
    ("between", "choice", "before", "after"),
    [
        (lambda y: y, REPEAT, [BYTES], []),
        (lambda y: y, KEEP, [], [BYTES]),
        (jnp.tanh, KEEP, [BYTES], [BYTES]),
    ],
    ids=["before", "after", "both"],
)
def test_what_is_kept(between: Any, choice: int, before: list[int], after: list[int]) -> None:
    """The gradient of tanh reads its result where it was made; that of a dot does not."""
    model, t = _forced(between)
    assert _alive_at_the_turn(model, t, choice) == (before, after)
