"""TensorOpt, Figure 6: frontiers of three networks on 16 V100, and the points of the searches beside it.

python -m benchmarks.papers tensoropt-figure6
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from benchmarks.papers._experiment import Claim, Column, Experiment, Judge, Row
from benchmarks.papers._steps import (
    GIB,
    Priced,
    figures,
    partitioned,
    split_alone,
    tensoropt_machine,
    traced,
    without_redundancy,
)
from benchmarks.papers._tolerance import NOTABLE, SAME, near
from benchmarks.papers._turning_point import slopes, turning_point
from jaxplan.ir import parse_aval
from jaxplan.mesh._scaled import with_bandwidth
from jaxplan.plans._plan import Plan

NETWORKS = {"RNN": "rnn-116gb", "WideResNet": "wresnet-7.3gb", "Transformer": "transformer-9.7gb"}


def run(networks: Sequence[str] = tuple(NETWORKS), num_devices: int = 16) -> list[Row]:
    return [row for network in networks for row in _rows(network, num_devices)]


def _rows(network: str, num_devices: int) -> list[Row]:
    graph, topology = traced(NETWORKS[network]), tensoropt_machine(num_devices)
    priced = Priced(graph, topology)
    rows: list[Row] = []
    for solver in ("ft", "one_mesh"):
        plans = priced.plans(solver)
        repeated = [len(plan.repeated) for plan in plans]
        rows += [
            {"who": solver, **figures(p), "fetched_again": n} for p, n in zip(plans, repeated, strict=True)
        ]
    # OptCNN minimises time alone: its eliminations, or where they get stuck PaSE's, which end at the same optimum.
    rows.append({"who": "optcnn", **figures(priced.plans("pase")[-1])})
    rows.append({"who": "data", **figures(priced.reference("data"))})
    rows.append({"who": "tofu", **figures(partitioned(graph, topology, "tofu")[0])})
    return [{"network": network, **row} for row in rows]


def of(rows: Sequence[Row], network: str, who: str) -> list[Row]:
    """The points of one search for a network, leanest first."""
    return [row for row in rows if row["network"] == network and row["who"] == who]


def per_network(judge_one: Callable[[Sequence[Row], str], tuple[bool, str]], *networks: str) -> Judge:
    """A claim that has to hold for each network."""

    def judge(rows: Sequence[Row]) -> tuple[bool, str]:
        found = [judge_one(rows, network) for network in networks or NETWORKS]
        return all(holds for holds, _ in found), "; ".join(text for _, text in found)

    return judge


def _network_time(rows: Sequence[Row], network: str) -> tuple[bool, str]:
    """Between the ends of the frontier the change of communication is at least as large as that of compute."""
    lean, *_, fast = of(rows, network, "ft")
    compute, sent = (lean[k] - fast[k] for k in ("compute_ms", "communication_ms"))
    stays = max(lean["compute_ms"], fast["compute_ms"]) < NOTABLE * min(
        lean["compute_ms"], fast["compute_ms"]
    )
    return stays and sent > abs(compute), (
        f"{network}: compute {lean['compute_ms']:,.0f} to {fast['compute_ms']:,.0f} ms, communication "
        f"{lean['communication_ms']:,.0f} to {fast['communication_ms']:,.0f}"
    )


def _more_compute(rows: Sequence[Row], network: str) -> tuple[bool, str]:
    lean, *_, fast = of(rows, network, "ft")
    return lean["compute_ms"] > SAME * fast["compute_ms"], (
        f"{network}: {lean['compute_ms']:,.0f} ms at the leanest, {fast['compute_ms']:,.0f} at the fastest"
    )


def _turns(rows: Sequence[Row], network: str) -> tuple[bool, str]:
    points = of(rows, network, "ft")
    before, after = slopes(points)
    turn = points[turning_point(points)]
    return before > 2 * after, (
        f"{network}: at {turn['gib']:.1f} GiB, {before:,.0f} ms per GiB below and {after:,.1f} above"
    )


def _copies(rows: Sequence[Row], network: str) -> tuple[bool, str]:
    points = of(rows, network, "ft")
    lean, fast = points[0], points[-1]
    return lean["fetched_again"] > fast["fetched_again"], (
        f"{network}: {lean['fetched_again']} tensors fetched again at the leanest, {fast['fetched_again']} at the "
        "fastest"
    )


def _below_one_mesh(rows: Sequence[Row], network: str) -> tuple[bool, str]:
    """At every memory at which Mesh-TensorFlow has a plan, TensorOpt has one that is no slower."""
    ours, ratios = of(rows, network, "ft"), []
    for point in of(rows, network, "one_mesh"):
        within = [p["ms"] for p in ours if p["gib"] <= point["gib"] * SAME]
        ratios.append(point["ms"] / min(within) if within else 0.0)
    return min(ratios) * SAME >= 1, f"{network}: {min(ratios):.2f} to {max(ratios):.2f} times its time"


def _leaner_than_one_mesh(rows: Sequence[Row], network: str) -> tuple[bool, str]:
    least = {who: of(rows, network, who)[0]["gib"] for who in ("ft", "one_mesh")}
    return least["one_mesh"] > NOTABLE * least[
        "ft"
    ], f"{network}: {least['one_mesh']:.1f} GiB against {least['ft']:.1f}"


def _one_mesh_is_data(rows: Sequence[Row]) -> tuple[bool, str]:
    points, (data,) = of(rows, "WideResNet", "one_mesh"), of(rows, "WideResNet", "data")
    best = min(points, key=lambda row: row["ms"])
    text = f"{len(points)} points; its fastest {best['ms']:,.0f} ms, {best['gib']:.1f} GiB, data parallelism "
    is_data = (
        all(abs(p["gib"] / data["gib"] - 1) < SAME - 1 for p in points) and best["ms"] * SAME > data["ms"]
    )
    return is_data, f"{text}{data['ms']:,.0f} ms, {data['gib']:.1f} GiB"


def _data_is_poor(rows: Sequence[Row], network: str) -> tuple[bool, str]:
    (data,), fast = of(rows, network, "data"), of(rows, network, "ft")[-1]
    return data["ms"] > fast["ms"] and data["gib"] > fast["gib"], (
        f"{network}: {data['ms'] / fast['ms']:.2f} times the time and {data['gib'] / fast['gib']:.1f} times the "
        "memory of the fastest"
    )


def _optcnn_is_fastest(rows: Sequence[Row], network: str) -> tuple[bool, str]:
    (optcnn,), fast = of(rows, network, "optcnn"), of(rows, network, "ft")[-1]
    ratio = optcnn["ms"] / fast["ms"]
    return 1 / SAME < ratio < SAME, f"{network}: {ratio:.3f} times the fastest point's time"


def _tofu_is_lean(rows: Sequence[Row], network: str) -> tuple[bool, str]:
    (tofu,), points = of(rows, network, "tofu"), of(rows, network, "ft")
    slower = tofu["ms"] / points[-1]["ms"]
    middle = points[turning_point(points)]["gib"]
    return slower > SAME and tofu["gib"] <= SAME * middle, (
        f"{network}: {tofu['gib']:.1f} GiB and {slower:.2f} times the fastest point's time"
    )


def _data_of_rnn(rows: Sequence[Row]) -> tuple[bool, str]:
    (data,) = of(rows, "RNN", "data")
    seconds = data["ms"] / 1e3
    return near(seconds, 39) and near(data["gib"], 109), f"{data['gib']:.0f} GiB and {seconds:.0f} s"


def measure_causes() -> list[Row]:
    """WideResNet without redundant work, and on half of the network; the RNN's weights, and what ToFu fetches of it."""
    rows: list[Row] = []
    wide = traced(NETWORKS["WideResNet"])
    for plan in without_redundancy(Priced(wide, tensoropt_machine(16)), "ft"):
        rows.append({"cause": "split", **figures(plan)})
    for plan in Priced(wide, with_bandwidth(tensoropt_machine(16), {"node": 0.5})).plans("ft"):
        rows.append({"cause": "half the network", **figures(plan)})
    graph = traced(NETWORKS["RNN"])
    plan, _ = partitioned(graph, tensoropt_machine(16), "tofu")
    stored = sum(size for role, size in _argument_bytes(plan) if role != "data")
    whole = sum(t.num_bytes for t in graph.program.tensors if t.kind == "input" and "params" in t.path)
    rows.append(
        {"cause": "tofu", "gib": plan.memory_bytes / GIB, "stored_gib": stored / GIB, "weights_gib": whole / GIB,
         "largest_gib": max((c.num_bytes for c in plan.prediction.collectives), default=0) / GIB}
    )  # fmt: skip
    split = split_alone(Priced(graph, tensoropt_machine(16)))
    return [*rows, {"cause": "one copy", **figures(split)}]


