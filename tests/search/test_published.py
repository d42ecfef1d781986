"""Published searches on real train steps."""

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.cost import find_reads
from jaxplan.ir import STORED_KINDS
from jaxplan.mesh import Topology
from jaxplan.search._recurrences import layer_groups, time_step_classes
from jaxplan.search._tofu import PARTITION_SEARCHES, PARTITION_SOLVERS, partition
from jaxplan.search._traced import analyse_step
from tests.sampling import sampled

SHAPE = (64, 64)


def recurrent_step(num_steps):
    """A train step of an unrolled recurrence of two layers, and its abstract arguments."""

    def loss(params, xs):
        states = [jnp.zeros((xs.shape[1], SHAPE[0]))] * 2
        for t in range(num_steps):
            x = xs[t]
            for layer, (read, again) in enumerate(params):
                x = states[layer] = jnp.tanh(x @ read + states[layer] @ again)
        return jnp.mean(x**2)

    def step(params, xs):
        gradients = jax.grad(loss)(params, xs)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    weight = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    return step, ([(weight, weight)] * 2, jax.ShapeDtypeStruct((num_steps, 32, SHAPE[0]), jnp.float32))


@pytest.mark.parametrize("topology", sampled(["h100:2x2", "h100:8"]))
def test_one_mesh_answers_on_a_recurrence(topology):
    step, args = recurrent_step(3)
    restricted = jaxplan.plan(step, *args, topology=topology, solver="one_mesh", progress=False)
    free = jaxplan.plan(step, *args, topology=topology, progress=False)
    assert any(plan.name == "plan" for plan in restricted)  # not reference strategies alone
    assert free.fastest().time_seconds <= restricted.fastest().time_seconds * (1 + 1e-9)


def analysed(num_steps):
    step, args = recurrent_step(num_steps)
    return analyse_step(step, args, {}, donate_argnums=None, static_argnums=())


def test_time_steps_of_a_recurrence_decide_together():
    """Two layers and their state, however many steps; each layer's operators in both passes are one group."""
    found = []
    for num_steps in (3, 6):
        graph = analysed(num_steps)
        reads = find_reads(graph)
        classes = time_step_classes(graph, reads)
        layers = layer_groups(graph, reads, classes, [False] * len(classes))
        found.append((max(classes) + 1, len(set(layers))))
        assert len(classes) > 2 * max(classes)
    assert found[0] == found[1]


@pytest.mark.parametrize("solver", PARTITION_SEARCHES)
def test_partitions_split_everything_that_is_stored_over_all_devices(solver):
    graph, topology = analysed(4), Topology.parse("k80:8")
    strategy_plan = partition(graph, topology, solver)
    for group, space, config in zip(graph.grouping.groups, graph.spaces, strategy_plan.configurations):
        taken = [axis for axes in config for axis in axes]
        assert sorted(taken) == [0, 1, 2], "every group has a dimension of at least 8"
        if group.kind in STORED_KINDS:
            for t in group.inputs:
                held = {c for dim in space.tensor_dims[t] for c in dim}
                assert sorted(a for c in held for a in config[c]) == [0, 1, 2]
        if solver != "tofu":  # one dimension of each tensor
            assert sum(map(bool, config)) == 1


@pytest.mark.parametrize("solver", PARTITION_SOLVERS)
def test_partitions_are_plans_of_real_steps(solver):
    step, args = recurrent_step(2)
    frontier = jaxplan.plan(step, *args, topology="h100:2x2", solver=solver, progress=False)
    assert frontier.fastest().time_seconds > 0
