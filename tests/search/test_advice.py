"""Advice on a plan, held against plans of the changed step, and the ways out of a limit that nothing meets."""

from __future__ import annotations

import jax
import jax.extend
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.mesh import Topology, enlarged
from tests.versions import H100_DOT_SCRATCH


def loss(w, x):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ w["up"]) @ w["middle"]) @ w["down"])


def train_step(w, x):
    grads = jax.grad(loss)(w, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads)


def arguments(batch: int, width: int = 2048):
    square = jax.ShapeDtypeStruct((width, width), jnp.float32)
    return {"up": square, "middle": square, "down": square}, jax.ShapeDtypeStruct((batch, width), jnp.float32)


def plan(batch: int, topology: str = "h100:8", **options):
    return jaxplan.plan(train_step, *arguments(batch), topology=topology, progress=False, **options)


def advice_on(frontier, kind: str):
    return next(advice for advice in frontier.advice() if advice.kind == kind)


def test_a_padded_batch_has_the_time_of_its_own_plan():
    """Where the batch alone may be split, 12,004 examples split over 4 devices and 12,008 over 8."""
    before, after = plan(12_004, pins="data"), plan(12_008, pins="data")
    advice = advice_on(before, "padding")
    wanted = after.fastest().time_seconds * 12_004 / 12_008 - before.fastest().time_seconds
    assert advice.seconds == pytest.approx(wanted) and advice.seconds < 0
    assert "12008 in place of 12004" in advice.text


def test_more_devices_have_the_time_of_their_own_plan():
    advice = advice_on(plan(65_536), "devices")
    wanted = plan(65_536, "h100:2x8").fastest().time_seconds - plan(65_536).fastest().time_seconds
    assert advice.seconds == pytest.approx(wanted)


def test_gradients_in_bfloat16_move_half_the_bytes():
    """A ring all-reduce of n bytes over 8 devices moves 7/8 of them out twice; half of that is spared."""
    frontier = plan(2048, "v100:8", pins="data")
    advice = advice_on(frontier, "gradients")
    topology = frontier.fastest().topology
    moved = 3 * 2048 * 2048 * 4 * 2 * 7 / 8
    spared = moved / 2 / topology.levels[-1].link.bandwidth_bytes_per_second
    assert -advice.seconds == pytest.approx(spared, rel=0.1)


def test_an_operator_without_a_rule_is_named():
    nameless = jax.extend.core.Primitive("nameless")
    nameless.def_abstract_eval(lambda a: jax.core.ShapedArray(a.shape, a.dtype))

    def step(w, x):
        return w - nameless.bind(w) * jnp.mean(x @ w)

    square = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
    frontier = jaxplan.plan(step, square, square, topology="h100:8", progress=False)
    advice = advice_on(frontier, "operator")
    assert "nameless" in advice.text and "test_advice.py" in advice.text


def test_advice_needs_the_step(tmp_path):
    plan(4096).save(tmp_path / "frontier.json")
    with pytest.raises(jaxplan.JaxplanError, match=r"advice\(\) needs the step"):
        jaxplan.load(tmp_path / "frontier.json").advice()


@pytest.mark.parametrize(("name", "factor", "wanted"), [("h100:8", 2, "h100:2x8"), ("v100:2x4", 4, "v100:8x4")])
def test_a_larger_machine_has_more_nodes(name, factor, wanted):
    assert enlarged(Topology.parse(name), factor) == Topology.parse(wanted)


def test_ways_out_of_a_limit_do_fit():
    """The devices and the batch that the error names have plans within the limit."""
    memory = 168 * 2**20 + H100_DOT_SCRATCH
    with pytest.raises(jaxplan.InfeasibleError) as refused:
        plan(32_768, memory=memory, microbatches=False, remat=False)
    text = str(refused.value)
    assert "microbatches=False rules them out" in text
    machine = text.partition("would fit:")[2].partition("(")[2].partition(")")[0]
    batch = int(text.partition("a batch of ")[2].split()[0])
    assert plan(32_768, machine, memory=memory, microbatches=False, remat=False).points
    assert plan(batch, memory=memory, microbatches=False, remat=False).points
