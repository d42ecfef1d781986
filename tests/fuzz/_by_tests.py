"""Which bugs the default tests find: a run of pytest for each bug, until its first failure.

As a plugin of pytest (``-p tests.fuzz._by_tests``), it puts the bug that the environment names in after collection.
Nothing here imports JAX at once: plugins are loaded before `tests/conftest.py` sets the flags of its compiler.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIKELY = {
    True: ("tests/ir/rules/test_laws.py", "tests/ir/rules/test_devices.py"),
    False: ("tests/partition/test_steps.py", "tests/partition/test_local.py", "tests/partition/test_halo.py"),
}
"""Where bugs of rules, and those of lowering, are found most of the time: these are run first."""
FOLDERS = ("tests/partition", "tests/ir", "tests/strategies", "tests/mesh", "tests/fuzz")
_VARIABLE = "JAXPLAN_TESTS_BUG"


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[None]:
    """Run the collected tests with the bug."""
    name = os.environ.get(_VARIABLE)
    bug = contextlib.nullcontext() if name is None else _mutant(name).apply()
    with bug:
        return (yield)


def _mutant(name: str) -> Any:
    from tests.fuzz._mutants import MUTANTS

    return next(mutant for mutant in MUTANTS if mutant.name == name)


def hunt_by_tests(names: Sequence[str] | None = None) -> int:
    """Print the test that finds each bug; 1 if more than one bug was missed, which is what programs miss as well."""
    from tests.fuzz._mutants import MUTANTS

    mutants = [m for m in MUTANTS if names is None or m.name in names]
    missed = []
    for mutant in mutants:
        found = _first_failure(mutant)
        if not found:
            missed.append(mutant.name)
        print(
            f"{'found ' if found else 'MISSED'} {mutant.name:16} {mutant.what}: {found or 'by no test'}",
            flush=True,
        )
    print(
        f"{len(mutants) - len(missed)} of {len(mutants)} bugs found by the default tests of rules and lowering"
    )
    return 1 if len(missed) > 1 else 0


def _first_failure(mutant: Any) -> str:
    """The name of the first test that fails with a bug; '' if none does."""
    return _failure(mutant.name, LIKELY[bool(mutant.primitives)]) or _failure(mutant.name, FOLDERS)


def _failure(name: str, tests: Sequence[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.fuzz._by_tests", *tests],
        cwd=ROOT,
        env={**os.environ, _VARIABLE: name},
        capture_output=True,
        text=True,
        check=False,
    )
    failures = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1):
        raise RuntimeError(
            f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return failures[0] if failures else ""
