"""Tofu, Table 1: bytes of weights, gradients and history of its networks.

python -m benchmarks.papers tofu-table1
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from benchmarks.models import PAPER_MODELS, build
from benchmarks.papers._experiment import Claim, Column, Experiment, Row
from benchmarks.papers._steps import GIB
from benchmarks.papers._tolerance import near

PUBLISHED = {
    "rnn-6-4k": 8.4, "rnn-8-4k": 11.4, "rnn-10-4k": 14.4, "rnn-6-6k": 18.6, "rnn-8-6k": 28.5, "rnn-10-6k": 32.1,
    "rnn-6-8k": 33.0, "rnn-8-8k": 45.3, "rnn-10-8k": 57.0,
    "wresnet-50-4": 4.2, "wresnet-101-4": 7.8, "wresnet-152-4": 10.5, "wresnet-50-6": 9.6, "wresnet-101-6": 17.1,
    "wresnet-152-6": 23.4, "wresnet-50-8": 17.1, "wresnet-101-8": 30.6, "wresnet-152-8": 41.7, "wresnet-50-10": 26.7,
    "wresnet-101-10": 47.7, "wresnet-152-10": 65.1,
}  # fmt: skip
ROUNDED = 0.15
"""GiB: its figures are three times a size of weights in tenths."""


def run(networks: Sequence[str] = tuple(PUBLISHED)) -> list[Row]:
    return [_row(name) for name in networks]


def _row(name: str) -> Row:
    steps = {"num_steps": 1} if hasattr(PAPER_MODELS[name].config, "num_steps") else {}
    _, (state, _) = build(name, **steps)
    weights = sum(4 * leaf.size for leaf in jax.tree.leaves(state.params)) / GIB
    return {"network": name, "weights_gib": weights, "gib": 3 * weights, "published_gib": PUBLISHED[name]}


def _misses(rows: Sequence[Row]) -> list[Row]:
    return [r for r in rows if abs(r["gib"] - r["published_gib"]) > max(ROUNDED, 0.01 * r["published_gib"])]


def _weights(rows: Sequence[Row]) -> tuple[bool, str]:
    misses = _misses(rows)
    texts = ", ".join(f"{r['network']} {r['gib']:.1f} (published {r['published_gib']})" for r in misses)
    return not misses, f"{len(rows) - len(misses)} of {len(rows)} within 1 %; {texts or 'all'}"


def _misprint(rows: Sequence[Row], causes: Sequence[Row]) -> tuple[bool, str]:
    """Layers are equal, so that eight lie midway between six and ten."""
    found = {r["network"]: r["published_gib"] for r in rows}
    midway = (found["rnn-6-6k"] + found["rnn-10-6k"]) / 2
    ours = next(r["gib"] for r in rows if r["network"] == "rnn-8-6k")
    return [r["network"] for r in _misses(rows)] == ["rnn-8-6k"] and abs(ours / midway - 1) < 0.01, (
        f"midway between RNN-6-6K and RNN-10-6K in the same table is {midway:.1f}"
    )


def _alone(rows: Sequence[Row]) -> tuple[bool, str]:
    found = {r["network"]: r["weights_gib"] for r in rows}
    ours = found["wresnet-152-10"], found["rnn-10-8k"]
    return near(ours[0], 22) and near(ours[1], 19), f"{ours[0]:.1f} and {ours[1]:.1f} GiB"


EXPERIMENT = Experiment(
    name="tofu-table1",
    title="Tofu, Table 1: sizes of the networks",
    setting="Weights, gradients and history in float32; GB of the paper are GiB.",
    run=run,
    columns=(
        Column(key="network", heading="network"),
        Column(key="weights_gib", heading="weights GiB"),
        Column(key="gib", heading="three times"),
        Column(key="published_gib", heading="published"),
    ),
    claims=(
        Claim(
            source="Tofu 6.1, Table 1",
            published="weights, gradients and history of 21 networks, 4.2 to 65.1 GB",
            judge=_weights,
            reason="RNN-8-6K is a misprint: layers are equal",
            cause=_misprint,
        ),
        Claim(
            source="Tofu 6.2",
            published="WResNet-152-10 has 22 GB of weights alone, RNN-10-8K 19",
            judge=_alone,
        ),
    ),
)
