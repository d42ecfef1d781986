"""The vision example runs end to end, and reads its data as it says."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def test_the_digits_are_apart_and_the_batches_repeatable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_vision

    digits, test = train_vision.read_digits()
    assert digits["images"].shape == (1797 - 256, 8, 8, 1)
    assert (digits["images"].min(), digits["images"].max()) == (0, 1)
    assert set(test["labels"]) == set(range(10))
    first, second = (list(train_vision.make_batches(digits, 16, 2)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a["images"], b["images"])
        np.testing.assert_array_equal(a["labels"], b["labels"])
    assert (first[0]["labels"] != first[1]["labels"]).any()


@pytest.mark.slow
def test_planned_and_one_device_agree():
    """On two devices: planning and compiling for eight takes most of a minute."""
    flags = ["--steps", "3", "--batch", "64", "--model", "resnet", "--devices", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_vision.py"), *flags],
        env={**environment, "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "time ms" in done.stdout  # the table of the frontier
    assert ", 2 x cpu" in done.stdout
    losses = re.search(r"after 3 steps: ([0-9.]+) planned, ([0-9.]+) on one device", done.stdout)
    assert losses is not None
    planned, alone = map(float, losses.groups())
    assert planned == pytest.approx(alone, rel=1e-6)
    assert 1.5 < alone < 3.5  # near log(10) = 2.3 nats: nothing has blown up
