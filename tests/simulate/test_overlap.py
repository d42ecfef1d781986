"""Communication beside compute: bounds that hold for any schedule, and searches that are no worse for knowing them."""

from __future__ import annotations

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.cost import ModelBuilder, Predictor
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import OverlappedPredictor, PlanSimulator, overlapped_bound, predictor_of
from jaxplan.simulate._makespan import Chain, Makespans, makespan
from tests.small_steps import AUTOENCODER_ARGS, autoencoder_step


@pytest.fixture(scope="module")
def graph():
    return analyse_step(autoencoder_step, AUTOENCODER_ARGS, {}, donate_argnums=(0,), static_argnums=())


@pytest.mark.parametrize("topology", ["h100:8", "v5e:2x2", "p100:2x2"])
def test_makespans_of_a_search_are_those_of_the_simulator(graph, topology: str) -> None:
    """A search walks only the kernels that wait for a collective; the simulator runs every task."""
    model = ModelBuilder(graph, Topology.parse(topology), overlap=True).build(
        ModelBuilder(graph, Topology.parse(topology)).configurations()
    )
    simulator = PlanSimulator(Predictor(model))
    makespans, rng, waited = Makespans(simulator), np.random.default_rng(0), 0
    for _ in range(40):
        assignment = [int(rng.integers(len(configs))) for configs in model.configurations]
        _, _, choices = model.problem.evaluate(assignment)
        expected = simulator.simulate(assignment, choices)
        assert makespans.of(assignment, choices) == pytest.approx(expected.timeline.makespan, rel=1e-12)
        waited += expected.timeline.makespan > expected.compute_seconds * (1 + 1e-9)
    assert waited


def test_makespan_by_hand() -> None:
    """Kernels of 1, 2 and 3 seconds; collectives for the last of them: of 4 at once, of 2 and 1 after the first one.

    On one stream they end at 4, 6 and 7, and the last kernel runs from then on.
    """
    ends = [0.0, 1.0, 3.0, 6.0]
    first, second = Chain(0, 2, (4.0,)), Chain(1, 2, (2.0, 1.0))
    assert makespan(ends, []) == 6.0
    assert makespan(ends, [Chain(0, 2, (2.5,))]) == 6.0
    assert makespan(ends, [first]) == 7.0
    assert makespan(ends, [first, second]) == 10.0
    assert makespan(ends, [Chain(3, 3, (1.5,))]) == 7.5  # nothing runs after it


def test_no_plan_of_a_small_step_is_below_its_bound() -> None:
    """Every assignment of a step of one layer, simulated, against the bound of the least additive cost."""

    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)

    args = jax.ShapeDtypeStruct((512, 512), jnp.float32), jax.ShapeDtypeStruct((1024, 512), jnp.float32)
    graph = analyse_step(step, args, {}, donate_argnums=(0,), static_argnums=())
    builder = ModelBuilder(graph, Topology.parse("a100-pcie:2"), overlap=True)
    model = builder.build(builder.configurations())
    every = list(itertools.product(*(range(len(configs)) for configs in model.configurations)))
    assert len(every) < 5000
    evaluated = [model.problem.evaluate(assignment) for assignment in every]
    bound = overlapped_bound([(model, 1.0)], min(seconds for seconds, _, _ in evaluated))
    predictor, least = predictor_of(model), float("inf")
    for assignment, (seconds, _, choices) in zip(every, evaluated, strict=True):
        if np.isfinite(seconds):
            least = min(least, predictor.predict(assignment, choices)[0].time_seconds)
    assert bound <= least * (1 + 1e-9) and bound > least / 2


def test_time_lies_between_the_longer_of_both_and_their_sum(graph) -> None:
    builder = ModelBuilder(graph, Topology.parse("a100-pcie:8"), overlap=True)
    model = builder.build(builder.configurations())
    predictor = predictor_of(model)
    assert isinstance(predictor, OverlappedPredictor)
    rng = np.random.default_rng(0)
    hidden = 0
    for _ in range(30):
        assignment = [int(rng.integers(len(configs))) for configs in model.configurations]
        _, _, choices = model.problem.evaluate(assignment)
        found, _ = predictor.predict(assignment, choices)
        longer = max(found.compute_seconds, found.communication_seconds)
        assert (
            longer * (1 - 1e-9) <= found.time_seconds <= found.compute_seconds + found.communication_seconds
        )
        hidden += found.hidden_seconds > 0
    assert hidden


