"""`jaxplan doctor`: a report on this machine, complete where all is well and where something fails."""

from __future__ import annotations

import json

import jax
import pytest

from jaxplan.cli import _doctor
from jaxplan.cli._main import main


def test_the_report_says_what_runs_here(tmp_path, capsys):
    file = tmp_path / "doctor.json"
    assert main(["doctor", "--output", str(file), "--topology", "cpu:4"]) == 0
    report = json.loads(file.read_text())
    assert report["packages"]["jax"] == jax.__version__
    assert report["devices"][0]["count"] == len(jax.devices()) and report["devices"][0]["platform"] == "cpu"
    assert report["topology"]["name"] == "cpu:4" and report["topology"]["links"][0]["size"] == 4
    run = report["run"]
    assert run["relative_difference"] < 1e-3 and run["measured_seconds"] > 0
    assert run["compiled_bytes"] == pytest.approx(run["predicted_bytes"], rel=0.25)
    printed = capsys.readouterr().out
    assert "all is well" in printed and f"jax {jax.__version__}" in printed


def test_what_fails_is_a_problem_of_the_report(capsys, monkeypatch):
    def fail(topology):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(_doctor, "_run", fail)
    assert main(["doctor", "--json", "--topology", "cpu:2"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == ["a small plan: RuntimeError: no such kernel"]
    assert report["run"] is None and report["topology"]["name"] == "cpu:2"


def test_a_misspelt_topology_is_wrong_usage_and_no_problem_of_the_machine(capsys):
    assert main(["doctor", "--topology", "h1000:8"]) == 2
    printed = capsys.readouterr()
    assert not printed.out and "h1000:8" in printed.err and "h100" in printed.err


def test_other_devices_than_those_of_the_topology_are_said(capsys):
    """A plan for H100s runs on the CPU devices of a test, and its times are not compared with theirs."""
    assert main(["doctor", "--topology", "h100:4"]) == 0
    printed = capsys.readouterr().out
    assert "not those of h100:4" in printed and "all is well" not in printed
    assert main(["doctor", "--topology", "h100:4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["other_devices"] == ["cpu"]


def test_files_and_counts_that_cannot_be_are_refused(capsys):
    assert main(["doctor", "--output", "no/such/folder/f.json"]) != 0
    assert "cannot write" in capsys.readouterr().err
    assert main(["doctor", "--virtual-devices", "0"]) == 2
    assert "expected at least 1" in capsys.readouterr().err