def _argument_bytes(plan: Plan) -> list[tuple[str, float]]:
    """Role and bytes on one device of every argument."""
    found = []
    for role, aval, sharding in zip(plan.in_roles, plan.in_avals, plan.input_shardings, strict=True):
        _, shape = parse_aval(aval)
        parts = math.prod(plan.topology.axes[a].size for dim in sharding.dims for a in dim)
        found.append((role, 4.0 * math.prod(shape) / parts))
    return found


def _redundancy_takes_memory(rows: Sequence[Row], causes: Sequence[Row]) -> tuple[bool, str]:
    """Redundant work forbidden: whether the leanest plan needs it; and where a slower network makes it pay."""
    least = of(rows, "WideResNet", "ft")[0]["gib"]
    split = [row for row in causes if row["cause"] == "split"]
    slow = [row for row in causes if row["cause"] == "half the network"]
    lean, fast = slow[0], slow[-1]
    text = (
        f"WideResNet's leanest plan {least:.2f} GiB, without redundant work {split[0]['gib']:.2f}; on half of the "
        f"network compute is {lean['compute_ms']:,.0f} ms at the leanest ({lean['gib']:.1f} GiB) and "
        f"{fast['compute_ms']:,.0f} at the fastest ({fast['gib']:.1f})"
    )
    return split[0]["gib"] <= SAME * least and fast["compute_ms"] > NOTABLE * lean["compute_ms"], text


