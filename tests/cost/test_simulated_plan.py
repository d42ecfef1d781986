"""Plans on the simulator: bounds that hold for every plan, and timelines known by hand."""

import itertools
import json
import math

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan import _chains
from jaxplan._planner import analyse_step
from jaxplan.cost import build_cost_model, simulated_walks
from jaxplan.mesh import Topology, collective_seconds
from jaxplan.solvers import ChainOptions, walk_chains

LAYERS, WIDTH, BATCH = 4, 1024, 4096
TOPOLOGY = "h100:8"


def shape(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def step(params, x):
    def loss_fn(params):
        h = x
        for w in params:
            h = jnp.tanh(h @ w)
        return jnp.mean((h - x) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    return [p - 1e-3 * g for p, g in zip(params, gradients)], loss


ARGS = ([shape(WIDTH, WIDTH)] * LAYERS, shape(BATCH, WIDTH))


@pytest.fixture(scope="module")
def frontier() -> jaxplan.Frontier:
    return jaxplan.plan(step, *ARGS, topology=TOPOLOGY, donate_argnums=0, progress=False)


def test_makespan_and_memory_lie_within_their_bounds(frontier: jaxplan.Frontier) -> None:
    for plan in (*frontier, *frontier.references.values()):
        simulation = plan.simulate()
        assert math.isclose(simulation.compute_seconds, plan.compute_seconds, rel_tol=1e-9)
        assert math.isclose(simulation.communication_seconds, plan.communication_seconds, rel_tol=1e-9)
        longer = max(plan.compute_seconds, plan.communication_seconds)
        assert longer * (1 - 1e-9) <= simulation.time_seconds <= plan.time_seconds * (1 + 1e-9)
        assert plan.memory_bytes <= simulation.memory_bytes == max(size for _, size in simulation.memory_curve)
        assert sum(simulation.memory_parts.values()) == simulation.memory_bytes


def test_data_parallelism_hides_all_reduces_behind_the_rest_of_the_backward_pass(
    frontier: jaxplan.Frontier,
) -> None:
    """Gradients are summed as they come, last layer first; only what is left after the backward pass shows."""
    plan = frontier.references["data"]
    simulation, topology = plan.simulate(), plan.topology
    axes = tuple(range(len(topology.axes)))
    one = float(collective_seconds(topology, "all-reduce", WIDTH * WIDTH * 4, axes))
    sums = [n for n, name in simulation.names.items() if name == f"all-reduce of float32[{WIDTH},{WIDTH}]"]
    assert len(sums) == LAYERS
    starts = sorted(simulation.timeline.start[n] for n in sums)
    assert all(b - a >= one * (1 - 1e-9) for a, b in itertools.pairwise(starts))  # one at a time
    last_product = max(
        simulation.timeline.end[n] for n, name in simulation.names.items() if name.startswith("dot_general")
    )
    assert starts[0] < last_product < starts[-1] + one
    assert simulation.hidden_seconds > one


def test_gathers_are_made_one_ahead(frontier: jaxplan.Frontier) -> None:
    """Under FSDP the gather of a weight runs while the layer before computes, and not earlier."""
    simulation = frontier.references["fsdp"].simulate()
    timeline, names = simulation.timeline, simulation.names
    gathers = sorted(timeline.start[n] for n, name in names.items() if name.startswith("all-gather"))
    products = sorted(timeline.start[n] for n, name in names.items() if name.startswith("dot_general"))
    assert gathers[0] == 0.0 < products[0]
    assert gathers[1] == products[0]  # the second weight's, while the first layer computes
    assert gathers[2] >= products[1]


def test_nothing_is_communicated_on_one_device() -> None:
    plan = jaxplan.plan(step, *ARGS, topology="h100:1", donate_argnums=0, progress=False).fastest()
    simulation = plan.simulate()
    assert simulation.communication_seconds == simulation.hidden_seconds == 0
    assert math.isclose(simulation.time_seconds, plan.time_seconds, rel_tol=1e-9)
    assert simulation.memory_bytes == plan.memory_bytes


def test_loops_and_steps_without_compute() -> None:
    def loop(params, x):
        def body(carry, w):
            return jnp.tanh(carry @ w), None

        def loss_fn(params):
            return jnp.mean(jax.lax.scan(body, x, params)[0] ** 2)

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        return params - 1e-3 * gradients, loss

    args = (shape(LAYERS, WIDTH, WIDTH), shape(BATCH, WIDTH))
    found = jaxplan.plan(loop, *args, topology=TOPOLOGY, donate_argnums=0, progress=False)
    for plan in (*found, *found.references.values()):
        simulation = plan.simulate()
        assert math.isclose(simulation.communication_seconds, plan.communication_seconds, rel_tol=1e-9, abs_tol=1e-15)
        assert simulation.time_seconds <= plan.time_seconds * (1 + 1e-9)


def test_the_trace_is_read_back(frontier: jaxplan.Frontier, tmp_path) -> None:
    plan = frontier.references["fsdp"]
    plan.trace(tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    streams = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
    busy = sum(e["dur"] for e in events if e["ph"] == "X" and e["tid"] == streams["communication"])
    assert math.isclose(busy / 1e6, plan.communication_seconds, rel_tol=1e-9)
    most = max(e["args"]["GiB"] for e in events if e["ph"] == "C")
    assert math.isclose(most * 2**30, plan.simulate().memory_bytes, rel_tol=1e-9)
    assert "simulated with overlap" in plan.explain()


def test_a_plan_without_its_program_cannot_be_simulated(frontier: jaxplan.Frontier) -> None:
    plan = jaxplan.Plan.from_json(json.loads(json.dumps(frontier.fastest().to_json())))
    with pytest.raises(jaxplan.PlanMismatchError, match="without its program"):
        plan.simulate()


def test_chains_score_by_simulated_time() -> None:
    """From the replicated plan the chains find one that is no slower than data parallelism's simulated step."""
    topology = Topology.parse("h100:2")
    args = (ARGS[0][:1], ARGS[1])
    graph = analyse_step(step, args, {}, donate_argnums=(0,), static_argnums=())
    model = build_cost_model(graph, topology)
    walks = simulated_walks(model)
    data = jaxplan.plan(step, *args, topology=topology, donate_argnums=0, progress=False).references["data"]
    start = (0,) * model.problem.num_nodes
    options = ChainOptions(num_random=0, num_proposals=400)
    best = walk_chains(model.problem, walks, [start], options)
    assert best.cost == walks(best.assignment).cost
    assert best.cost <= data.simulate().time_seconds * (1 + 1e-9) < walks(start).cost


def test_the_solver_mcmc_walks_on_simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it ends at is simulated no slower than where its chains start; twice the same."""
    monkeypatch.setattr(_chains, "MOST_PROPOSALS", 150)
    args = (ARGS[0][:1], ARGS[1])
    first, again = (
        jaxplan.plan(step, *args, topology="h100:2", donate_argnums=0, solver="mcmc", progress=False)
        for _ in range(2)
    )
    least = min(plan.simulate().time_seconds for plan in first)
    assert least <= first.references["data"].simulate().time_seconds * (1 + 1e-9)
    assert first.to_json() == again.to_json()


@pytest.mark.parametrize("stage", ["solve", "score"])
def test_an_interrupt_of_planning_leaves_a_frontier(stage: str) -> None:
    left = [1]

    def interrupt(now: str, fraction: float) -> None:
        if now == stage and fraction > 0:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    frontier = jaxplan.plan(step, *ARGS, topology="h100:4", donate_argnums=0, progress=interrupt)
    assert left[0] <= 0 and len(frontier) >= 1
    assert frontier.fastest().time_seconds <= min(p.time_seconds for p in frontier.references.values())
