"""`jaxplan profile`, and `jaxplan plan --profile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxplan.cli import _main as _cli
from jaxplan.mesh.profile import _measure, load


@pytest.fixture(autouse=True)
def clockless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every measurement is of ten microseconds, and the working directory is empty."""
    monkeypatch.setattr(_measure, "program", lambda key, *_: (key, (), 1))
    monkeypatch.setattr(_measure, "seconds_per_operation", lambda *_: 1e-5)
    monkeypatch.chdir(tmp_path)


def test_profile_writes_a_table_that_plan_reads(tmp_path: Path, capsys: Any) -> None:
    assert _cli.main(["profile", "--max-bytes", "4KiB", "--dtypes", "float32"]) == 0
    out = capsys.readouterr().out
    table = load(tmp_path / "profile-cpu-8.json")
    assert {key[1] for key, _ in table.entries if key[0] == "matmul"} == {"float32"}
    assert {key[3] for key, _ in table.entries if key[0] == "collective"} == {1024, 2048, 4096}
    assert "written to profile-cpu-8.json" in out
    assert "all-reduce         in groups of 8" in out and "0.41 GB/s for 4.00 KiB" in out
    (tmp_path / "step.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def step(x): return x @ x\n"
        "def args(): return jax.ShapeDtypeStruct((64, 64), jnp.float32)\n"
    )
    command = ["plan", "step.py:step", "--args", "step.py:args", "--memory", "1GiB"]
    assert _cli.main([*command, "--profile", "profile-cpu-8.json", "--save", "frontier.json"]) == 0
    saved = json.loads((tmp_path / "frontier.json").read_text())
    assert "jaxplan.mesh.profile" in json.dumps(saved)
    assert _cli.main([*command, "--topology", "cpu:4", "--profile", "profile-cpu-8.json"]) == 2
    assert "topology is 'cpu:8', not 'cpu:4'" in capsys.readouterr().err


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    def interrupted(*_: Any) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(_measure, "seconds_per_operation", interrupted)
    assert _cli.main(["profile", "--output", "here.json"]) == 130
    assert "in here.json.partial; run it again" in capsys.readouterr().err
    assert (tmp_path / "here.json.partial").exists()


@pytest.mark.parametrize(
    "wrong", [["--max-bytes", "many"], ["--virtual-devices", "0"], ["--topology", "cpu:3"]]
)
def test_wrong_usage(wrong: list[str], capsys: Any) -> None:
    assert _cli.main(["profile", *wrong]) == 2
    assert "jaxplan: error:" in capsys.readouterr().err
