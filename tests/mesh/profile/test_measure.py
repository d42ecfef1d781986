"""Measuring eight virtual CPU devices: the measured figures, and that an interruption loses nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxplan.mesh.profile
from jaxplan import ArgumentError, ProfileError
from jaxplan.mesh import COLLECTIVES, Topology
from jaxplan.mesh.profile import Settings, _measure
from jaxplan.mesh.profile._journal import Journal
from jaxplan.mesh.profile._programs import group_axes, program
from jaxplan.mesh.profile._timing import seconds_per_operation

CPU = Topology.parse("cpu:8")
QUICK = Settings(
    min_bytes=1 << 10, max_bytes=1 << 10, dtypes=("float32",), extents=(16,), batch=2, batch_extents=(16,),
    sample_seconds=1e-4, num_samples=1,
)  # fmt: skip


@pytest.fixture
def clockless(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Measurements that take no time: key k takes 1 + k microseconds; returns the keys as they are measured."""
    measured: list[Any] = []

    def timed(compiled: Any, *_: Any) -> float:
        measured.append(compiled)
        return 1e-6 * len(measured)

    monkeypatch.setattr(_measure, "program", lambda key, *_: (key, (), 1))
    monkeypatch.setattr(_measure, "seconds_per_operation", timed)
    return measured


def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("cpu0", "cpu1", "cpu2"))


@pytest.mark.parametrize(
    ("key", "operator", "shape"),
    [
        (("collective", "all-gather", (4,), 4096), "all-gather", "f32[1024]"),
        (("collective", "all-reduce", (2,), 4096), "all-reduce", "f32[1024]"),
        (("collective", "all-to-all", (8,), 4096), "all-to-all", "f32[128]"),
        (("collective", "collective-permute", (8,), 4096), "collective-permute", "f32[1024]"),
        (("matmul", "bfloat16", 1, 16, 64, 32), "dot", "[16,32]"),
        (("memory", 4096), "multiply", "f32[512]"),
    ],
)
def test_the_program_runs_the_operation_on_the_bytes_that_it_names(
    key: Any, operator: str, shape: str
) -> None:
    """4096 bytes a device: the result of a gather, the operand of the others, is read and written in a pass."""
    compiled, arrays, unroll = program(key, CPU, _mesh())
    lines = [line for line in compiled.as_text().splitlines() if f" {operator}" in line and " = " in line]
    assert any(shape in line for line in lines), compiled.as_text()
    assert unroll == 1 and all(len(a.sharding.device_set) == 8 for a in arrays)
    assert seconds_per_operation(compiled, arrays, unroll, QUICK) > 0


_COMPILE_FOR_GPU = """
import collections, re
import numpy as np
from jax.sharding import Mesh
from jaxplan.mesh import COLLECTIVES, Topology
from jaxplan.mesh.profile._programs import lower
t = Topology.parse("h100:8")
mesh = Mesh(np.array(t.aot_devices()).reshape([a.size for a in t.axes]), [a.name for a in t.axes])
for key in [*(("collective", kind, (4,), 4096) for kind in COLLECTIVES), ("matmul", "bfloat16", 1, 256, 256, 256)]:
    lowered, _, unroll = lower(key, t, mesh)
    text = lowered.compile().as_text()
    found = re.findall(r" ([a-z-]*(?:gather|reduce|scatter|all|permute|call))(?:-start)?[(]", text)
    print(key[1], unroll, {k: n for k, n in collections.Counter(found).items() if k != "call"})
"""


@pytest.mark.slow
@pytest.mark.gpu_aot
def test_on_a_gpu_a_round_has_sixteen_operations_and_no_other_collective() -> None:
    environment = os.environ | Topology.parse("h100:8").aot_environment()
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    )
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE_FOR_GPU], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = [f"{kind} 16 {{'{kind}': 16}}" for kind in COLLECTIVES] + ["bfloat16 16 {'custom-call': 16}"]
    assert done.stdout.splitlines() == expected


def test_groups_are_made_of_the_innermost_axes() -> None:
    assert group_axes(CPU, (2,)) == ("cpu2",)
    assert group_axes(CPU, (4,)) == ("cpu1", "cpu2")
    assert group_axes(Topology.parse("h100:2x6"), (2, 3)) == ("node", "gpu0")
    assert group_axes(Topology.parse("h100:2x6"), (1, 6)) == ("gpu0", "gpu1")


def test_everything_is_measured_once_and_written(tmp_path: Path, clockless: list[Any]) -> None:
    file = tmp_path / "table.json"
    reported: list[tuple[str, float]] = []
    table = jaxplan.mesh.profile.measure(
        file, settings=QUICK, progress=lambda stage, done: reported.append((stage, done))
    )
    assert {key[:3] for key in clockless if key[0] == "collective"} == {
        ("collective", kind, shape) for kind in COLLECTIVES for shape in ((2,), (4,), (8,))
    }
    assert len(clockless) == len(set(clockless)) == 15 + 2 + 1
    assert {stage for stage, _ in reported} == {"collectives", "matrix products", "memory"}
    assert jaxplan.mesh.profile.load(file) == table and not (tmp_path / "table.json.partial").exists()
    assert CPU.with_profile(file).profile == table
    # A second run has nothing left to do; one that wants more measures the missing ones.
    assert jaxplan.mesh.profile.measure(file, settings=QUICK, progress=False) == table
    assert len(clockless) == 18
    jaxplan.mesh.profile.measure(file, settings=dataclasses.replace(QUICK, max_bytes=1 << 11), progress=False)
    assert len(clockless) == 18 + 15 + 1