def test_a_search_with_overlap_is_no_slower_when_simulated() -> None:
    with_overlap = _plan(overlap=True)
    fastest = with_overlap.choose("fastest")
    assert fastest.time_seconds == pytest.approx(fastest.simulate().time_seconds, rel=1e-6)
    assert fastest.hidden_seconds > 0
    assert fastest.time_seconds <= min(p.simulate().time_seconds for p in _plan(overlap=False).points) * (
        1 + 1e-9
    )
    assert "simulated, with overlap; none is over" in with_overlap.table()
    assert fastest.gap is not None
    assert fastest.time_seconds <= fastest.lower_bound_seconds * (1 + fastest.gap) * (1 + 1e-9)


def test_overlap_is_the_default_and_the_parts_of_a_step_add_up() -> None:
    """Without an option times are simulated; compute and communication less its hidden part are the step."""
    frontier = jaxplan.plan(autoencoder_step, *AUTOENCODER_ARGS, topology="a100-pcie:8", progress=False)
    for plan, same in zip(frontier, _plan(overlap=True), strict=True):
        assert plan.is_same_program(same)
        assert plan.time_seconds == same.time_seconds
    for plan in (*frontier, *frontier.references.values()):
        shown = plan.compute_seconds + plan.communication_seconds - plan.hidden_seconds
        assert plan.time_seconds == pytest.approx(shown, rel=1e-12)
        assert plan.time_seconds == pytest.approx(plan.simulate().time_seconds, rel=1e-9)


def test_virtual_devices_hide_nothing() -> None:
    """The cores that compute also carry out the collectives: a step takes the sum, whose optimum is proven."""
    counted, summed = (
        jaxplan.plan(autoencoder_step, *AUTOENCODER_ARGS, topology="cpu:8", progress=False, overlap=overlap)
        for overlap in (True, False)
    )
    assert [plan.time_seconds for plan in counted] == pytest.approx([plan.time_seconds for plan in summed], rel=1e-12)
    assert [plan.hidden_seconds for plan in counted] == pytest.approx([0.0] * len(counted), abs=1e-15)
    assert [plan.gap for plan in counted] == [plan.gap for plan in summed] == [0.0] * len(counted)
    assert counted.fastest().simulate().hidden_seconds == pytest.approx(0.0, abs=1e-15)


def test_solutions_that_are_not_simulated_are_on_no_frontier(monkeypatch) -> None:
    """Some solutions are beaten whatever they hide; the frontier is that of all, simulated."""
    simulated: list[object] = []
    hide = OverlappedPredictor.hidden

    def counted(self, prediction, *solution):
        simulated.append(solution)
        return hide(self, prediction, *solution)

    monkeypatch.setattr(OverlappedPredictor, "hidden", counted)
    few = _plan(overlap=True)
    num_few = len(simulated)
    monkeypatch.setattr(OverlappedPredictor, "least_seconds", lambda self, prediction: 0.0)
    everything = _plan(overlap=True)
    assert num_few < len(simulated) - num_few
    assert [(p.time_seconds, p.memory_bytes) for p in few] == [(p.time_seconds, p.memory_bytes) for p in everything]
    assert all(one.is_same_program(other) for one, other in zip(few, everything, strict=True))


def test_a_saved_plan_keeps_its_hidden_seconds(tmp_path) -> None:
    plan = _plan(overlap=True).choose("fastest")
    plan.save(tmp_path / "plan.json")
    loaded = jaxplan.load(tmp_path / "plan.json")
    assert isinstance(loaded, jaxplan.Plan)
    assert (loaded.time_seconds, loaded.hidden_seconds) == (plan.time_seconds, plan.hidden_seconds)
    assert json.loads((tmp_path / "plan.json").read_text())["prediction"]["hidden_seconds"] > 0
    assert loaded.overlapped and not _plan(overlap=False).choose("fastest").overlapped
    assert " - hidden " in plan.explain()
    assert " - hidden " not in _plan(overlap=False).choose("fastest").explain()


def test_an_invalid_choice_is_refused() -> None:
    with pytest.raises(jaxplan.ArgumentError, match="overlap is 'yes'; expected True"):
        _plan(overlap="yes")


def _plan(overlap) -> jaxplan.Frontier:
    return jaxplan.plan(
        autoencoder_step, *AUTOENCODER_ARGS, topology="a100-pcie:8", progress=False, overlap=overlap
    )
