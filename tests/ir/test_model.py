"""State that a step computes anew, and does not update in place, is laid out as the state that it replaces."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxplan
from jaxplan.ir import UNGROUPED
from jaxplan.search._traced import analyse_step

COUNT, WIDTH, CODES, DECAY = 256, 32, 128, 0.9
State = dict[str, jax.Array]


def quantise(state: State, batch: jax.Array) -> tuple[State, jax.Array]:
    """Codes as moving averages of the vectors nearest to them (van den Oord et al. 2017, appendix A.1)."""
    table = state["table"]
    distances = jnp.sum(table**2, axis=0) - 2 * batch @ table
    chosen = jax.nn.one_hot(jnp.argmin(distances, axis=1), CODES)
    quantised = chosen @ table.T
    counts = DECAY * state["counts"] + (1 - DECAY) * jnp.sum(chosen, axis=0)
    sums = DECAY * state["sums"] + (1 - DECAY) * batch.T @ chosen
    mean = sums / (1 - DECAY)
    new = {"counts": counts, "sums": sums, "mean": mean, "table": mean / (counts / (1 - DECAY) + 1e-3)[None]}
    return new, jnp.mean((batch - quantised) ** 2)


def init() -> State:
    rng = np.random.default_rng(0)
    shapes = {"counts": (CODES,), "sums": (WIDTH, CODES), "mean": (WIDTH, CODES), "table": (WIDTH, CODES)}
    return {k: jnp.asarray(rng.uniform(0.5, 1.5, shape), jnp.float32) for k, shape in shapes.items()}


def test_a_group_lays_out_new_state_as_the_old() -> None:
    batch = jax.ShapeDtypeStruct((COUNT, WIDTH), jnp.float32)
    graph = analyse_step(quantise, (jax.eval_shape(init), batch), {}, donate_argnums=(0,), static_argnums=())
    program, grouping = graph.program, graph.grouping
    assert len(program.aliases) == 4
    for position, source in program.aliases.items():
        old, new = program.inputs[source], program.outputs[position]
        group = grouping.tensor_group[old]
        assert group != UNGROUPED
        assert graph.spaces[group].tensor_dims[new] == graph.spaces[group].tensor_dims[old]


def test_it_trains_as_on_one_device() -> None:
    batches: Any = np.random.default_rng(1).normal(size=(2, COUNT, WIDTH)).astype(np.float32)
    frontier = jaxplan.plan(
        quantise, jax.eval_shape(init), batches[0], topology="cpu:8", memory="1GiB", progress=False
    )
    for plan in (frontier.fastest(), frontier.leanest()):
        run, state, alone = plan.jit(), init(), init()
        for batch in batches:
            state, loss = run(state, batch)
            alone, expected = jax.jit(quantise)(alone, batch)
            np.testing.assert_allclose(loss, expected, rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state, alone)
