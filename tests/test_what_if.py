"""The same step on other machines, with other limits and other batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.mesh import Topology, with_bandwidth


def loss(w, x, y):
    return jnp.mean((jnp.tanh(x @ w["up"]) @ w["down"] - y) ** 2)


def train_step(w, batch, *, scale: float = 1e-3):
    value, grads = jax.value_and_grad(loss)(w, batch["x"], batch["y"])
    return jax.tree.map(lambda p, g: p - scale * g, w, grads), value


def arguments(batch: int = 4096, width: int = 2048):
    spec = jax.ShapeDtypeStruct((width, width), jnp.float32)
    return {"up": spec, "down": spec}, {k: jax.ShapeDtypeStruct((batch, width), jnp.float32) for k in "xy"}


@pytest.fixture(scope="module")
def frontier():
    return jaxplan.plan(train_step, *arguments(), topology="h100:2x4")


def test_another_batch_is_as_if_it_had_been_planned(frontier):
    """Tracing anew with the other shapes and planning finds the same plans."""
    wanted = jaxplan.plan(train_step, *arguments(batch=1024), topology="h100:2x4")
    found = frontier.what_if(batch=1024)
    assert [(p.time_seconds, p.memory_bytes) for p in found] == [(p.time_seconds, p.memory_bytes) for p in wanted]


def test_a_faster_network_makes_no_plan_slower(frontier):
    faster = frontier.what_if(bandwidth={"node": 10})
    assert faster.fastest().time_seconds < frontier.fastest().time_seconds
    link, was = faster.fastest().topology.levels[0].link, frontier.fastest().topology.levels[0].link
    assert link.bandwidth_bytes_per_second == 10 * was.bandwidth_bytes_per_second
    assert faster.fastest().topology.levels[1].link == frontier.fastest().topology.levels[1].link


def test_another_limit_filters(frontier):
    limit = frontier.leanest().memory_bytes
    assert all(plan.memory_bytes <= limit for plan in frontier.what_if(memory=limit))
    with pytest.raises(jaxplan.InfeasibleError):
        frontier.what_if(memory="1MiB")


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"bandwidth": 0}, "positive factor"),
        ({"bandwidth": {"rack": 2}}, "level 'rack'"),
        ({"batch": 0}, "number of examples"),
        ({"batch": "many"}, "number of examples"),
        ({"memory": 40}, "GiB"),
    ],
)
def test_a_question_that_cannot_be_read_says_why(frontier, question, message):
    with pytest.raises(jaxplan.ArgumentError, match=message):
        frontier.what_if(**question)


def test_a_frontier_from_a_file_says_that_it_has_no_step(frontier, tmp_path):
    frontier.save(tmp_path / "f.json")
    with pytest.raises(jaxplan.UnsupportedError, match="read from a file"):
        jaxplan.load(tmp_path / "f.json").what_if(batch=2)


def test_half_the_bandwidth_takes_twice_the_time_of_a_large_transfer():
    slow, fast = with_bandwidth(Topology.parse("h100:8"), 0.5), Topology.parse("h100:8")
    assert slow.levels[0].link.latency_seconds == fast.levels[0].link.latency_seconds
    assert slow.levels[0].link.bandwidth_bytes_per_second == fast.levels[0].link.bandwidth_bytes_per_second / 2


def test_machines_are_compared_in_time_memory_and_money():
    """Each offer is the plan of that machine alone; its price is devices times hours times the price of one."""
    machines = ["h100:8", "a100:8", "cpu:2"]
    found = jaxplan.compare(train_step, *arguments(), topologies=machines, prices={"h100": 3.0, "a100:8": 1.5})
    for name in machines:
        alone = jaxplan.plan(train_step, *arguments(), topology=name).fastest()
        assert found[name].plan.time_seconds == alone.time_seconds
    hours = 1000 * found["h100:8"].plan.time_seconds / 3600
    assert found["h100:8"].cost_of_1000_steps == pytest.approx(hours * 8 * 3.0)
    assert found["cpu:2"].cost_of_1000_steps is None
    assert found.fastest().topology.name == "h100:8"
    assert found.cheapest().topology.name in machines[:2]
    assert all(name in found.table(width=200) for name in machines)


def test_a_machine_on_which_nothing_fits_says_so():
    found = jaxplan.compare(train_step, *arguments(), topologies=["h100:8", "h100:1"], memory="100MiB")
    assert found[0].plan is not None and found[1].plan is None
    assert "does not fit" in found.table(width=200)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topologies": []}, "at least one"),
        ({"topologies": "h100:8"}, "expected a list"),
        ({"topologies": ["h100:8"], "prices": {"a100": 1}}, "not compared"),
        ({"topologies": ["h100:8"], "prices": {"h100": "cheap"}}, "price of a device"),
    ],
)
def test_a_comparison_that_cannot_be_read_says_why(options, message):
    with pytest.raises(jaxplan.ArgumentError, match=message):
        jaxplan.compare(train_step, *arguments(), **options)
