"""The path of a newcomer: the commands of examples/first_steps.sh, from doctor to a run that equals one device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "first_steps.sh"


def test_the_path_has_fewer_than_ten_commands():
    assert 5 < len(re.findall(r'^"\$PYTHON" ', SCRIPT.read_text(), re.MULTILINE)) < 10


@pytest.mark.slow
def test_the_path_of_a_newcomer_runs(tmp_path):
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run([str(SCRIPT)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "on one device" in done.stdout.splitlines()[-1]
