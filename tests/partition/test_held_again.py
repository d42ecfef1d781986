"""Values that a recomputed region begins with, in another layout than the one in which they are made."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxplan.cost import KEEP, REPEAT, Predictor, build_cost_model
from jaxplan.ir import Remat, recomputable_blocks, rematerialise
from jaxplan.mesh import Topology
from jaxplan.search._make_plan import make_plan
from jaxplan.search._traced import analyse_step

BATCH, WIDTH, HIDDEN, LAYERS = 2048, 16, 512, 2


def step(params, x, y):
    def loss_fn(params):
        h = x
        for p in params:
            h = h + jnp.tanh(h @ p["up"]) @ p["down"]
        return jnp.mean((h - y) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def make_args():
    draw = np.random.default_rng(0)

    def array(*shape):
        return jnp.asarray(draw.normal(size=shape) / 4, jnp.float32)

    params = [{"up": array(WIDTH, HIDDEN), "down": array(HIDDEN, WIDTH)} for _ in range(LAYERS)]
    return params, array(BATCH, WIDTH), array(BATCH, WIDTH)


def model_on(topology):
    """Dots that are kept: ``tanh`` alone is recomputed."""
    graph = analyse_step(step, make_args(), {}, donate_argnums=(), static_argnums=())
    blocks = recomputable_blocks(graph)
    remat = Remat(num_contractions=len(blocks), of=len(blocks))
    return build_cost_model(rematerialise(graph, remat, blocks).graph, Topology.parse(topology))


def plan_of(model, choice):
    """Dots with the batch split over 8, ``tanh`` with the hidden dimension split over 8."""
    graph, assignment = model.graph, [0] * len(model.configurations)
    tanhs = {graph.grouping.equation_group[e.index] for e in graph.program.equations if e.name == "tanh"}
    for eqn in graph.program.equations:
        v = graph.grouping.equation_group[eqn.index]
        is_product = eqn.name == "dot_general" and eqn.phase == "forward"
        if is_product or v in tanhs:
            (t,), dim = eqn.results, 0 if is_product else 1
            wanted = graph.spaces[v].tensor_dims[t][dim]
            assignment[v] = next(
                k
                for k, config in enumerate(model.configurations[v])
                if all((2 ** len(axes) == 8) == (c in wanted) for c, axes in enumerate(config))
                and not any(axes for c, axes in enumerate(config) if c not in wanted)
            )
    choices = [0] * len(model.problem.edges)
    for i, edge in enumerate(model.problem.edges):
        if edge.target in tanhs:
            times = edge.time[assignment[edge.source], assignment[edge.target]]
            choices[i] = choice if times.ndim and np.isfinite(times[choice]) else 0
    return make_plan(Predictor(model), assignment, choices, name="forced")


@pytest.mark.sample(1)
@pytest.mark.gpu_aot
@pytest.mark.parametrize("choice", [KEEP, REPEAT], ids=["kept", "again"])
def test_moved_values_are_held_or_moved_again(choice):
    """Of each layer the operand of ``tanh`` and, both times, its result are moved, and so are its gradients; once more
    where its operand is not kept: behind the barrier, or the compiler would merge that with the first."""
    plan = plan_of(model_on("h100:8"), choice)
    wanted = {KEEP: 5, REPEAT: 6}[choice] * LAYERS
    (moved,) = [row for row in plan.audit().rows if row.kind == "all-to-all"]
    assert moved.predicted_count == moved.compiled_count == wanted
    assert moved.compiled_bytes == wanted * 4 * BATCH * HIDDEN // 8


@pytest.mark.parametrize("choice", [KEEP, REPEAT], ids=["kept", "again"])
def test_values_are_those_of_one_device(choice):
    args = make_args()
    expected = jax.jit(step)(*args)
    got = plan_of(model_on("cpu:8"), choice).jit()(*args)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, expected)
