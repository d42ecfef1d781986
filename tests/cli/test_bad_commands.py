"""Every command with good and bad input: the exit code, one line on stderr, and with `--json` one object on stdout."""

from __future__ import annotations

import json
import logging
import shlex
import textwrap

import pytest

import jaxplan
from jaxplan.cli._main import main
from jaxplan.core._log import shorten_plugin_errors

_STEP = "step.py:step --args step.py:make_args"
_SOURCE = """
    import jax

    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w)

    def other(w, x):
        return w + x.sum()

    def make_args():
        return jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((128, 64), "float32")

    def conflicting():
        return {"pins": {"w": jax.sharding.PartitionSpec("cpu0"), "*w": jax.sharding.PartitionSpec(None, "cpu0")}}
"""
_GOOD = (
    f"plan {_STEP} --topology cpu:4",
    "show f.json",
    "show p.json",
    "explain f.json --choose leanest",
    f"explain f.json w --step {_STEP}",
    "diff f.json",
    f"export f.json --step {_STEP} -o planned.py",
    f"min-devices {_STEP} --topology cpu:4",
    f"scaling {_STEP} --topology cpu:4 --device-counts 1 4",
    f"compare {_STEP} --topologies h100:2 a100:2 --price h100=2.5 a100=1.1",
    f"audit p.json {_STEP}",
    "profile --topology cpu:2 --max-bytes 1KiB --dtypes float32 --output table.json",
    "doctor --topology cpu:4",
    "coverage",
)
_BAD = (
    # command, exit code, the given value, the expected one or the way out
    (f"plan {_STEP} --topology cpu:4 --solver magic", 2, "'magic'", "auto, ft"),
    (f"plan {_STEP} --topology h100", 2, "'h100'", "fix: h100:8"),
    (f"plan {_STEP} --topology f.json", 2, "'f.json'", "jaxplan.topology"),
    (f"plan {_STEP} --topology cpu:4 --memory lots", 2, "'lots'", "'40GiB'"),
    (f"plan {_STEP} --topology cpu:4 --memory 5KiB", 3, "5.00 KiB", "memory"),
    (f"plan {_STEP} --topology cpu:4 --profile none.json", 2, "'none.json'", "jaxplan profile"),
    (f"plan {_STEP} --topology cpu:4 --donate 7", 2, "argument 7", "w, x"),
    (f"plan {_STEP} --topology cpu:4 --static 9", 2, "argument 9", "w, x"),
    (f"plan {_STEP} --topology cpu:4 --time-limit 0", 2, "0.0", "positive number of seconds"),
    (f"plan {_STEP} --topology cpu:4 --microbatches 3", 2, "128 examples", "same number"),
    (f"plan {_STEP} --topology cpu:4 --stages 99", 2, "99 stages", "fix:"),
    (f"plan {_STEP} --topology cpu:4 --trace no/t.json", 2, "'no/t.json'", "existing folder"),
    (f"plan {_STEP} --topology cpu:4 --options step.py:conflicting", 3, "'w'", "pins"),
    ("plan step.py:step --args step.py:none --topology cpu:4", 2, "'none'", "make_args"),
    ("plan step.py:step", 2, "--args", "required"),
    (f"min-devices {_STEP} --topology cpu:4 --solver magic", 2, "'magic'", "auto, ft"),
    (f"min-devices {_STEP} --topology cpu:4 --plan no/p.json", 2, "'no/p.json'", "existing folder"),
    (f"min-devices {_STEP} --topology cpu:4 --memory 5KiB", 3, "5.00 KiB", "memory"),
    (f"scaling {_STEP} --topology cpu:4 --device-counts 3", 2, "3 devices", "1, 2, 4"),
    (f"compare {_STEP}", 2, "--topologies", "required"),
    (f"compare {_STEP} --topologies h100:2 z100:2", 2, "'z100:2'", "did you mean"),
    (f"compare {_STEP} --topologies h100:2 --price h100", 2, "h100", "h100=2.5"),
    (f"compare {_STEP} --topologies h100:2 --price a100=1", 2, "'a100'", "h100"),
    ("show none.json", 2, "'none.json'", "Plan.save"),
    ("show step.py", 2, "'step.py'", "Plan.save"),
    ("show f.json --choose best", 2, "'best'", "'fastest'"),
    ("show f.json --plot x.gif", 2, "'x.gif'", ".svg"),
    ("show p.json --plot x.svg", 2, "p.json", "frontier"),
    ("explain none.json", 2, "'none.json'", "Plan.save"),
    ("explain f.json w", 2, "'w'", "--step"),
    (f"explain f.json nothing --step {_STEP}", 2, "'nothing'", "a path such as"),
    ("explain f.json --step step.py:step", 2, "--step", "--args"),
    ("explain f.json --step step.py:other --args step.py:make_args", 2, "other", "plan"),
    ("explain f.json --step step.py:make_args --args step.py:make_args", 2, "make_args", "expected"),
    ("diff f.json none.json", 2, "'none.json'", "Plan.save"),
    ("diff p.json", 2, "p.json", "second file"),
    (f"export none.json --step {_STEP} -o o.py", 2, "'none.json'", "Plan.save"),
    (f"export f.json --step {_STEP} -o no/o.py", 2, "'no/o.py'", "existing folder"),
    (f"export f.json --step {_STEP} -o o.py --names data", 2, "data", "data=4"),
    (f"audit none.json {_STEP}", 2, "'none.json'", "Plan.save"),
    (f"audit f.json {_STEP} --choose 99", 2, "'99'", "'fastest'"),
    ("audit f.json step.py:none --args step.py:make_args", 2, "'none'", "make_args"),
    ("profile --topology h100", 2, "'h100'", "fix: h100:8"),
    ("profile --topology h100:8", 2, "cpu", "h100"),
    ("profile --topology cpu:3", 2, "cpu:3", "expected"),
    ("profile --topology cpu:8 --dtypes foo", 2, "'foo'", "float32"),
    ("profile --max-bytes lots", 2, "'lots'", "'40GiB'"),
    ("profile --virtual-devices 0", 2, "0", "at least 1"),
    ("doctor --topology none.json", 2, "'none.json'", "Topology.save"),
    ("doctor --output no/d.json", 2, "'no/d.json'", "existing folder"),
    ("coverage --nothing", 2, "--nothing", "unrecognized"),
    ("nothing", 2, "'nothing'", "'plan'"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a step, its frontier f.json and a plan p.json."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "step.py").write_text(textwrap.dedent(_SOURCE))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*f"plan {_STEP} --topology cpu:4 --save f.json --plan p.json".split()]) == 0
    return folder


def _run(command: str) -> int:
    try:
        return main(shlex.split(command))
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code


def _fill_profile(monkeypatch):
    """Measuring takes long and has tests of its own."""
    import jaxplan.mesh.profile as profile

    table = jaxplan.mesh.ProfileTable
    real = profile.measure

    def quick(file, *, settings, **keywords):
        import dataclasses

        small = dataclasses.replace(
            settings, max_bytes=1024, extents=(16,), batch_extents=(16,), sample_seconds=1e-3, num_samples=1
        )
        import jax

        found = real(file, settings=small, **keywords, devices=jax.devices()[:2])
        assert isinstance(found, table)
        return found

    monkeypatch.setattr(profile, "measure", quick)


@pytest.mark.parametrize("command", _GOOD, ids=[" ".join(c.split()[:3]) for c in _GOOD])
def test_good_input_is_done(folder, monkeypatch, capsys, command):
    """Text by default, and with `--json` one object that can be read."""
    monkeypatch.chdir(folder)
    if command.startswith("profile"):
        _fill_profile(monkeypatch)
    done = (0, 4) if command.startswith("audit") else (0,)  # the compiled program may differ from the prediction
    assert _run(command) in done
    assert capsys.readouterr().out.strip()
    assert _run(f"{command} --json") in done
    assert "error" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("command", "code", "given", "expected"), _BAD, ids=[c for c, *_ in _BAD])
def test_bad_input_is_one_line_and_one_object(folder, monkeypatch, capsys, command, code, given, expected):
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert _run(command) == code
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert not out and "error: " in last and given in last and expected in last
    assert "Traceback" not in err and "(--debug shows where)" not in err
    assert _run(f"{command} --json") == code
    found = json.loads(capsys.readouterr().out)["error"]
    assert found["exit_code"] == code and found["type"] and given in json.dumps(found)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_the_parts_of_an_error_have_names(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert _run("show none.json --json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "PlanFileError" and error["likely_cause"] == "the path"
    assert {"message", "expected", "fix"} <= set(error)


def test_too_little_memory_has_its_figures(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert _run(f"plan {_STEP} --topology cpu:4 --memory 5KiB --json") == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["smallest_memory_bytes"] > 5 * 1024 and sum(error["memory_parts"].values()) > 0


def test_a_fault_of_the_step_is_no_wrong_usage(folder, monkeypatch, capsys):
    (folder / "faulty.py").write_text("def step(w, x):\n    return w @ x.T @ x @ x\n")
    monkeypatch.chdir(folder)
    assert _run("plan faulty.py:step --args step.py:make_args --topology cpu:4 --json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["type"] == "TraceError" and "faulty.py:2" in err


def test_a_plugin_without_its_device_is_one_line(capsys):
    """As JAX logs it where the GPU plugin is installed and no GPU is there, with a traceback."""
    logger = logging.getLogger("jax._src.xla_bridge")
    filters = list(logger.filters)
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    try:
        shorten_plugin_errors()
        try:
            raise RuntimeError("Unable to load CUDA. Is it installed?")
        except RuntimeError:
            logger.exception("Jax plugin configuration error: Exception when calling %s.initialize()", "some_plugin")
    finally:
        logger.removeHandler(handler)
        logger.filters[:] = filters
    err = capsys.readouterr().err
    assert "some_plugin: RuntimeError: Unable to load CUDA" in err
    assert "Traceback" not in err and len(err.splitlines()) == 1
