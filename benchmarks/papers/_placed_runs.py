"""Runs of FlexFlow's networks with operators on devices of their own; judged in `benchmarks.papers.flexflow_placed`."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

from benchmarks.papers._beside_optcnn import NUM_DEVICES, compared
from benchmarks.papers._experiment import Row
from benchmarks.papers._placed import Layer, Machine, PlacedModel, Placement, placements
from benchmarks.papers._placed_networks import NUM_STEPS, classifier, inception, language_model, translation
from jaxplan.mesh import CHIPS
from jaxplan.simulate._simulated_walk import DeltaWalk
from jaxplan.solvers import ChainOptions, walk_chains
from jaxplan.solvers._chain import ScoredWalk

PER_DEVICE = 64
NETWORKS: dict[str, Callable[[int], list[Layer]]] = {
    "NMT": translation,
    "RNNTC": classifier,
    "RNNLM": lambda batch: language_model(batch, 10_000, 2048, 2048, 2),
    "Inception-v3": inception,
}
_DEPTH = {"NMT": (0, 1, 2, 0, 1, 2, 3, 3)}
"""GPU of a node by layer in the experts' strategy: operators of one depth on one GPU (Wu et al. 2016)."""
NUM_PROPOSALS = 400
"""Of a chain over layers; an operator of Inception-v3 has ten."""


def machine(chip: str, count: int) -> Machine:
    """Four devices to a node; those of a K80 in pairs (Figure 5)."""
    return Machine(chip=CHIPS[chip], num_devices=count, pairs=chip == "k80")


def build(
    network: str, chip: str, count: int, configurations: Sequence[Placement] | None = None
) -> PlacedModel:
    """The task graphs of a network with 64 examples a device."""
    steps = 1 if network == "Inception-v3" else NUM_STEPS
    layers = NETWORKS[network](PER_DEVICE * count)
    return PlacedModel(layers, steps, configurations or placements(count), machine(chip, count))


def run() -> list[Row]:
    return [
        *_on_64(),
        *(row for network in NETWORKS for row in _on_four(network, "p100")),
        *(row for network in ("NMT", "Inception-v3") for row in _on_four(network, "k80")),
        *(row for network in ("NMT", "RNNTC", "RNNLM") for row in _beside_optcnn(network)),
    ]


def _row(
    case: tuple[str, str, int], who: str, model: PlacedModel, labels: Sequence[int], seconds: float
) -> Row:
    network, chip, count = case
    sent = model.sent_bytes(labels)
    return {
        "network": network, "chip": chip, "devices": count, "who": who, "ms": model.makespan(labels) * 1e3,
        "sent_gb": sent["all"] / 1e9, "weights_gb": sent["weights"] / 1e9,
        "pairs": sent["within_pairs"] / max(1.0, sent["activations"]),
        "compute_s": model.compute_seconds(labels), "search_s": seconds,
        "placed": _texts(model, labels),
    }  # fmt: skip


def _texts(model: PlacedModel, labels: Sequence[int]) -> str:
    """The configuration of every layer, equal neighbours once."""
    texts: list[tuple[str, str]] = []
    for layer, label in zip(model.layers, labels, strict=True):
        item = (layer.name, model.placements[label].text)
        if not texts or texts[-1][1] != item[1]:
            texts.append(item)
    return "; ".join(f"{name} {text}" for name, text in texts)


def _on_64() -> list[Row]:
    """NMT on 64 K80: data parallelism, the expert's strategy, and the best of walks over uses of all nodes."""
    case = ("NMT", "k80", 64)
    every = tuple(range(64))
    of_nodes = [Placement(samples=16, channels=1, devices=every[gpu::4]) for gpu in range(4)]
    whole = [
        Placement(samples=64, channels=1, devices=every),
        Placement(samples=16, channels=4, devices=every),
    ]
    alone = [Placement(samples=1, channels=1, devices=(4 * gpu,)) for gpu in range(4)]
    model = build(*case, configurations=[*whole, *of_nodes, *alone])
    data, expert = [0] * len(model.layers), [2 + gpu for gpu in _DEPTH["NMT"]]
    start = time.process_time()
    found = _descend(model, expert, data)
    spent = time.process_time() - start
    rows = [("data", data, 0.0), ("expert", expert, 0.0), ("found", found, spent)]
    return [_row(case, who, model, labels, seconds) for who, labels, seconds in rows]


def _descend(model: PlacedModel, *starts: Sequence[int]) -> list[int]:
    """From each start the best configuration of one layer after the other, once; the best of the ends."""
    ends = []
    for start in starts:
        labels, best = list(start), model.makespan(start)
        for layer in range(len(labels)):
            for label in range(len(model.configurations)):
                changed = [*labels[:layer], label, *labels[layer + 1 :]]
                if label != labels[layer] and (seconds := model.makespan(changed)) < best:
                    labels, best = changed, seconds
        ends.append((best, labels))
    return min(ends)[1]


def _walked(model: PlacedModel, starts: Sequence[Sequence[int]], num_random: int = 0) -> list[int]:
    """FlexFlow's chains on simulated seconds, by layers; by operators where there is one time step."""
    by_operator = model.num_steps == 1
    count = 10 * len(model.layers) if by_operator else NUM_PROPOSALS
    options = ChainOptions(num_random=num_random, num_proposals=count)
    problem = model.problem() if by_operator else model.layer_problem()
    if by_operator:
        return list(walk_chains(problem, functools.partial(DeltaWalk, model), starts, options).assignment)
    found = walk_chains(problem, lambda labels: ScoredWalk(model.makespan, labels), starts, options)
    return list(found.assignment)


