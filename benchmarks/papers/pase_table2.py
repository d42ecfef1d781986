"""PaSE, Table II: the strategies found for four networks on 32 1080 Ti.

python -m benchmarks.papers pase-table2
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.papers._experiment import Cause, Claim, Column, Experiment, Judge, Row
from benchmarks.papers._splits import (
    Parts,
    configuration,
    contraction_groups,
    contraction_splits,
    roles,
    stored_splits,
)
from benchmarks.papers._steps import Priced, received_bytes, traced
from benchmarks.papers.pase_table1 import NETWORKS, machine
from jaxplan.ir import STORED_KINDS, Configuration, StepGraph
from jaxplan.mesh import Topology
from jaxplan.plans._plan import Plan
from jaxplan.strategies import apply_strategies

DEVICES = 32
_OTHERS = ("embedding", "as published")
"""Rows that are no contractions."""


def run(networks: Sequence[str] = tuple(NETWORKS), num_devices: int = DEVICES) -> list[Row]:
    return [row for network in networks for row in _rows(network, num_devices)]


def _rows(network: str, num_devices: int) -> list[Row]:
    """Neighbours of equal splits are one row; then the best plans with splits that the paper has and ours do not."""
    name, overrides = NETWORKS[network]
    graph, topology = traced(name, **overrides), Topology.parse(machine(num_devices))
    wanted = {claim: _configurations(graph, topology, pins) for claim, pins in _pins(network, graph).items()}
    data = apply_strategies(graph, topology).plans["data"].configurations
    extra = [tuple(pins.get(v, of) for v, of in enumerate(data)) for pins in wanted.values()]
    priced = Priced(graph, topology, extra)
    plan = priced.plans("pase")[-1]
    rows: list[Row] = []
    for path, parts in stored_splits(plan, graph).items():
        if "params" in path and ("embedding" in path or "tokens" in path):
            rows.append({"network": network, "layers": 1, "first": "embedding", "split": _stored(parts)})
    for text, group in itertools.groupby(contraction_splits(plan, graph), key=lambda split: split.text):
        members = list(group)
        shape = " x ".join(map(str, members[0].shape))
        rows.append({"network": network, "layers": len(members), "first": shape, "split": text})
    best = plan.time_seconds * 1e3
    for claim, pins in wanted.items():
        pinned = priced.pinned(pins)
        rows.append(
            {"network": network, "first": "as published", "split": claim, "ms": pinned.time_seconds * 1e3,
             "best_ms": best, **_parts_of(pinned, ""), **_parts_of(plan, "best_")}
        )  # fmt: skip
    return rows


def _parts_of(plan: Plan, prefix: str) -> dict[str, float]:
    """Compute, communication, and bytes received by a device."""
    return {
        f"{prefix}compute_ms": plan.compute_seconds * 1e3,
        f"{prefix}sent_ms": plan.communication_seconds * 1e3,
        f"{prefix}mb": received_bytes(plan) / 1e6,
    }


def _dearer(network: str, word: str) -> Cause:
    """The published split, priced beside the best: the parts of it that are dearer."""

    def cause(rows: Sequence[Row], causes: Sequence[Row]) -> tuple[bool, str]:
        row = _published_row(rows, network, word)
        text = (
            f"with it {row['compute_ms']:.2f} ms of compute and {row['sent_ms']:.2f} of communication "
            f"({row['mb']:.1f} MB "
            f"received), without {row['best_compute_ms']:.2f} and {row['best_sent_ms']:.2f} ({row['best_mb']:.1f} MB)"
        )
        return row["ms"] > row["best_ms"] and row["sent_ms"] > row["best_sent_ms"], text

    return cause


def _published_row(rows: Sequence[Row], network: str, word: str) -> Row:
    return next(
        r for r in rows if r["network"] == network and r["first"] == "as published" and word in r["split"]
    )


def _pins(network: str, graph: StepGraph) -> dict[str, dict[int, Parts]]:
    """By claim the splits of groups that the paper reports; where it leaves degrees open, four by eight."""
    groups = contraction_groups(graph)
    shapes = {v: graph.program.tensors[eqn.operands[1]].shape for v, eqn in groups.items()}
    order = list(groups)
    if network == "AlexNet":
        turns: list[Parts] = [
            {"in": 4, "out": 8},
            {"out": 4, "in": 8},
        ]  # the first reads 6 x 6 x 256: in 2 at most
        return {
            "fifth convolution batch 16 x in 2": {order[4]: {"batch": 16, "in": 2}},
            "second and third dense layer in 4 x out 8, in 8 x out 4": dict(
                zip(order[6:8], turns, strict=True)
            ),
        }
    if network == "InceptionV3":
        return {"modules E batch 8 x out 4": {v: {"batch": 8, "out": 4} for v in order[-19:-1]}}
    if network == "RNNLM":
        tables = _tables(graph)
        cells = [v for v, shape in shapes.items() if len(shape) == 3]
        return {
            "cells batch 8 x out 4": {v: {"batch": 8, "out": 4} for v in cells},
            "embedding vocabulary 32": {v: {"vocabulary": DEVICES} for v in tables},
        }
    inner: dict[int, Parts] = {}
    for v in order[:-1]:
        names = roles(graph, v, groups[v])
        other = "heads" if "heads" in names else "out" if shapes[v][0] == 512 else "in"
        inner[v] = {"batch": 8, other: 4}
    return {"layers batch 8 x width, heads or inner dimension 4": inner}


def _configurations(graph: StepGraph, topology: Topology, pins: dict[int, Parts]) -> dict[int, Configuration]:
    groups = contraction_groups(graph)
    names = {v: roles(graph, v, groups[v]) if v in groups else _stored_names(graph, v) for v in pins}
    return {v: configuration(graph, topology, v, names[v], parts) for v, parts in pins.items()}


def _tables(graph: StepGraph) -> list[int]:
    """Groups of the stored embeddings."""
    tensors = graph.program.tensors
    return [
        group.index
        for group in graph.grouping.groups
        if group.kind in STORED_KINDS
        and any(
            "params" in tensors[t].path and "mbed" in tensors[t].path
            for t in graph.spaces[group.index].tensor_dims
        )
    ]


def _stored_names(graph: StepGraph, v: int) -> list[str]:
    """The classes of a stored table: its rows are the vocabulary."""
    (dims,) = list(graph.spaces[v].tensor_dims.values())[:1]
    return ["vocabulary" if c in dims[0] else "width" for c in range(len(graph.spaces[v].classes))]


def _cost(rows: Sequence[Row], network: str, word: str) -> str:
    """The time of the best plan with a published split beside that of the best plan."""
    row = _published_row(rows, network, word)
    return f"; best with `{row['split']}` {row['ms']:.2f} ms, without {row['best_ms']:.2f}"


def _stored(parts: Sequence[int]) -> str:
    names = zip(("vocabulary", "width"), parts)
    return " x ".join(f"{name} {n}" for name, n in names if n > 1) or "whole"


def _of(rows: Sequence[Row], network: str) -> list[str]:
    """The split of every contraction of a network."""
    return [
        r["split"]
        for r in rows
        if r["network"] == network and r["first"] not in _OTHERS
        for _ in range(r["layers"])
    ]


def _embedding(rows: Sequence[Row], network: str) -> str:
    return next((r["split"] for r in rows if r["network"] == network and r["first"] == "embedding"), "none")


def _convolutions(rows: Sequence[Row]) -> tuple[bool, str]:
    splits = _of(rows, "AlexNet")[:4]
    return all(s == f"batch {DEVICES}" for s in splits), ", ".join(splits)


def _fifth(rows: Sequence[Row]) -> tuple[bool, str]:
    split = _of(rows, "AlexNet")[4]
    return "in 2" in split, split + _cost(rows, "AlexNet", "fifth")


def _alternate(rows: Sequence[Row]) -> tuple[bool, str]:
    first, second, third = _of(rows, "AlexNet")[5:8]
    heavier = ["out" if _part(s, "out") > _part(s, "in") else "in" for s in (first, second, third)]
    holds = "batch" not in first + second + third and heavier[0] == heavier[2] != heavier[1]
    return holds, f"{first}; {second}; {third}{_cost(rows, 'AlexNet', 'dense')}"


def _part(split: str, name: str) -> int:
    return next((int(text.split()[1]) for text in split.split(" x ") if text.startswith(name)), 1)


def _modules(rows: Sequence[Row]) -> tuple[bool, str]:
    splits = _of(rows, "InceptionV3")
    share = sum(s == f"batch {DEVICES}" for s in splits[:-1]) / (len(splits) - 1)
    return share > 0.75, f"{share:.0%} of the convolutions split the batch alone"


def _last_modules(rows: Sequence[Row]) -> tuple[bool, str]:
    splits = _of(rows, "InceptionV3")[-19:-1]  # two modules of nine convolutions
    hybrid = sum(s != f"batch {DEVICES}" for s in splits)
    text = f"{hybrid} of the {len(splits)} convolutions of modules E are split otherwise"
    return hybrid > 0, text + _cost(rows, "InceptionV3", "modules E")


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
    return bool(hybrid), "; ".join(dict.fromkeys(splits)) + _cost(rows, "RNNLM", "cells")


def _layers(rows: Sequence[Row]) -> tuple[bool, str]:
    splits = _of(rows, "Transformer")[:-1]
    hybrid = sum(s != f"batch {DEVICES}" for s in splits)
    text = (
        f"{hybrid} of {len(splits)} contractions mix, the feed-forward ones; attention splits the batch alone"
    )
    return hybrid > 0, text + _cost(rows, "Transformer", "layers")


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows of equal network, shape and split together, in order of their first."""
    shown: dict[tuple[str, str, str], dict[str, object]] = {}
    for row in rows:
        key = row["network"], row["first"], row["split"]
        if key in shown:
            shown[key]["layers"] = shown[key]["layers"] + row["layers"]  # pyright: ignore[reportOperatorIssue]
        else:
            shown[key] = dict(row)
    return list(shown.values())


