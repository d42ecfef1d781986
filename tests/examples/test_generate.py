"""The example of generation gives the text of one device, on any number of devices."""

import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.sampling import sampled

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def test_cached_decoding_is_that_of_the_whole_text(monkeypatch):
    """A token behind the cache is the one that a prefill of the text so far gives."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import generate

    weights = generate.make_weights(jax.random.key(1), num_layers=2, width=16, num_heads=4, length=12)
    text = np.arange(3 * 8).reshape(3, 8) * 7 % 256
    token, cache = generate.prefill(weights, text)
    for position in range(8, 11):
        text = np.concatenate([text, np.asarray(token)[:, None]], axis=1)
        token, cache = generate.decode(weights, cache, token, position)
        np.testing.assert_array_equal(token, generate.prefill(weights, text)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "choose"), sampled([(4, "leanest"), (1, "fastest"), (2, "knee"), (8, "megatron")]))
def test_generation_equals_one_device(devices, choose):
    flags = ["--layers=1", "--width=64", "--heads=4", "--prompt=16", "--tokens=8"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "generate.py"), f"--devices={devices}", f"--choose={choose}", *flags],
        env={**environment, "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{devices} x cpu" in done.stdout
    assert re.search(r"prefill weights = decode weights", done.stdout)
    assert re.search(r"prefill result = decode cache", done.stdout)
    assert "128 of 128 tokens equal those of one device" in done.stdout