def _data(model: PlacedModel) -> list[int]:
    everywhere = next(k for k, of in enumerate(model.configurations) if of.samples == model.num_devices)
    return [everywhere] * len(model.layers)


def _on_four(network: str, chip: str) -> list[Row]:
    """On one node: data parallelism, chains, and on K80 chains with one device for each operator (ColocRL)."""
    case = (network, chip, 4)
    model = build(*case)
    start = time.process_time()
    found = _walked(model, [_data(model)])
    spent = time.process_time() - start
    rows = [
        _row(case, "data", model, _data(model), 0.0), _row(case, "found", model, found, spent),
    ]  # fmt: skip
    if network == "NMT":
        rows[-1] = {**rows[-1], "alone_ms": model.makespan(_embeddings_alone(model, found)) * 1e3}
    if chip == "k80":
        alone = build(
            *case, configurations=[Placement(samples=1, channels=1, devices=(d,)) for d in range(4)]
        )
        start = time.process_time()
        placed = _walked(alone, [[k * 4 // len(alone.layers) for k in range(len(alone.layers))]], 1)
        rows.append(_row(case, "one device each", alone, placed, time.process_time() - start))
    return rows


def _embeddings_alone(model: PlacedModel, labels: Sequence[int]) -> list[int]:
    """The same with every embedding on the first of its devices."""
    changed = list(labels)
    for place, layer in enumerate(model.layers):
        if layer.name == "embed":
            first = model.placements[labels[place]].devices[:1]
            changed[place] = model.placements.index(Placement(samples=1, channels=1, devices=first))
    return changed


def _beside_optcnn(network: str) -> list[Row]:
    """On 16 P100: layers fused over time steps on all devices, and time steps on all devices or half of them."""
    case = (network, "p100", NUM_DEVICES)
    compared_with = compared(NETWORKS[network](PER_DEVICE * NUM_DEVICES), NUM_STEPS)
    return [_row(case, who, model, labels, seconds) for who, model, labels, seconds in compared_with]


def measure_causes() -> list[Row]:
    """NMT on 64 K80 with less of the rate lost by products of few rows; and leaner; Inception-v3 without exchange."""
    every = tuple(range(64))
    configurations = [
        Placement(samples=64, channels=1, devices=every),
        Placement(samples=16, channels=4, devices=every),
        *(Placement(samples=16, channels=1, devices=every[gpu::4]) for gpu in range(4)),
        *(Placement(samples=1, channels=1, devices=(4 * gpu,)) for gpu in range(2)),
    ]
    labels = {
        "data": [0] * 8,
        "expert": [2 + gpu for gpu in _DEPTH["NMT"]],
        "channels": [6, 1, 1, 7, 1, 1, 1, 1],
        "lean": [6, 3, 4, 7, 3, 4, 5, 1],
    }
    rows: list[Row] = []
    for half_extent in (CHIPS["k80"].efficiency.half_extent, LOWEST_HALF_EXTENT):
        efficiency = dataclasses.replace(CHIPS["k80"].efficiency, half_extent=half_extent)
        of = dataclasses.replace(
            machine("k80", 64), chip=dataclasses.replace(CHIPS["k80"], efficiency=efficiency)
        )
        model = PlacedModel(translation(64 * PER_DEVICE), NUM_STEPS, configurations, of)
        rows += [
            {"cause": "rows", "half_extent": half_extent, **_row(("NMT", "k80", 64), who, model, chosen, 0.0)}
            for who, chosen in labels.items()
        ]
    for chip, count in (("p100", 4), ("k80", 4), ("p100", 16)):
        layers = [dataclasses.replace(layer, weight_bytes=0.0) for layer in inception(count * PER_DEVICE)]
        bare = PlacedModel(layers, 1, placements(count), machine(chip, count))
        whole = build("Inception-v3", chip, count)
        cut, ms = bare.makespan(_data(bare)) * 1e3, whole.makespan(_data(whole)) * 1e3
        rows.append({"cause": "exchange", "chip": chip, "devices": count, "ms": ms, "without_ms": cut})
    return [*rows, *map(_on_few, (1, 2)), *_without_softmax()]


def _without_softmax() -> list[Row]:
    """RNNLM on 16 P100 with its LSTMs alone."""
    layers = NETWORKS["RNNLM"](PER_DEVICE * NUM_DEVICES)[:-1]
    return [
        {"cause": "without softmax", "who": who, "ms": model.makespan(labels) * 1e3}
        for who, model, labels, _ in compared(layers, NUM_STEPS)
    ]


def _on_few(count: int) -> Row:
    """NMT on so many of four K80, one device for each operator."""
    alone = [Placement(samples=1, channels=1, devices=(d,)) for d in range(count)]
    model = build("NMT", "k80", 4, configurations=alone)
    placed = _walked(model, [[k * count // len(model.layers) for k in range(len(model.layers))]], 1)
    return {"cause": "few", "devices": count, "ms": model.makespan(placed) * 1e3}


LOWEST_HALF_EXTENT = 25.0
"""At which products of 256 rows take 21 % less than of 64, as Figure 7c has it: (1 + 25/256) / (1 + 25/64) = 0.79."""
