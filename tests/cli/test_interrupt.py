"""Ctrl-C in the shell: the command ends soon, without a traceback, and results so far are in the files asked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.core import _interrupt
from jaxplan.core._interrupt import Interruption, interruptible
from jaxplan.core._log import until_interrupted

MODULE = """
    import jax, jax.numpy as jnp

    def step(weights, x):
        def loss(weights):
            for w in weights:
                x_ = jnp.tanh(x @ w)
            return jnp.mean(x_**2)
        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

    def args():
        shape = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32)
        return [shape(64, 64)] * 3, shape(32, 64)
"""

# Runs the command and sends itself SIGINT at the n-th report of a stage, as a person at the keyboard would.
DRIVER = """
    import os, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests may run in the background, where it is ignored
    from jaxplan.core import _progress
    from jaxplan.__main__ import main

    stage, number, stuck = sys.argv.pop(1), int(sys.argv.pop(1)), sys.argv.pop(1)
    report = _progress.Progress.__call__

    def interrupting(self, name, fraction=0.0):
        global number
        if name == stage:
            number -= 1
            if number == 0:
                print("pressed", time.time(), flush=True)
                os.kill(os.getpid(), signal.SIGINT)
                if stuck == "stuck":  # as in a library that answers nothing
                    until = time.time() + 20
                    while time.time() < until:
                        try:
                            time.sleep(20)
                        except KeyboardInterrupt:
                            pass
        report(self, name, fraction)

    _progress.Progress.__call__ = interrupting
    sys.exit(main())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupts")
    (folder / "train.py").write_text(textwrap.dedent(MODULE))
    (folder / "driver.py").write_text(textwrap.dedent(DRIVER))
    return folder


def run(folder: Path, stage: str, number: int, command: str, *, stuck: bool = False) -> tuple[int, float, str]:
    """Exit status, seconds from the interrupt to the end, and the output."""
    for name in ("f.json", "p.json"):
        (folder / name).unlink(missing_ok=True)
    root = Path(jaxplan.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "driver.py", stage, str(number), "stuck" if stuck else "free", *command.split()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    text, _ = process.communicate(timeout=120)
    ended = time.time()
    pressed = [float(line.split()[1]) for line in text.splitlines() if line.startswith("pressed")]
    return process.returncode, ended - pressed[0] if pressed else 0.0, text


PLAN = "plan train.py:step --args train.py:args --topology h100:2x2 --save f.json --plan p.json"
SECONDS = 5.0
"""Far above the second that is promised: other work may run on this machine."""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("stage", "number", "options", "saved"),
    [
        ("trace", 1, "", False),
        ("costs", 1, "", False),
        ("solve", 1, "", True),
        ("score", 9, "--remat", True),
    ],
)
def test_each_stage_ends_and_what_was_found_is_saved(
    stage: str, number: int, options: str, saved: bool, folder: Path
) -> None:
    status, seconds, text = run(folder, stage, number, f"{PLAN} {options}")
    assert status == 130, text
    assert seconds < SECONDS
    assert "Traceback" not in text and "interrupted" in text
    assert (folder / "f.json").exists() == (folder / "p.json").exists() == saved, text
    if saved:
        frontier = jaxplan.load(folder / "f.json")
        assert isinstance(frontier, jaxplan.Frontier) and len(frontier) >= 1
        assert any("interrupted" in note for note in frontier.notes)
        assert json.loads((folder / "p.json").read_text())["schema"] == "jaxplan.plan"
        assert "what was asked for is written" in text


def test_a_stage_that_does_not_answer_is_ended_with_what_was_known(folder: Path) -> None:
    status, seconds, text = run(folder, "solve", 1, PLAN, stuck=True)
    assert status == 130 and seconds < SECONDS, text
    assert "Traceback" not in text and "what was asked for is written" in text
    frontier = jaxplan.load(folder / "f.json")
    assert isinstance(frontier, jaxplan.Frontier)
    assert {plan.name for plan in frontier} <= {"data", "zero1", "zero2", "fsdp", "hybrid_fsdp", "megatron"} | {
        plan.name for plan in frontier if plan.name.startswith("data")
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("command", "stage"),
    [
        ("min-devices train.py:step --args train.py:args --topology h100:4 --memory 1GiB --plan p.json", "solve on 1"),
        ("scaling train.py:step --args train.py:args --topology h100:4", "solve on 2"),
    ],
)
def test_other_commands_end_too(command: str, stage: str, folder: Path) -> None:
    status, seconds, text = run(folder, stage, 1, command)
    assert status == 130 and seconds < SECONDS, text
    assert "Traceback" not in text


def test_verification_ends_with_its_compilers(folder: Path, tmp_path: Path) -> None:
    status, seconds, text = run(folder, "verify", 1, f"{PLAN.replace('h100:2x2', 'cpu:4')} --verify")
    assert status == 130 and seconds < SECONDS, text
    assert "Traceback" not in text and (folder / "f.json").exists()


# the parts

SHAPES: list[Any] = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (32, 64))]


def step(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


def test_a_second_interrupt_ends_the_search() -> None:
    with interruptible() as interruption:
        with until_interrupted("one stage"):
            raise KeyboardInterrupt
        assert interruption.happened
        with until_interrupted("what follows, at its first report"):
            interruption.check()
        with pytest.raises(KeyboardInterrupt), until_interrupted("another stage"):
            raise KeyboardInterrupt
    assert not _interrupt.current().happened


def test_an_interrupt_leaves_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    interruption, now = Interruption(), [100.0]
    monkeypatch.setattr(_interrupt.time, "monotonic", lambda: now[0])
    assert interruption.time_is_left
    interruption.mark()
    assert interruption.time_is_left
    now[0] += 1.0
    interruption.mark()
    assert not interruption.time_is_left


@pytest.mark.parametrize(("stage", "number"), [("solve", 1), ("solve", 2), ("score", 2), ("score", 4), ("remat", 1)])
def test_a_search_in_python_returns_what_it_has(
    stage: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """At least the reference strategies: their plans are known first."""
    reports = []

    def progress(name: str, fraction: float) -> None:
        reports.append(name)
        if name == stage and reports.count(name) == number:
            raise KeyboardInterrupt

    frontier = jaxplan.plan(step, *SHAPES, topology="h100:4", progress=progress, remat=True)
    assert any("interrupted" in note for note in frontier.notes)
    (message,) = [m for m in caplog.messages if "interrupted" in m]
    assert "ends here, and what was found so far is the answer" in message
    whole = jaxplan.plan(step, *SHAPES, topology="h100:4", progress=False)
    assert not any("interrupted" in note for note in whole.notes)
    assert {name: p.configurations for name, p in frontier.references.items()} == {
        name: p.configurations for name, p in whole.references.items()
    }
    best = min(frontier.references.values(), key=lambda plan: plan.time_seconds)
    assert whole.fastest().time_seconds <= frontier.fastest().time_seconds <= best.time_seconds


@pytest.mark.parametrize("stage", ["trace", "groups", "costs"])
def test_before_any_plan_is_known_the_interrupt_is_the_callers(stage: str) -> None:
    def progress(name: str, fraction: float) -> None:
        if name == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jaxplan.plan(step, *SHAPES, topology="h100:4", progress=progress)


def test_signals_are_as_before_when_a_command_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    from jaxplan.cli import _main as _cli

    before = signal.getsignal(signal.SIGINT)
    assert _cli.main(["show", "missing.json"]) == 2
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1