_SOURCE = "PaSE IV-C, Table II"
EXPERIMENT = Experiment(
    name="pase-table2",
    title="PaSE, Table II: strategies on 32 1080 Ti",
    setting=(
        "The networks of Table I on 4 nodes of 8. Rows are contractions of equal split, by the shape of the first "
        "one's second operand (the weight, except where attention multiplies two activations). The cells of the "
        "paper's table are lost in the copy at hand; claims are those of its text."
    ),
    run=run,
    shown=shown_rows,
    columns=(
        Column(key="network", heading="network"),
        Column(key="layers", heading="contractions"),
        Column(key="first", heading="first"),
        Column(key="split", heading="split"),
        Column(key="ms", heading="ms with it"),
        Column(key="best_ms", heading="best ms"),
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
            reason="priced, it sends more and is slower",
            cause=_dearer("AlexNet", "fifth"),
        ),
        Claim(
            source=_SOURCE,
            published="AlexNet: dense layers split output and input channels in turn (4 x 8, 8 x 4, 4 x 8), so that "
            "none is sent between them",
            judge=_alternate,
            reason="priced, it sends more and is slower; the first two alternate here too, and 1,000 outputs of "
            "the last "
            "divide by 8 at most",
            cause=_dearer("AlexNet", "dense"),
        ),
        Claim(source=_SOURCE, published="InceptionV3: data parallelism for modules A to D", judge=_modules),
        Claim(
            source=_SOURCE,
            published="InceptionV3: modules E mix data and parameter parallelism",
            judge=_last_modules,
            reason="priced, such plans send more and are slower",
            cause=_dearer("InceptionV3", "modules E"),
        ),
        Claim(
            source=_SOURCE,
            published="RNNLM: the vocabulary of embedding and projection is split over all devices",
            judge=_vocabulary("RNNLM", whole=True),
            reason="the projection agrees; splitting the embedding's vocabulary sends more than its width",
            cause=_dearer("RNNLM", "embedding"),
        ),
        Claim(
            source=_SOURCE,
            published="RNNLM: LSTM cells split batch, hidden and output dimensions to varying degrees",
            judge=_lstm,
            reason="priced, it sends more and is slower",
            cause=_dearer("RNNLM", "cells"),
        ),
        Claim(
            source=_SOURCE,
            published="Transformer: parameter parallelism for embedding and softmax",
            judge=_vocabulary("Transformer", whole=False),
        ),
        Claim(
            source=_SOURCE,
            published="Transformer: a mix of data and parameter parallelism for the other layers",
            judge=_layers,
        ),
    ),
)
