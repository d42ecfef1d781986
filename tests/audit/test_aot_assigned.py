"""Programs read before their code is generated: texts written by hand, and the TPU compiler's own figures."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import export

from jaxplan.audit._aot import CompiledReport, compile_exported
from jaxplan.audit._aot_assigned import Assigned, assigned_memory, assigned_or_compiled, read_assigned
from jaxplan.mesh import Topology

ASSIGNMENT = """BufferAssignment:
allocation 0: size 512, thread-local:
 value: <2 add.2 @0> (size=512,offset=0): f32[]{:T(128)}
allocation 1: size 4096, parameter 1, shape |f32[8,128]| at ShapeIndex {}:
 value: <9 x @0> (size=4096,offset=0): f32[8,128]{1,0:T(8,128)}
allocation 2: size 8192, parameter 0, shape |f32[16,128]| at ShapeIndex {}, maybe-live-out:
allocation 3: size 1024, output shape is |(f32[16,128], f32[])|, maybe-live-out:
allocation 4: size 512, constant:
allocation 5: size 65536, color 1, preallocated-temp:
allocation 6: size 30000, preallocated-temp:
"""
MEMORY = {"argument_bytes": 12288, "output_bytes": 9216, "alias_bytes": 8192, "temp_bytes": 30000}
COMPILE_WHOLE = """
import json, sys, jax, jax.numpy as jnp
from jaxplan.mesh import Topology
from tests.audit.test_aot_assigned import ARGUMENTS, step
device = jax.sharding.SingleDeviceSharding(Topology.parse(sys.argv[1]).aot_devices()[0])
arguments = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=device) for a in ARGUMENTS]
memory = jax.jit(step, donate_argnums=0).lower(*arguments).compile().memory_analysis()
names = ("argument", "output", "alias", "temp")
print(json.dumps({f"{name}_bytes": getattr(memory, f"{name}_size_in_bytes") for name in names}))
"""
# Larger than the memory beside its arithmetic units: the dot is written to main memory.
ARGUMENTS = (
    jax.ShapeDtypeStruct((16384, 8192), jnp.bfloat16),
    jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16),
)


def step(x, w):
    h = x @ w
    return (x + h @ w).astype(x.dtype), (h * h).sum()


def _write(folder: Path, *, finished: bool) -> None:
    (folder / "m.after_optimizations.txt").write_text("HloModule m")
    (folder / "m.after_optimizations-buffer-assignment.txt").write_text(ASSIGNMENT)
    if finished:
        (folder / "m.after_optimizations_after_buffer_assignment.txt").write_text("")


def test_only_main_memory_counts() -> None:
    assert assigned_memory(ASSIGNMENT) == MEMORY


def test_nothing_is_read_before_all_of_it_is_written(tmp_path) -> None:
    assert read_assigned(tmp_path, "tpu") is None
    _write(tmp_path, finished=False)
    assert read_assigned(tmp_path, "tpu") is None
    assert read_assigned(tmp_path, "cuda") is None
    _write(tmp_path, finished=True)
    assert read_assigned(tmp_path, "tpu") == Assigned(hlo_text="HloModule m", memory=MEMORY)


def test_a_compilation_is_left_when_its_buffers_are_known(tmp_path) -> None:
    released = threading.Event()

    def compile_fn() -> str:
        _write(tmp_path, finished=True)
        released.wait(60)
        return "code"

    found = assigned_or_compiled(compile_fn, tmp_path, "tpu")
    released.set()
    assert isinstance(found, Assigned)


def test_what_is_written_counts_where_the_compiler_is_finished_too(tmp_path) -> None:
    assert isinstance(assigned_or_compiled(lambda: _write(tmp_path, finished=True), tmp_path, "tpu"), Assigned)


def test_a_compiler_that_writes_nothing_is_waited_for(tmp_path) -> None:
    assert assigned_or_compiled(lambda: "code", tmp_path, "tpu") == "code"
    with pytest.raises(ZeroDivisionError):
        assigned_or_compiled(lambda: 1 // 0, tmp_path, "cuda")


def _both(name: str, platform: str) -> tuple[CompiledReport, dict[str, int]]:
    """The report of the step on one device of a topology, and the figures of the program compiled to its end."""
    topology = Topology.parse(name)
    exported = export.export(jax.jit(step), platforms=[platform])(*ARGUMENTS)
    report = compile_exported(bytes(exported.serialize()), topology, donate_argnums=(0,))
    ours = Path(__file__).parents[2]
    whole = subprocess.run(
        [sys.executable, "-c", COMPILE_WHOLE, name], capture_output=True, text=True, check=True, cwd=ours,
        env={"PATH": "", "PYTHONPATH": str(ours), "HOME": str(Path.home()), **topology.aot_environment()},
    )  # fmt: skip
    assert report.compile_seconds > 0
    assert report.flops == 2 * (2 * 16384 * 8192 * 8192)
    return report, json.loads(whole.stdout)


@pytest.mark.slow
@pytest.mark.tpu_aot
def test_the_figures_are_those_of_the_whole_compilation() -> None:
    report, memory = _both("v5e:2x4", "tpu")
    found = {name: getattr(report.memory, name) for name in memory}
    temp, compiled = found.pop("temp_bytes"), memory.pop("temp_bytes")
    assert found == memory
    assert temp == pytest.approx(compiled, rel=0.05)  # the compiler adds the gaps between its buffers twice
    assert temp >= 16384 * 8192 * 2


@pytest.mark.gpu_aot
def test_on_gpus_they_are_so_to_the_byte() -> None:
    report, memory = _both("h100:8", "cuda")
    assert {name: getattr(report.memory, name) for name in memory} == memory
    assert memory["temp_bytes"] >= 16384 * 8192 * 2