def _gradients(rows: Sequence[Row], causes: Sequence[Row]) -> tuple[bool, str]:
    (data,), (cause,) = of(rows, "RNN", "data"), [r for r in causes if r["cause"] == "tofu"]
    rest = data["gib"] - cause["weights_gib"]
    return near(
        rest, 109
    ), f"{data['gib']:.0f} GiB less {cause['weights_gib']:.0f} of gradients are {rest:.0f}"


def _as_simulated_there(rows: Sequence[Row], causes: Sequence[Row]) -> tuple[bool, str]:
    """The paper's own ToFu: whether it is lean and slow."""
    (split,), points = [r for r in causes if r["cause"] == "one copy"], of(rows, "RNN", "ft")
    middle, slower = points[turning_point(points)]["gib"], split["ms"] / points[-1]["ms"]
    return split["gib"] <= SAME * middle and slower > SAME, (
        f"RNN split so takes {split['gib']:.1f} GiB (turning point {middle:.1f}) and {slower:.2f} times the fastest "
        "point's time"
    )


def _significantly(rows: Sequence[Row], network: str) -> tuple[bool, str]:
    """The fastest of either."""
    ours, other = (min(p["ms"] for p in of(rows, network, who)) for who in ("ft", "one_mesh"))
    return other >= NOTABLE * ours, f"{network}: {other / ours:.2f} times as fast"


def _by_memory(rows: Sequence[Row], causes: Sequence[Row]) -> tuple[bool, str]:
    """The memory of TensorOpt's leanest plan that is no slower than Mesh-TensorFlow's fastest."""
    found = {}
    for network in NETWORKS:
        other = min(of(rows, network, "one_mesh"), key=lambda p: p["ms"])
        least = min(p["gib"] for p in of(rows, network, "ft") if p["ms"] <= SAME * other["ms"])
        found[network] = other["gib"] / least
    texts = ", ".join(f"{network} {times:.1f} times" for network, times in found.items())
    return min(found.values()) >= NOTABLE, f"less memory at the time of Mesh-TensorFlow's fastest plan: {texts}"


def shown_points(rows: Sequence[Row]) -> list[Row]:
    """Of each frontier the leanest point, the turning point and the fastest."""
    shown: list[Row] = []
    for network in dict.fromkeys(row["network"] for row in rows):
        for who in dict.fromkeys(row["who"] for row in rows):
            points = of(rows, network, who)
            kept = sorted({0, turning_point(points), len(points) - 1}) if points else []
            shown += [points[k] for k in kept]
    return shown


