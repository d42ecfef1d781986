"""The example runs end to end, and its parts do as documented."""

import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.processes.pair import free_port
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


SIZES = ("--layers=1", "--width=32", "--heads=4", "--batch=8", "--length=32")


def start(*flags: str, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / "train_gpt.py"), *SIZES, *flags],
        env={**environment, "PYTHONPATH": str(EXAMPLES.parent), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outputs(*processes: subprocess.Popen[str]) -> str:
    """The text of the first of some processes, all of which end well."""
    texts = [process.communicate(timeout=400)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(texts)
    return texts[0]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_the_example_runs_unchanged_on_any_number_of_devices(devices):
    text = outputs(start(f"--devices={devices}", "--steps=3"))
    assert f", {devices} x cpu" in text
    assert "loss after 3 steps" in text and "within 1e-04" in text


@pytest.mark.slow
def test_two_processes_save_and_other_devices_resume(tmp_path):
    """Two processes of four devices save after step 2; they resume, and then one process of two devices does."""

    def pair(steps):
        port = free_port()
        variables = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
        flags = ["--devices=4", f"--steps={steps}", f"--checkpoints={tmp_path}/run", "--save-every=2"]
        return outputs(*(start(*flags, **variables, JAX_PROCESS_ID=str(rank)) for rank in range(2)))

    first = pair(2)
    assert ", 8 x cpu" in first and "loss after 2 steps" in first
    second = pair(4)
    assert "resumed after step 2, with the plan of" in second and "within 1e-04" in second
    third = outputs(start("--devices=2", "--steps=6", f"--checkpoints={tmp_path}/run", "--save-every=2"))
    assert "resumed after step 4, planned anew" in third and "within 1e-04" in third
