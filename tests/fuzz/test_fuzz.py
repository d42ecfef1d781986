"""Random programs under random strategies compute the same as on one device, and bugs of rules do not pass.

The programs run in a process of their own, with a compiler that optimises nothing; `python -m tests.fuzz` is the long
run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.fuzz._check import error_of
from tests.fuzz._generate import program_of
from tests.fuzz._program import Program
from tests.fuzz._reduce import live, reduce_program
from tests.sampling import sampled

ROOT = Path(__file__).parents[2]
NUM_PROGRAMS = 20
"""Of a run; a fifth of a second each."""
SMALL = ("--max-statements", "7")


def fuzz(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("start", sampled(range(0, 12 * NUM_PROGRAMS, NUM_PROGRAMS)))
def test_random_programs_compute_the_same(start: int) -> None:
    end = str(start + NUM_PROGRAMS)
    done = fuzz("--start", str(start), "--programs", end, "--strategies", "1", "--no-reduce", *SMALL)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"{NUM_PROGRAMS} programs" in done.stdout
    found = re.search(r"(\d+) equal", done.stdout.splitlines()[-1])
    assert found and int(found[1]) >= 0.9 * NUM_PROGRAMS
    split = re.search(r"(\d+) of (\d+) operators that can be split were", done.stdout.splitlines()[-1])
    assert split and int(split[1]) >= int(split[2]) / 2


@pytest.mark.slow
def test_bugs_of_rules_are_found() -> None:
    names = ("sum-by-max", "transpose", "sum-dropped")
    done = fuzz("--mutants", "--programs", "20", "--only-mutants", *names)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "3 of 3 bugs found" in done.stdout


def test_a_program_is_the_same_again_and_others_differ() -> None:
    with jax.enable_x64(True):
        sources = [program_of(0, index, 8).source() for index in (3, 3, 4)]
    assert sources[0] == sources[1] != sources[2]


def test_a_failing_program_is_reduced_to_what_fails() -> None:
    """Whatever multiplies tensors fails: one statement is left, and its operand is an argument."""
    with jax.enable_x64(True):
        programs = [live(program_of(0, index, 12)) for index in range(30)]
    failing = [p for p in programs if _multiplies(p)]
    assert len(failing) >= 5
    for program in failing:
        small = reduce_program(program, _multiplies)
        assert _multiplies(small) and len(small.statements) == 1
        assert {v.name for v in small.results} <= {v.name for s in small.statements for v in s.results}


def _multiplies(program: Program) -> bool:
    return any("einsum(" in line for s in program.statements for line in s.lines())


def test_what_differs_is_seen() -> None:

    one = np.array([1.0, np.nan, np.inf])
    assert error_of(one, one.copy()) == 0
    assert error_of(one, np.array([1.5, np.nan, np.inf])) == 0.5
    assert error_of(one, np.array([1.0, 2.0, np.inf])) == np.inf
    assert error_of(one, np.array([1.0, np.nan, -np.inf])) == np.inf
    assert error_of(one, one.astype(np.float32)) == np.inf
    assert error_of(np.array([1, 2]), np.array([1, 5])) == 3
