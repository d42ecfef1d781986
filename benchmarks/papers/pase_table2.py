"""PaSE, Table II: the strategies found for four networks on 32 1080 Ti.

python -m benchmarks.papers pase-table2
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.papers._experiment import Claim, Column, Experiment, Judge, Row
from benchmarks.papers._splits import contraction_splits, stored_splits
from benchmarks.papers._steps import Priced, traced
from benchmarks.papers.pase_table1 import NETWORKS, machine

DEVICES = 32


def run(networks: Sequence[str] = tuple(NETWORKS), num_devices: int = DEVICES) -> list[Row]:
    return [row for network in networks for row in _rows(network, num_devices)]


def _rows(network: str, num_devices: int) -> list[Row]:
    """Neighbours of equal splits are one row."""
    name, overrides = NETWORKS[network]
    priced = Priced(traced(name, **overrides), machine(num_devices))
    plan = priced.plans("pase")[-1]
    rows: list[Row] = []
    for path, parts in stored_splits(plan, priced.graph).items():
        if ("params" in path and "embedding" in path) or ("tokens" in path and "params" in path):
            rows.append({"network": network, "layers": 1, "first": "embedding", "split": _stored(parts)})
    found = contraction_splits(plan, priced.graph)
    for text, group in itertools.groupby(found, key=lambda split: split.text):
        members = list(group)
        shape = " x ".join(map(str, members[0].shape))
        rows.append({"network": network, "layers": len(members), "first": shape, "split": text})
    return rows


def _stored(parts: Sequence[int]) -> str:
    names = zip(("vocabulary", "width"), parts)
    return " x ".join(f"{name} {n}" for name, n in names if n > 1) or "whole"


def _of(rows: Sequence[Row], network: str) -> list[str]:
    """The split of every contraction of a network."""
    return [
        r["split"]
        for r in rows
        if r["network"] == network and r["first"] != "embedding"
        for _ in range(r["layers"])
    ]


def _embedding(rows: Sequence[Row], network: str) -> str:
    return next((r["split"] for r in rows if r["network"] == network and r["first"] == "embedding"), "none")


def _convolutions(rows: Sequence[Row]) -> tuple[bool, str]:
    splits = _of(rows, "AlexNet")[:4]
    return all(s == f"batch {DEVICES}" for s in splits), ", ".join(splits)


def _fifth(rows: Sequence[Row]) -> tuple[bool, str]:
    split = _of(rows, "AlexNet")[4]
    return "in 2" in split, split


def _alternate(rows: Sequence[Row]) -> tuple[bool, str]:
    first, second, third = _of(rows, "AlexNet")[5:8]
    heavier = ["out" if _part(s, "out") > _part(s, "in") else "in" for s in (first, second, third)]
    holds = "batch" not in first + second + third and heavier[0] == heavier[2] != heavier[1]
    return holds, f"{first}; {second}; {third}"


def _part(split: str, name: str) -> int:
    return next((int(text.split()[1]) for text in split.split(" x ") if text.startswith(name)), 1)


def _modules(rows: Sequence[Row]) -> tuple[bool, str]:
    splits = _of(rows, "InceptionV3")
    share = sum(s == f"batch {DEVICES}" for s in splits[:-1]) / (len(splits) - 1)
    return share > 0.75, f"{share:.0%} of the convolutions split the batch alone"


def _last_modules(rows: Sequence[Row]) -> tuple[bool, str]:
    splits = _of(rows, "InceptionV3")[-19:-1]  # two modules of nine convolutions
    hybrid = sum(s != f"batch {DEVICES}" for s in splits)
    return hybrid > 0, f"{hybrid} of the {len(splits)} convolutions of modules E are split otherwise"


def _vocabulary(network: str, *, whole: bool) -> Judge:
    def judge(rows: Sequence[Row]) -> tuple[bool, str]:
        softmax = max(_of(rows, network), key=lambda s: _part(s, "out"))
        embedding = _embedding(rows, network)
        parts = _part(softmax, "out"), _part(embedding, "vocabulary")
        holds = all(n == DEVICES if whole else n > 1 for n in parts)
        return holds, f"embedding: {embedding}; projection: {softmax}"

    return judge


def _lstm(rows: Sequence[Row]) -> tuple[bool, str]:
    splits = [s for s in _of(rows, "RNNLM") if _part(s, "out") < DEVICES]
    hybrid = [s for s in splits if s.startswith("batch") and ("in" in s or "out" in s)]
    return bool(hybrid), "; ".join(dict.fromkeys(splits))


def _layers(rows: Sequence[Row]) -> tuple[bool, str]:
    splits = _of(rows, "Transformer")[:-1]
    hybrid = sum(s != f"batch {DEVICES}" for s in splits)
    return hybrid > len(splits) / 2, f"{len(splits) - hybrid} of {len(splits)} split the batch alone"


_SOURCE = "PaSE IV-C, Table II"
_COMMAND = "python -m benchmarks.papers pase-table2"
EXPERIMENT = Experiment(
    name="pase-table2",
    title="PaSE, Table II: strategies on 32 1080 Ti",
    setting=(
        "The networks of Table I on 4 nodes of 8. A row is a run of contractions of equal split, in program order, "
        "by the shape of "
        "the first one's second operand (the weight, except where attention multiplies two activations). The cells "
        "of the paper's "
        "table are lost in the copy at hand; claims are those of its text."
    ),
    run=run,
    columns=(
        Column(key="network", heading="network"),
        Column(key="layers", heading="contractions"),
        Column(key="first", heading="first"),
        Column(key="split", heading="split"),
    ),
    claims=(
        Claim(
            source=_SOURCE,
            published="AlexNet: data parallelism for the first four convolutions",
            judge=_convolutions,
        ),
        Claim(
            source=_SOURCE,
            published="AlexNet: the fifth splits its input channels into two",
            judge=_fifth,
            reason="the batch of 128 divides by 32, and with 2 channels the sum of the output is one more "
            "collective; the two "
            "strategies differ by the gradients of one convolution, 0.6 M of 61 M parameters",
            shown_by=_COMMAND,
        ),
        Claim(
            source=_SOURCE,
            published="AlexNet: dense layers split output and input channels in turn (4 x 8, 8 x "
            "4, 4 x 8), so "
            "that none is sent between them",
            judge=_alternate,
        ),
        Claim(source=_SOURCE, published="InceptionV3: data parallelism for modules A to D", judge=_modules),
        Claim(
            source=_SOURCE,
            published="InceptionV3: modules E mix data and parameter parallelism",
            judge=_last_modules,
            reason="on 100 Gbit/s the sums of a module's gradients take less than the exchange of its activations "
            "would: plans "
            "that split channels there are priced and slower",
            shown_by=_COMMAND,
        ),
        Claim(
            source=_SOURCE,
            published="RNNLM: the vocabulary of embedding and projection is split over all devices",
            judge=_vocabulary("RNNLM", whole=True),
            reason="",
            shown_by=_COMMAND,
        ),
        Claim(
            source=_SOURCE,
            published="RNNLM: LSTM cells split batch, hidden and output dimensions to varying degrees",
            judge=_lstm,
            reason="",
            shown_by=_COMMAND,
        ),
        Claim(
            source=_SOURCE,
            published="RNNLM: the dimension of LSTM layers is split fully",
            reason="layers are operators one after the other here, no dimension; docs/pipeline.md has stages",
        ),
        Claim(
            source=_SOURCE,
            published="Transformer: parameter parallelism for embedding and softmax",
            judge=_vocabulary("Transformer", whole=False),
            shown_by=_COMMAND,
        ),
        Claim(
            source=_SOURCE,
            published="Transformer: a mix of data and parameter parallelism for the other layers",
            judge=_layers,
            reason="",
            shown_by=_COMMAND,
        ),
    ),
)
