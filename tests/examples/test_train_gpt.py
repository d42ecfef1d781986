"""The example runs end to end, and its parts do as documented."""

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


@pytest.fixture(scope="module")
def train_gpt():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import train_gpt

        yield train_gpt
    finally:
        sys.path.remove(str(EXAMPLES))


def test_the_corpus_is_python_and_the_batches_are_repeatable(train_gpt):
    corpus = train_gpt.read_corpus()
    assert corpus.dtype == np.uint8
    assert len(corpus) == train_gpt.CORPUS_BYTES
    assert b"\ndef " in corpus.tobytes() and b"\nimport " in corpus.tobytes()
    first, second = (list(train_gpt.make_batches(corpus, 3, 16, 2)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)
        assert a["inputs"].shape == a["targets"].shape == (3, 16)
        np.testing.assert_array_equal(a["inputs"][:, 1:], a["targets"][:, :-1])
    assert (first[0]["inputs"] != first[1]["inputs"]).any()


def test_make_args_allocates_nothing_and_fits_the_step(train_gpt):
    args = train_gpt.make_args()
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))
    state, loss = jax.eval_shape(train_gpt.train_step, *args)
    assert loss.shape == ()
    assert jax.tree.map(lambda leaf: leaf.shape, state) == jax.tree.map(lambda leaf: leaf.shape, args[0])


def test_unequal_losses_are_told(train_gpt, capsys):
    alone = np.array([4.0, 2.0])
    assert train_gpt.compare(alone * (1 + 5e-5), alone) == 0
    assert train_gpt.compare(alone * [1, 1 + 5e-4], alone) == 1
    assert "OUTSIDE" in capsys.readouterr().out


@pytest.mark.parametrize("choose", sampled(["fsdp", "leanest"]))
def test_the_example_trains_as_one_device_does(choose):
    sizes = {"steps": 4, "layers": 1, "width": 32, "heads": 4, "batch": 8, "length": 32}
    flags = [f"--{name}={value}" for name, value in {**sizes, "choose": choose}.items()]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_gpt.py"), *flags],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "time ms" in done.stdout  # the table of the frontier
    assert re.search(rf"took (#\d+ \([a-z, ]*)?{choose}", done.stdout)
    losses = re.search(r"after 4 steps: ([0-9.]+) planned, ([0-9.]+) on one device", done.stdout)
    assert losses is not None
    planned, alone = map(float, losses.groups())
    assert planned == pytest.approx(alone, rel=1e-4)
    assert 3 < alone < 7  # near log(256) = 5.5 nats: training has begun, nothing has blown up
