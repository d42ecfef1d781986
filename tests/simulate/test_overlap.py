"""Communication beside compute: bounds that hold for any schedule, and searches that are no worse for knowing them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import jaxplan
from jaxplan.cost import ModelBuilder, find_reads
from jaxplan.cost._hiding import hidden_shares, visible_seconds
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.simulate import OverlappedPredictor, predictor_of
from tests.small_steps import AUTOENCODER_ARGS, autoencoder_step


@pytest.fixture(scope="module")
def graph():
    return analyse_step(autoencoder_step, AUTOENCODER_ARGS, {}, donate_argnums=(0,), static_argnums=())


def test_visible_seconds_by_hand() -> None:
    """5 and 1 seconds; the producers compute for 4 and 40, half of which may hide this; 0.5 are always seen."""
    seconds = np.array([[5.0, 1.0], [5.0, 0.25]])
    seen = visible_seconds(seconds, np.array([4.0, 40.0]), 0.5, 0.5, axis=0)
    np.testing.assert_array_equal(seen, [[3.0, 0.5], [0.5, 0.25]])


def test_a_repeated_gather_may_hide_twice() -> None:
    """One consumer that computes for 6; a third of it for each execution; never is never."""
    seconds = np.array([[[5.0, 10.0], [5.0, np.inf]]])
    seen = visible_seconds(seconds, np.array([6.0, 0.0]), 1 / 3, 0.5, axis=1)
    np.testing.assert_array_equal(seen, [[[3.0, 6.0], [5.0, np.inf]]])


def test_shares_of_one_group_are_all_of_its_compute_at_most(graph) -> None:
    reads, groups = find_reads(graph), graph.grouping.groups
    shares = hidden_shares(graph, reads)
    assert {groups[group].kind for group, _ in shares.values()} == {"contraction"}
    total: dict[int, float] = {}
    for index, (group, share) in shares.items():
        read = reads[index]
        assert {groups[read.producer].kind, groups[read.consumer].kind} == {"state", "contraction"}
        total[group] = total.get(group, 0.0) + (2 * share if read.in_both_phases else share)
    assert len(total) == 2  # both layers
    assert max(total.values()) <= 1 + 1e-12


def test_only_times_of_edges_differ_and_none_grows(graph) -> None:
    builder = ModelBuilder(graph, Topology.parse("h100:8"), overlap=True)
    model = builder.build(builder.configurations())
    serial, overlapped = model.problems
    assert all(a is b for a, b in zip(serial.time, overlapped.time, strict=True))
    less = 0
    for edge, other in zip(serial.edges, overlapped.edges, strict=True):
        assert (edge.source, edge.target) == (other.source, other.target)
        np.testing.assert_array_equal(edge.memory, other.memory)
        seconds, seen = edge.time, other.time
        finite = np.isfinite(seconds)
        assert (seen[finite] <= seconds[finite]).all() and (np.isfinite(seen) == finite).all()
        less += bool((seen[finite] < seconds[finite]).any())
    assert less


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
        assert longer * (1 - 1e-9) <= found.time_seconds <= found.compute_seconds + found.communication_seconds
        hidden += found.hidden_seconds > 0
    assert hidden


def test_a_search_with_overlap_is_no_slower_when_simulated() -> None:
    with_overlap = _plan(overlap=True)
    fastest = with_overlap.choose("fastest")
    assert fastest.time_seconds == pytest.approx(fastest.simulate().time_seconds, rel=1e-6)
    assert fastest.hidden_seconds > 0
    assert fastest.time_seconds <= min(p.simulate().time_seconds for p in _plan(overlap=False).points) * (1 + 1e-9)
    assert any("simulated with overlap" in note for note in with_overlap.notes)
    assert fastest.gap is None  # nothing is proven of a simulated time


def test_a_saved_plan_keeps_its_hidden_seconds(tmp_path) -> None:
    plan = _plan(overlap=True).choose("fastest")
    plan.save(tmp_path / "plan.json")
    loaded = jaxplan.load(tmp_path / "plan.json")
    assert isinstance(loaded, jaxplan.Plan)
    assert (loaded.time_seconds, loaded.hidden_seconds) == (plan.time_seconds, plan.hidden_seconds)
    assert json.loads((tmp_path / "plan.json").read_text())["prediction"]["hidden_seconds"] > 0
    assert " - hidden " in plan.explain()
    assert " - hidden " not in _plan(overlap=False).choose("fastest").explain()


def test_an_invalid_choice_is_refused() -> None:
    with pytest.raises(jaxplan.ArgumentError, match="overlap is 'yes'; expected True"):
        _plan(overlap="yes")


def _plan(overlap) -> jaxplan.Frontier:
    return jaxplan.plan(
        autoencoder_step, *AUTOENCODER_ARGS, topology="a100-pcie:8", progress=False, overlap=overlap
    )
