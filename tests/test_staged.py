"""The staged form: one trace, planned on several machines, equals the shortcut."""

import jax
import jax.numpy as jnp
import pytest

import jaxplan


def test_a_trace_planned_on_several_machines_equals_the_shortcut() -> None:
    """The step is traced once; a jitted step keeps its own donation and settings."""
    traces = []

    def step(w, x, rate):
        traces.append(rate)
        return w - rate * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    jitted = jax.jit(step, donate_argnums=0, static_argnums=2)
    w, x = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((4096, 64), "float32")
    traced = jaxplan.trace(jitted, w, x, 0.1)
    found = [traced.plan(topology=name, progress=False) for name in ("h100:8", "v5e:2x2", "cpu:4")]
    assert traces == [0.1]
    for frontier in found:
        machine = frontier.fastest().topology
        shortcut = jaxplan.plan(jitted, w, x, 0.1, topology=machine, progress=False)
        assert [p.to_json() for p in frontier] == [p.to_json() for p in shortcut]
        assert frontier.fastest().require_program().program.donated == (True, False)


def test_options_of_the_trace_are_refused_later() -> None:
    traced = jaxplan.trace(lambda x: x @ x, jax.ShapeDtypeStruct((8, 8), "float32"))
    with pytest.raises(jaxplan.ArgumentError, match="given donate_argnums; expected options are"):
        traced.plan(topology="h100:8", donate_argnums=0)
