"""Plans on the simulator: bounds that hold for every plan, and timelines known by hand."""

import dataclasses
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.core._units import format_seconds
from jaxplan.cost import CostModel, Predictor, build_cost_model
from jaxplan.ir import STORED_KINDS
from jaxplan.mesh import Topology, collective_seconds
from jaxplan.search import _mcmc_starts as _chains
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import PlanSimulator, simulated_walks
from jaxplan.simulate._plan_pieces import PlanPieces
from jaxplan.simulate._plan_walk import FORBIDDEN_SECONDS, DeltaPlanWalk, FullPlanWalk
from jaxplan.solvers import ChainOptions, Problem, walk_chains

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
        top = max(range(len(simulation.memory_curve)), key=lambda i: simulation.memory_curve[i][1])
        at_top = {part: sizes[top] for part, sizes in simulation.curve_parts.items() if sizes[top]}
        assert at_top == simulation.memory_parts


def test_data_parallelism_hides_all_reduces_behind_the_rest_of_the_backward_pass(
    frontier: jaxplan.Frontier,
) -> None:
    """Gradients are summed as they come, last layer first; only the part after the backward pass shows."""
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
    dots = sorted(timeline.start[n] for n, name in names.items() if name.startswith("dot_general"))
    assert gathers[0] == 0.0 < dots[0]
    assert gathers[1] == dots[0]  # the second weight's, while the first layer computes
    assert gathers[2] >= dots[1]


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
        assert math.isclose(simulation.time_seconds, plan.time_seconds, rel_tol=1e-9)


def test_the_trace_is_read_back(frontier: jaxplan.Frontier, tmp_path) -> None:
    plan = frontier.references["fsdp"]
    with pytest.warns(DeprecationWarning, match="save_timeline"):
        plan.trace(tmp_path / "old.json")
    plan.save_timeline(tmp_path / "step.json")
    assert (tmp_path / "old.json").read_text() == (tmp_path / "step.json").read_text()
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    streams = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
    busy = sum(e["dur"] for e in events if e["ph"] == "X" and e["tid"] == streams["communication"])
    assert math.isclose(busy / 1e6, plan.communication_seconds, rel_tol=1e-9)
    most = max(e["args"]["GiB"] for e in events if e["ph"] == "C")
    assert math.isclose(most * 2**30, plan.simulate().memory_bytes, rel_tol=1e-9)
    hidden = plan.simulate().hidden_seconds
    assert f"- hidden {format_seconds(hidden)}" in plan.explain()


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
    """Its last state is simulated no slower than where its chains start; twice the same."""
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


def with_forbidden_pairs(model: CostModel, rng: np.random.Generator) -> CostModel:
    """The same with a fifth of the pairs of configurations infinite, but for pairs with the first configuration."""
    problem, edges = model.problem, list(model.problem.edges)
    for index, edge in enumerate(edges):
        time = edge.time.copy()
        time[1:, 1:][rng.random(time[1:, 1:].shape[:2]) < 0.2] = np.inf
        edges[index] = dataclasses.replace(edge, time=time)
    forbidding = Problem(time=problem.time, memory=problem.memory, edges=edges, names=problem.names)
    return dataclasses.replace(model, problem=forbidding)


@pytest.mark.parametrize("topology", ["h100:4", "p100:2x2"])
def test_delta_simulation_costs_as_much_as_full_simulation(topology: str) -> None:
    """Proposals that are taken, given up and forbidden, one or several groups at a time, and fresh starts between."""
    graph = analyse_step(step, ARGS, {}, donate_argnums=(0,), static_argnums=())
    model, rng = build_cost_model(graph, Topology.parse(topology)), np.random.default_rng(0)
    model = with_forbidden_pairs(model, rng)
    sizes = model.problem.num_configurations
    pieces = PlanPieces(PlanSimulator(Predictor(model)))
    start = [0] * len(sizes)
    delta, full = DeltaPlanWalk(pieces, start), FullPlanWalk(pieces.simulator, start)
    assert delta.cost == full.cost
    kinds = set()
    for turn in range(120):
        nodes = rng.choice(len(sizes), size=1 + turn % 3, replace=False)
        changes = {int(v): int(rng.integers(sizes[v])) for v in nodes}
        proposed = full.propose_all(changes)
        assert delta.propose_all(changes) == proposed
        is_forbidden = proposed >= FORBIDDEN_SECONDS
        if rng.random() < (0.2 if is_forbidden else 0.7):
            delta.accept()
            full.accept()
            kinds.add(is_forbidden)
        assert delta.cost == full.cost and delta.assignment == full.assignment
    assert kinds == {False, True}
    again = DeltaPlanWalk(pieces, full.assignment)
    assert again.cost == full.cost


def test_weights_follow_the_operator_that_reads_them() -> None:
    """No single group can leave data parallelism: parameter, update and dot go together."""
    graph = analyse_step(step, ARGS, {}, donate_argnums=(0,), static_argnums=())
    model = build_cost_model(graph, Topology.parse("h100:4"))
    walk = simulated_walks(model)([0] * model.problem.num_nodes)
    is_stored = [group.kind in STORED_KINDS for group in graph.grouping.groups]
    followed = 0
    for v, size in enumerate(model.problem.num_configurations):
        for label in range(1, size):
            assert walk.propose(v, label) < FORBIDDEN_SECONDS
            assert walk.proposed[v] == label
            followed += any(is_stored[u] for u in walk.proposed if u != v)
    assert followed
