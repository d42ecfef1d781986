"""Every plan that is offered lowers and computes the step: a small sample of `python -m benchmarks.lowering`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import optax.contrib
import pytest

from benchmarks.lowering import _offered, _optimizers
from benchmarks.lowering._limits import small_limits
from benchmarks.lowering._subjects import STEPS, subject_of
from jaxplan.cost import _gradient_barriers
from jaxplan.partition import PlannedFunction
from tests.fuzz._check import Subject
from tests.sampling import sampled

ROOT = Path(__file__).parents[2]


def test_every_gradient_transformation_of_optax_is_built() -> None:
    """One that a new version brings and that the tables cannot build fails here."""
    found = _optimizers.constructors()
    assert len(found) >= 120
    for name in ("optax.adamw", "optax.lookahead", "optax.MultiSteps", "optax.contrib.dog", "optax.contrib.sam"):
        assert name in found
    assert {optax.sgd, optax.contrib.prodigy, optax.contrib.schedule_free} <= set(found.values())
    for constructor in found.values():
        assert isinstance(_optimizers.built(constructor), optax.GradientTransformation)


def test_an_unknown_optimizer_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(learning_rate: float, surprise: float) -> optax.GradientTransformation:
        return optax.sgd(learning_rate * surprise)

    monkeypatch.setattr(optax.contrib, "newest", newest, raising=False)
    assert _optimizers.constructors()["optax.contrib.newest"] is newest
    with pytest.raises(KeyError, match="surprise"):
        _optimizers.built(newest)


def _check(name: str, subject: Subject) -> _offered.Counts:
    counts = _offered.Counts()
    with jax.enable_x64(True):
        _offered.Check(name, subject, 0, 1, counts).run()
    return counts


@pytest.mark.slow
def test_plans_that_fail_are_told_from_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    name, subject = subject_of("step", "anchored", 0, 1)
    good = _check(name, subject)
    assert not good.failures
    assert good.plans >= 5 and good.outcomes == {"equal": 1}

    def lower(self: PlannedFunction, *args: Any) -> None:
        raise StopIteration

    with monkeypatch.context() as patch:
        patch.setattr(PlannedFunction, "lower", lower)
        broken = _check(name, subject)
    assert [failure.fault for failure in broken.failures] == ["does not lower"] * good.plans
    run = PlannedFunction.__call__
    with monkeypatch.context() as patch:
        patch.setattr(PlannedFunction, "__call__", lambda *given: jax.tree.map(lambda x: x + 1, run(*given)))
        wrong = _check(name, subject)
    assert [failure.fault for failure in wrong.failures] == ["runs wrong"]
    assert "1 run wrong" in wrong.summary()


def test_a_step_that_jax_refuses_is_counted_apart() -> None:
    def step(x: jax.Array) -> jax.Array:
        raise ValueError("no step")

    counts = _check("none", Subject(step, (np.ones(4),)))
    assert (counts.subjects, counts.invalid, counts.plans, counts.failures) == (1, 1, 0, [])


def test_small_limits_end_with_the_block() -> None:
    before = _gradient_barriers.LARGE_PARAMETER_BYTES
    with small_limits():
        assert _gradient_barriers.LARGE_PARAMETER_BYTES < 1024
    assert before == _gradient_barriers.LARGE_PARAMETER_BYTES


def test_topologies_of_every_kind_are_met_with_every_option() -> None:
    met = {(turn % len(_offered.TOPOLOGIES), turn % len(_offered._OPTIONS)) for turn in range(70)}
    assert len(met) == 70
    assert {t.partition(":")[0] for t in _offered.TOPOLOGIES} == {"cpu", "h100", "v5e"}


@pytest.mark.parametrize(
    ("programs", "optimizers", "steps"),
    sampled(
        [
            (2, ["prodigy"], ["gan"]),
            (6, ["dog", "prodigy", "lookahead"], ["gan", "anchored", "sharpness_aware", "target_network"]),
        ]
    ),
)
def test_a_sample_runs(programs: int, optimizers: list[str], steps: list[str]) -> None:
    """In a process of its own: the settings of the fuzzer come before JAX starts."""
    assert set(steps) <= set(STEPS)
    command = [sys.executable, "-m", "benchmarks.lowering", "--programs", str(programs), "--optimizers", *optimizers]
    done = subprocess.run(
        [*command, "--steps", *steps, "--runs", "1"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "0 do not lower" in last and "0 run wrong" in last
    found = re.search(r"(\d+) subjects .*: (\d+) plans", last)
    subjects = programs + len(optimizers) + len(steps)
    assert found and int(found[1]) >= subjects and int(found[2]) >= 4 * subjects
