"""For TPUs the weight gradient of an output projection runs after its input gradient, where both are the peak."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.xla import Target, analyse_buffers
from tests.partition.edited_plans import with_schedule
from tests.sampling import sampled

MIB = 2**20


def _step(params: Any, tokens: Any, labels: Any) -> Any:
    """A table is read by rows and as the output projection, behind a layer; logits are capped."""

    def loss_fn(params: Any) -> Any:
        stored, layer = params
        table = stored.astype(layer.dtype)
        x = table[tokens]
        logits = jnp.tanh(((x + jnp.tanh(x @ layer)) @ table.T).astype(stored.dtype))
        picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=1) - picked)

    return jax.tree.map(lambda p, g: p - g.astype(p.dtype), params, jax.grad(loss_fn)(params))


def _arguments(rows: int, width: int, tokens: int, dtype: Any, stored: Any) -> Any:
    keys = jax.random.split(jax.random.key(0), 4)
    params = jax.random.normal(keys[0], (rows, width), stored), jax.random.normal(keys[1], (width, width), dtype) / 8
    return params, *[jax.random.randint(key, (tokens,), 0, rows) for key in keys[2:]]


@pytest.mark.parametrize(("topology", "is_ordered"), [("v5e:2x4", True), ("h100:8", False), ("cpu:8", False)])
def test_an_input_gradient_comes_first_on_tpus(topology: str, is_ordered: bool) -> None:
    arguments = jax.eval_shape(lambda: _arguments(65536, 512, 16384, jnp.bfloat16, jnp.float32))
    plan = jaxplan.plan(_step, *arguments, topology=topology, progress=False).references["data"]
    graph, orders = plan.require_program(), plan.lowering.schedule.orders
    assert bool(orders) == is_ordered
    equations, tensors = graph.program.equations, graph.program.tensors
    for order in orders:
        shapes = [set(tensors[equations[e].results[0]].shape) for e in (order.equation, order.after)]
        assert shapes == [{65536, 512}, {16384, 512}]
        buffers = analyse_buffers(graph, Target.of(plan.topology.chip, 8))
        assert order.equation < order.after < buffers.birth[equations[order.equation].results[0]]


@pytest.mark.tpu_aot
@pytest.mark.slow
def test_the_gathered_table_is_gone_when_its_gradient_is_made() -> None:
    """A table of 131,072 rows of 1,024 bfloat16 is 256 MiB whole, and gathered over 4 devices of 8."""
    arguments = jax.eval_shape(lambda: _arguments(131072, 1024, 16384, jnp.bfloat16, jnp.float32))
    plan = jaxplan.plan(_step, *arguments, topology="v5e:2x4", progress=False).references["hybrid_fsdp"]
    audit = plan.audit()
    assert audit.collectives_ok, audit.table()
    beside = with_schedule(plan, orders=()).audit()
    assert beside.compiled_memory_bytes > audit.compiled_memory_bytes + 200 * MIB, beside.table()


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["hybrid_fsdp", "data", "zero2"]))
def test_results_are_those_of_one_device(name: str) -> None:
    """The program for TPUs, run on CPU devices."""
    with jax.enable_x64(True):
        arguments = _arguments(16384, 64, 512, jnp.float32, jnp.float64)
        plan = jaxplan.plan(_step, *arguments, topology="v5e:2x4", donate_argnums=(), progress=False)
        assert plan.references[name].lowering.schedule.orders
        found = plan.references[name].jit()(*arguments)
        expected = jax.jit(_step)(*arguments)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-6)
