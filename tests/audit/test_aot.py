"""Compiling for machines that are not here, in a child process: virtual CPU devices, and GPUs without one."""

import importlib.util
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxplan import AuditError, MissingExtraError
from jaxplan.audit._aot import CompiledReport, compile_exported, require_plugin
from jaxplan.mesh import Topology

AXES = ("a", "b", "c")
MESH = [(name, 2) for name in AXES]
ALL = P(AXES)
WIDTH, HIDDEN, BATCH = 512, 1024, 64


def _fsdp_step(mesh):
    """A linear layer split over every device: gathered in bf16, its gradient scattered, updated in place."""

    def manual(function, in_specs, out_specs):
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def step(w, x):
        gather = manual(lambda v: lax.all_gather(v.astype(jnp.bfloat16), AXES, tiled=True), ALL, P())
        scatter = manual(lambda x, y: lax.psum_scatter(x.T @ y, AXES, tiled=True), (ALL, ALL), ALL)
        y = lax.with_sharding_constraint(x @ gather(w), NamedSharding(mesh, ALL))
        return w - 0.1 * scatter(x, y).astype(jnp.float32)

    sharding = NamedSharding(mesh, ALL)
    return jax.jit(step, in_shardings=(sharding, sharding), out_shardings=sharding, donate_argnums=0)


ARGUMENTS = (
    jax.ShapeDtypeStruct((WIDTH, HIDDEN), jnp.float32),
    jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16),
)


def _export(platform: str) -> bytes:
    mesh = AbstractMesh((2, 2, 2), AXES, axis_types=(AxisType.Auto,) * 3)
    return bytes(export.export(_fsdp_step(mesh), platforms=[platform])(*ARGUMENTS).serialize())


@pytest.fixture(scope="module")
def cpu_program() -> bytes:
    return _export("cpu")


@pytest.fixture(scope="module")
def cpu_report(cpu_program, tmp_path_factory) -> tuple[CompiledReport, str]:
    cache = str(tmp_path_factory.mktemp("cache"))
    topology = Topology.parse("cpu:8")
    return compile_exported(cpu_program, topology, donate_argnums=(0,), cache_dir=cache, mesh_axes=MESH), cache


def test_the_child_compiles_what_this_process_would(cpu_report) -> None:
    report, _ = cpu_report
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 2, 2), AXES)
    here = _fsdp_step(mesh).lower(*ARGUMENTS).compile().memory_analysis()
    assert report.platform == "cpu"
    assert report.memory.argument_bytes == here.argument_size_in_bytes
    assert report.memory.alias_bytes == here.alias_size_in_bytes == WIDTH * HIDDEN * 4 // 8
    assert report.memory.temp_bytes == pytest.approx(here.temp_size_in_bytes, rel=0.1)


def test_the_report_of_a_hand_written_program(cpu_report) -> None:
    report, _ = cpu_report
    kinds = {c.kind: c for c in report.collectives}
    assert kinds["all-gather"].group_size == 8
    assert "reduce-scatter" in kinds
    assert report.flops == 2 * (2 * BATCH * WIDTH * HIDDEN // 8)  # forward and gradient, batch split over 8
    assert (report.rematerialised, report.uncounted_calls, report.unknown_loops) == (False, (), ())


def test_the_cache_answers_without_compiling(cpu_program, cpu_report, monkeypatch) -> None:
    report, cache = cpu_report

    def refuse(*_, **__):
        raise AssertionError("compiled again")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    arguments = {"donate_argnums": (0,), "cache_dir": cache, "mesh_axes": MESH}
    assert compile_exported(cpu_program, Topology.parse("cpu:8"), **arguments) == report
    with pytest.raises(AssertionError, match="compiled again"):
        compile_exported(
            _export("cpu"), Topology.parse("cpu:8"), cache_dir=cache, mesh_axes=MESH
        )  # nothing donated: another program


def test_a_program_for_another_platform_is_an_error(cpu_program) -> None:
    with pytest.raises(AuditError, match=r"exported for 'cpu'.*h100:8 compiles for 'cuda'"):
        compile_exported(cpu_program, Topology.parse("h100:8"))


def test_a_mesh_of_another_size_is_an_error(cpu_program) -> None:
    with pytest.raises(AuditError, match=r"4 devices; cpu:8 has 8"):
        compile_exported(cpu_program, Topology.parse("cpu:8"), mesh_axes=MESH[:2])


def test_a_missing_plugin_names_the_extra(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'jaxplan\[gpu-aot\]'"):
        require_plugin("cuda")
    with pytest.raises(MissingExtraError, match=r"jaxplan\[tpu-aot\]"):
        require_plugin("tpu")
    require_plugin("cpu")


@pytest.fixture
def gpu_plugin() -> None:
    try:
        require_plugin("cuda")
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.mark.gpu_aot
@pytest.mark.usefixtures("gpu_plugin")
def test_a_program_that_the_compiler_recomputes_is_flagged() -> None:
    """Six saved activations of 16 GiB on a device of 80 GB: cheap ones are computed twice, with a warning."""

    def step(x, w):
        saved, h = [], x
        for _ in range(6):
            saved.append(jnp.sin(h))
            h = saved[-1] @ w
        for y in reversed(saved):
            h = (h * y) @ w
        return h.sum()

    shapes = [jax.ShapeDtypeStruct((rows, 2**16), jnp.bfloat16) for rows in (2**17, 2**16)]
    program = bytes(export.export(jax.jit(step), platforms=["cuda"])(*shapes).serialize())
    report = compile_exported(program, Topology.parse("h100:1"))
    assert report.rematerialised
    assert any("by rematerialization" in warning for warning in report.warnings)
    assert report.memory_bytes > 80e9  # the compiler does not refuse it
    assert report.collectives == ()
    assert report.flops == 12 * 2 * 2**17 * 2**16 * 2**16


@pytest.mark.gpu_aot
@pytest.mark.usefixtures("gpu_plugin")
def test_a_gpu_program_without_a_gpu() -> None:
    report = compile_exported(_export("cuda"), Topology.parse("h100:8"), donate_argnums=(0,), mesh_axes=MESH)
    assert report.memory.argument_bytes == WIDTH * HIDDEN * 4 // 8 + BATCH * WIDTH * 2 // 8
    assert report.memory.alias_bytes == WIDTH * HIDDEN * 4 // 8
    # the weight gathered in bf16 and its gradient scattered in bf16, each once, over all eight devices
    assert sorted((c.kind, c.group_size, c.num_bytes) for c in report.collectives) == [
        ("all-gather", 8, WIDTH * HIDDEN * 2),
        ("reduce-scatter", 8, WIDTH * HIDDEN * 2),
    ]
    assert report.flops_by_dtype == (("bf16", 2 * (2 * BATCH * WIDTH * HIDDEN // 8)),)