_SOURCE = "TensorOpt 5.1, Figure 6"
EXPERIMENT = Experiment(
    name="tensoropt-figure6",
    title="TensorOpt, Figure 6: frontiers of three networks on 16 V100",
    setting=(
        "Two machines of 8 V100 with 16 GB on NVLink, one card of 100 Gbit/s between them; float32, SGD, batch 256. "
        "The paper gives the sizes of its networks (Table 1) alone: RNN is 4 LSTMs of 28,672 units over 20 steps "
        "with 48,000 words, WideResNet a ResNet-101 with 6.75 times the channels on images of 128 x 128, "
        "Transformer 6 + 6 layers of width 3,840 over 64 tokens. A frontier is shown by its leanest point, turning "
        "point and fastest; OptCNN's point is the least time (`pase` where its eliminations get stuck)."
    ),
    run=run,
    measure_causes=measure_causes,
    columns=(
        Column(key="network", heading="network"),
        Column(key="who", heading="search"),
        Column(key="gib", heading="GiB"),
        Column(key="ms", heading="ms", digits=0),
        Column(key="compute_ms", heading="compute ms", digits=0),
        Column(key="communication_ms", heading="communication ms", digits=0),
        Column(key="fetched_again", heading="tensors fetched again"),
    ),
    shown=shown_points,
    claims=(
        Claim(
            source=_SOURCE,
            published="compute stays stable along the frontier, and network time falls with more memory",
            judge=per_network(_network_time),
        ),
        Claim(
            source=_SOURCE,
            published="WideResNet computes more where memory is limited, by redundant work",
            judge=per_network(_more_compute, "WideResNet"),
            reason="work that several devices do alike leaves its result whole on each of them, so here it takes "
            "memory and saves time on the network: it is found at the other end, and on a slower network",
            cause=_redundancy_takes_memory,
        ),
        Claim(
            source=_SOURCE,
            published="all three have a turning point, below which time rises rapidly",
            judge=per_network(_turns),
        ),
        Claim(
            source=_SOURCE,
            published="where memory is limited one copy of a tensor is kept, and it is sent again in the backward "
            "pass; with more memory both copies are",
            judge=per_network(_copies),
        ),
        Claim(
            source=_SOURCE,
            published="RNN and Transformer: always faster than Mesh-TensorFlow at the same memory",
            judge=per_network(_below_one_mesh, "RNN", "Transformer"),
        ),
        Claim(
            source=_SOURCE,
            published="RNN and Transformer: Mesh-TensorFlow needs significantly more memory at least",
            judge=per_network(_leaner_than_one_mesh, "RNN", "Transformer"),
        ),
        Claim(
            source=_SOURCE,
            published="TensorOpt significantly outperforms Mesh-TensorFlow, in all three",
            judge=per_network(_significantly),
            reason="the claim is judged by the time of the fastest plans; what the restriction costs WideResNet and "
            "Transformer here is memory",
            cause=_by_memory,
        ),
        Claim(
            source=_SOURCE,
            published="WideResNet: Mesh-TensorFlow has one point, which is data parallelism",
            judge=_one_mesh_is_data,
        ),
        Claim(
            source=_SOURCE,
            published="data parallelism takes more memory and time than TensorOpt's fastest, in all three",
            judge=per_network(_data_is_poor),
        ),
        Claim(
            source=_SOURCE,
            published="RNN: data parallelism takes 109 GB and 39 s",
            judge=_data_of_rnn,
            reason="seconds agree; the paper counts weights (108 GiB) without their gradients, which are as large "
            "and live until they are summed",
            cause=_gradients,
        ),
        Claim(
            source=_SOURCE,
            published="OptCNN finds the fastest point of the frontier",
            judge=per_network(_optcnn_is_fastest),
        ),
        Claim(
            source=_SOURCE,
            published="ToFu takes little memory and long",
            judge=per_network(_tofu_is_lean),
            reason="Tofu's own search is run here, which fetches large parts of the RNN's weights; TensorOpt "
            "simulated ToFu in its cost model, all tensors split over all devices and one copy kept",
            cause=_as_simulated_there,
        ),
    ),
)
