"""TensorOpt, Table 1: parameters of its networks, and the memory of training them on one GPU.

python -m benchmarks.papers tensoropt-table1
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from benchmarks.models import build
from benchmarks.papers._experiment import Claim, Column, Experiment, Row
from benchmarks.papers._steps import GIB, traced
from benchmarks.papers._tolerance import near
from benchmarks.papers.tensoropt_table4 import NETWORKS as OF_TABLE_4
from jaxplan.cost import build_cost_model
from jaxplan.mesh import Topology
from jaxplan.simulate import predictor_of

NETWORKS = {
    "RNN": ("rnn-116gb", {}),
    "WideResNet": OF_TABLE_4["WideResNet"],
    "Transformer": ("transformer-9.7gb", {}),
    "VGG16": OF_TABLE_4["VGG16"],
}
PUBLISHED = {
    "RNN": (108.0, 126.0),
    "WideResNet": (7.3, 83.0),
    "Transformer": (9.7, 74.0),
    "VGG16": (0.52, 30.0),
}
"""GB of parameters and of memory; they are GiB, as VGG16 shows."""


def run(networks: Sequence[str] = tuple(NETWORKS)) -> list[Row]:
    return [_row(network) for network in networks]


def _row(network: str) -> Row:
    name, overrides = NETWORKS[network]
    _, (state, _) = build(name, **overrides)
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.params))
    model = build_cost_model(traced(name, **overrides), Topology.parse("v100:1"))
    problem = model.problem
    prediction, _ = predictor_of(model).predict([0] * problem.num_nodes, [0] * len(problem.edges))
    parameters, memory = PUBLISHED[network]
    return {
        "network": network,
        "parameters_gib": weights / GIB,
        "published_parameters_gib": parameters,
        "memory_gib": prediction.memory_bytes / GIB,
        "without_gradients_gib": (prediction.memory_bytes - weights) / GIB,
        "published_memory_gib": memory,
    }


def _parameters(rows: Sequence[Row]) -> tuple[bool, str]:
    ratios = {row["network"]: row["parameters_gib"] / row["published_parameters_gib"] - 1 for row in rows}
    texts = ", ".join(f"{network} {error:+.1%}" for network, error in ratios.items())
    return all(abs(error) <= 0.01 for error in ratios.values()), texts


def _memory(rows: Sequence[Row]) -> tuple[bool, str]:
    texts = [
        f"{row['network']} {row['memory_gib']:.0f} GiB, {row['without_gradients_gib']:.0f} without as many bytes as "
        f"weights ({row['published_memory_gib']:.0f})"
        for row in rows
    ]
    holds = all(near(row["without_gradients_gib"], row["published_memory_gib"]) for row in rows)
    return holds, "; ".join(texts)


def measure_causes() -> list[Row]:
    """Bytes of every result of the forward pass of VGG16 that an operator of the paper's kind would write."""
    graph = traced(NETWORKS["VGG16"][0], **NETWORKS["VGG16"][1])
    results = [
        graph.program.tensors[eqn.results[0]].num_bytes
        for eqn in graph.program.equations
        if eqn.phase == "forward" and eqn.name in _OPERATORS
    ]
    return [{"network": "VGG16", "results_gib": sum(results) / GIB}]


_OPERATORS = ("conv_general_dilated", "dot_general", "max", "custom_jvp_call", "reduce_window_max")
"""Convolution and product (with their bias), ReLU, pooling: each an operator with a result of its own."""


def _operators_results(rows: Sequence[Row], causes: Sequence[Row]) -> tuple[bool, str]:
    row = next(row for row in rows if row["network"] == "VGG16")
    total = causes[0]["results_gib"] + row["parameters_gib"]
    return near(total, row["published_memory_gib"]) and total > row["without_gradients_gib"], (
        f"VGG16: results of all operators of the forward pass and weights {total:.1f} GiB (published "
        f"{row['published_memory_gib']:.0f})"
    )


EXPERIMENT = Experiment(
    name="tensoropt-table1",
    title="TensorOpt, Table 1: sizes of the networks",
    setting=(
        "The paper gives parameters, batch (256) and memory on one GPU alone. Steps of a recurrence (20), tokens of "
        "the Transformer (64) and the size of images (128) are chosen so that memory is near: they are the only "
        "things open. VGG16 has images of 224."
    ),
    run=run,
    measure_causes=measure_causes,
    columns=(
        Column(key="network", heading="network"),
        Column(key="parameters_gib", heading="parameters GiB"),
        Column(key="published_parameters_gib", heading="published"),
        Column(key="memory_gib", heading="memory GiB", digits=1),
        Column(key="without_gradients_gib", heading="less the weights' bytes once", digits=1),
        Column(key="published_memory_gib", heading="published", digits=1),
    ),
    claims=(
        Claim(
            source="TensorOpt 5, Table 1",
            published="108, 7.3, 9.7 and 0.52 GB of parameters",
            judge=_parameters,
        ),
        Claim(
            source="TensorOpt 5, Table 1",
            published="126, 83, 74 and 30 GB of memory on one GPU, gradients not counted",
            judge=_memory,
            reason="the paper's estimate counts the result of every operator, convolution and ReLU apart, where the "
            "compiler fuses them",
            cause=_operators_results,
        ),
    ),
)