def test_an_interruption_loses_nothing(
    tmp_path: Path, clockless: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, timed = tmp_path / "table.json", _measure.seconds_per_operation

    def interrupted(*args: Any) -> float:
        if len(clockless) == 7:
            raise KeyboardInterrupt
        return timed(*args)

    monkeypatch.setattr(_measure, "seconds_per_operation", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jaxplan.mesh.profile.measure(file, settings=QUICK, progress=False)
    assert not file.exists()
    # A power failure in the middle of a line: that one line is measured again, and no other.
    partial = tmp_path / "table.json.partial"
    partial.write_text(partial.read_text()[:-9])
    monkeypatch.setattr(_measure, "seconds_per_operation", timed)
    table = jaxplan.mesh.profile.measure(file, settings=QUICK, progress=False)
    assert len(clockless) == 18 + 1 and clockless.count(clockless[6]) == 2
    seconds = dict(table.entries)
    assert [seconds[key] for key in clockless[:6]] == pytest.approx([1e-6 * (i + 1) for i in range(6)])
    assert len(table.entries) == 18 and not partial.exists()


@pytest.mark.parametrize("interrupted", [False, True])
def test_another_machine_is_refused_with_the_difference(
    tmp_path: Path, clockless: list[Any], interrupted: bool
) -> None:
    file = tmp_path / "table.json"
    jaxplan.mesh.profile.measure(file, settings=QUICK, progress=False)
    body = json.loads(file.read_text())
    if interrupted:
        head = {"schema": "jaxplan.mesh.profile-journal", "version": 1, "topology": "cpu:8"}
        file.unlink()
        file = tmp_path / "table.json.partial"
        body = {**head, "machine": {**body["machine"], "jaxlib": "0.0.1"}}
    else:
        body["machine"]["jaxlib"] = "0.0.1"
    file.write_text(json.dumps(body) + "\n")
    with pytest.raises(ProfileError, match=r"jaxlib is '0.0.1', not '[0-9.]+'"):
        jaxplan.mesh.profile.measure(tmp_path / "table.json", settings=QUICK, progress=False)


def test_a_journal_without_a_whole_first_line_is_begun_again(tmp_path: Path, clockless: list[Any]) -> None:
    (tmp_path / "table.json.partial").write_text('{"schema": "jaxplan.pro')
    assert len(jaxplan.mesh.profile.measure(tmp_path / "table.json", settings=QUICK, progress=False).entries) == 18


def test_operations_slower_than_larger_ones_are_measured_again(
    clockless: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 4 KiB reduction is disturbed at first, and the small product against one larger in every extent."""
    settings = dataclasses.replace(QUICK, max_bytes=1 << 14, extents=(16, 64))
    victims = [("collective", "all-reduce", (4,), 4096), ("matmul", "float32", 1, 16, 16, 16)]
    seen: list[Any] = []

    def timed(key: Any, *_: Any) -> float:
        seen.append(key)
        return 1e-3 if key in victims and seen.count(key) < 2 else 1e-5

    monkeypatch.setattr(_measure, "seconds_per_operation", timed)
    table = jaxplan.mesh.profile.measure(settings=settings, progress=False)
    assert sorted(set(seen), key=repr) == sorted((key for key, _ in table.entries), key=repr)
    assert [key for key in victims if seen.count(key) == 2] == victims and len(seen) == len(set(seen)) + 2
    assert set(dict(table.entries).values()) == {1e-5}


def test_dots_that_would_take_too_long_are_left_out(clockless: list[Any]) -> None:
    """Each takes microseconds here, and 256 times as much work more than a millisecond."""
    settings = dataclasses.replace(QUICK, extents=(16, 4096), longest_seconds=1e-3)
    table = jaxplan.mesh.profile.measure(settings=settings, progress=False)
    shapes = {key[3:] for key, _ in table.entries if key[0] == "matmul" and key[2] == 1}
    assert (16, 16, 16) in shapes and (4096, 4096, 4096) not in shapes


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="power of two"):
        Settings(max_bytes=1000)
    with pytest.raises(ArgumentError, match="above max_bytes"):
        Settings(min_bytes=1 << 20, max_bytes=1 << 10)
    with pytest.raises(ProfileError, match="cpu:4 has 4 devices, and 8 are there"):
        jaxplan.mesh.profile.measure(topology="cpu:4")


def test_a_journal_that_is_not_written_keeps_everything_in_memory() -> None:
    machine = jaxplan.mesh.profile.Machine.present()
    with Journal(None, machine, "cpu:8") as journal:
        journal.add(("memory", 1024), 1e-6)
        journal.add(("matmul", "float32", 1, 16, 16, 16), 1e-6)
        table = journal.finish()
    assert table.machine == machine and len(table.entries) == 2
