"""The input of the compiler: arguments as they lie in memory, and nothing that needs the devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

import jaxplan
from jaxplan.audit._compile import export_plan

pytestmark = [
    pytest.mark.gpu_aot,
]


def shape(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


def routed(x: jax.Array, w: jax.Array) -> jax.Array:
    """Rows go to the device of their expert and back, as many to each; a body that names the mesh's own axis."""
    parts = jax.lax.axis_size("e")
    share = x.shape[0] // parts
    sizes, starts = jnp.full(parts, share, jnp.int32), jnp.arange(parts, dtype=jnp.int32) * share
    places = jnp.full(parts, share * jax.lax.axis_index("e"), jnp.int32)
    sent = jax.lax.ragged_all_to_all(x, jnp.zeros_like(x), starts, sizes, places, sizes, axis_name="e")
    done = sent @ w[0]
    return jax.lax.ragged_all_to_all(done, jnp.zeros_like(done), starts, sizes, places, sizes, axis_name="e")


@pytest.mark.parametrize("has_devices", [True, False])
def test_rows_sent_to_experts_are_exported_over_any_mesh_of_the_step(has_devices: bool) -> None:
    """`jax.lax.ragged_all_to_all` is the step's own: no compiler for CPU has it, and a mesh here is of CPU devices."""
    mesh: Any = AbstractMesh((8,), ("e",), axis_types=(AxisType.Auto,))
    if has_devices:
        mesh = Mesh(np.array(jax.devices()), ("e",))
    spec = PartitionSpec("e")
    run = jax.shard_map(routed, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False)
    plan = plan_of(lambda w, x: w - jax.grad(lambda w: jnp.mean(run(x, w) ** 2))(w), shape(8, 16, 16), shape(512, 16))
    assert "ragged_all_to_all" in export.deserialize(bytearray(export_plan(plan))).mlir_module()


def plan_of(step: Any, *args: Any) -> jaxplan.Plan:
    return jaxplan.plan(step, *args, topology="h100:8", donate_argnums=(0,), progress=False).fastest()


def sgd(params: jax.Array, batch: Any) -> jax.Array:
    return params - jax.grad(lambda p: jnp.mean((batch["x"] @ p) ** 2))(params)


def test_an_argument_that_nobody_reads_is_compiled_as_it_lies() -> None:
    """Else it would be counted whole on every device."""
    plan = plan_of(sgd, shape(512, 512), {"edges": shape(4096, 64), "x": shape(4096, 512)})
    exported = export.deserialize(bytearray(export_plan(plan)))
    place = next(i for i, path in enumerate(plan.in_paths) if "edges" in path)
    local = plan.input_shardings[place].num_splits(plan.topology.axes)
    assert int(np.prod(local)) == 8
    assert place in exported.module_kept_var_idx
    sizes, names = zip(*((axis.size, axis.name) for axis in plan.topology.axes), strict=True)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(sizes), names)
    sharding = exported.in_shardings_jax(mesh)[place]
    assert sharding is not None and not sharding.is_fully_replicated


@pytest.mark.parametrize("inside_of_a_loop", [False, True])
def test_a_step_that_calls_back_is_refused_with_its_line(inside_of_a_loop: bool) -> None:
    def shown(total: jax.Array) -> jax.Array:
        jax.debug.print("loss {}", jnp.sum(total))
        return total

    def step(params: jax.Array, batch: Any) -> jax.Array:
        new = sgd(params, batch)
        return jax.lax.fori_loop(0, 3, lambda _, p: shown(p), new) if inside_of_a_loop else shown(new)

    plan = plan_of(step, shape(512, 512), {"x": shape(4096, 512)})
    with pytest.raises(jaxplan.JaxplanError, match=r"calls back into Python(.|\n)*test_compile.py"):
        export_plan(plan)
