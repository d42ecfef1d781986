"""Networks of published experiments have the parameters that the literature gives them; nothing is allocated."""

from collections.abc import Iterable
from typing import Any

import jax
import pytest

from benchmarks.models import MODELS, PAPER_MODELS, build
from benchmarks.models._transformer import PRINTED_VOCABULARY
from tests.sampling import sampled

GIB = 2**30

# Parameters of the checkpoints in torchvision's table of weights, and of LeCun et al. (1998) with C3 fully connected.
COUNTED = {"alexnet": 61_100_840, "resnet101": 44_549_160, "resnet152": 60_192_808, "lenet5": 61_706}

# Tofu, Table 1: GiB of weight, gradient and history. RNN-8-6K is 28.5 there: a misprint, since layers are equal and
# the figures of 6, 8 and 10 of them lie on a line (18.6, 25.4, 32.1).
TOFU = {
    "rnn-6-4k": 8.4, "rnn-8-4k": 11.4, "rnn-10-4k": 14.4, "rnn-6-6k": 18.6, "rnn-8-6k": 25.4, "rnn-10-6k": 32.1,
    "rnn-6-8k": 33.0, "rnn-8-8k": 45.3, "rnn-10-8k": 57.0,
    "wresnet-50-4": 4.2, "wresnet-101-4": 7.8, "wresnet-152-4": 10.5, "wresnet-50-6": 9.6, "wresnet-101-6": 17.1,
    "wresnet-152-6": 23.4, "wresnet-50-8": 17.1, "wresnet-101-8": 30.6, "wresnet-152-8": 41.7, "wresnet-50-10": 26.7,
    "wresnet-101-10": 47.7, "wresnet-152-10": 65.1,
}  # fmt: skip
TOFU_UNIT = 3 * 0.05  # GiB: its figures are three times a weight size in tenths

# TensorOpt, Table 1 and section 5.3: GiB of float32 parameters (its VGG16 has 0.52: 138M, so GB there are GiB).
TENSOROPT = {
    "rnn-116gb": 108,
    "wresnet-7.3gb": 7.3,
    "transformer-9.7gb": 9.7,
    "transformer-4.8gb": 4.8,
    "vgg16": 0.52,
}


def _num_parameters(name: str) -> int:
    """Of the state; recurrent networks have the same parameters at every number of steps, so one is traced."""
    has_steps = hasattr((MODELS | PAPER_MODELS)[name].config, "num_steps")
    _, (state, _) = build(name, **({"num_steps": 1} if has_steps else {}))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state))
    return sum(leaf.size for leaf in jax.tree.leaves(state.params))


def _lstm(rows: int, width: int) -> int:
    return 4 * width * (rows + width + 1)


@pytest.mark.parametrize("name", COUNTED)
def test_convolutional_networks_have_the_parameters_of_their_checkpoints(name: str) -> None:
    assert _num_parameters(name) == COUNTED[name]


def _deep_ones_are_slow(names: Iterable[str]) -> list[Any]:
    """A ResNet of 101 or 152 layers takes seconds to trace: all but the smallest are left to the slow tests."""
    deep = ("wresnet-101", "wresnet-152", "wresnet-7")
    return [pytest.param(name, marks=[pytest.mark.slow] if name.startswith(deep) else []) for name in names]


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", _deep_ones_are_slow(TOFU))
def test_networks_of_tofu_have_the_weights_of_its_table(name: str) -> None:
    assert 3 * 4 * _num_parameters(name) / GIB == pytest.approx(TOFU[name], rel=0.01, abs=TOFU_UNIT)


@pytest.mark.parametrize("name", _deep_ones_are_slow(TENSOROPT))
def test_networks_of_tensoropt_have_the_parameters_of_its_table(name: str) -> None:
    assert 4 * _num_parameters(name) / GIB == pytest.approx(TENSOROPT[name], rel=0.01)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rnntc", 10_000 * 1024 + 4 * _lstm(1024, 1024) + 1025 * 2),
        ("rnnlm", 10_000 * 2048 + 2 * _lstm(2048, 2048) + 2049 * 10_000),
        ("rnnlm-100k", 102_400 * 1024 + _lstm(1024, 2048) + _lstm(2048, 2048) + 2049 * 102_400),
        ("nmt", 2 * 32_000 * 1024 + 4 * _lstm(1024, 1024) + 3 * 1024**2 + 1025 * 32_000),
        # Self-attention, attention to the encoder, perceptrons with their biases, and 5 normalisations per pair.
        ("transformer-base", 41_088 * 512 + 6 * (28 * 512**2 + 12 * 512 + 2 * 5 * 512 + 2 * 5 * 512)),
    ],
)
def test_closed_forms(name: str, expected: int) -> None:
    assert _num_parameters(name) == expected


# Rows of arXiv 1706.03762, Table 3: layers on each side, width, width of keys, of the perceptron, millions printed.
VARIANTS_OF_TRANSFORMER_BASE = [
    (6, 512, 512, 2048, 65),
    (6, 512, 128, 2048, 58),
    (6, 512, 256, 2048, 60),
    (2, 512, 512, 2048, 36),
    (4, 512, 512, 2048, 50),
    (8, 512, 512, 2048, 80),
    (6, 256, 256, 2048, 28),
    (6, 1024, 1024, 2048, 168),
    (6, 512, 512, 1024, 53),
    (6, 512, 512, 4096, 90),
]


def _parameters_beside_the_embedding(layers: int, width: int, keys: int, inner: int) -> int:
    attention = 2 * width * keys + 2 * width * width
    perceptron = 2 * width * inner + width + inner
    return layers * (3 * attention + 2 * perceptron + 5 * 2 * width)


def test_vocabulary_of_transformer_base_follows_from_all_printed_counts() -> None:
    """The counts are printed in millions: each leaves a range, and the ranges of all ten rows have a part in common."""
    ranges = [
        ((1e6 * (millions - 0.5) - beside) / width, (1e6 * (millions + 0.5) - beside) / width)
        for layers, width, keys, inner, millions in VARIANTS_OF_TRANSFORMER_BASE
        for beside in [_parameters_beside_the_embedding(layers, width, keys, inner)]
    ]
    assert max(low for low, _ in ranges) <= PRINTED_VOCABULARY <= min(high for _, high in ranges)
    assert _num_parameters("transformer-base") == pytest.approx(65e6, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["recurrent-tiny", "translation-tiny"]))
def test_time_steps_unrolled_or_scanned_are_one_network(name: str) -> None:
    def loss(scan: bool) -> Any:
        spec = PAPER_MODELS[name].override(scan=scan)
        (state,) = spec.make_state(spec.config)
        return jax.jit(spec.make_step(spec.config))(state, spec.make_batch(spec.config, jax.random.key(1)))[1]

    assert float(loss(True)) == pytest.approx(float(loss(False)), rel=1e-5)


def test_names_are_apart_and_published_networks_are_in_no_sweep() -> None:
    assert not MODELS.keys() & PAPER_MODELS.keys()
