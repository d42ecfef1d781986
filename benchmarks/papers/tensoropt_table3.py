"""TensorOpt, Table 3: seconds to track the frontier, by linear dynamic programming and by elimination.

python -m benchmarks.papers tensoropt-table3
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.papers._experiment import Claim, Column, Experiment, Row
from benchmarks.papers._steps import Priced, tensoropt_machine, traced
from benchmarks.papers._tolerance import NOTABLE
from benchmarks.papers.tensoropt_figure6 import NETWORKS
from jaxplan.solvers import Problem, frontier
from jaxplan.solvers._ft import track_frontier

PUBLISHED = {"RNN": (0.28, 1.78, 0.40), "WideResNet": (1292, 19666, 17432), "Transformer": (201, 3030, 1535)}
"""Seconds: FT-LDP, FT-Elimination, FT-LDP on one thread."""
POINTS = 4
"""Points that a list is thinned to, so that both end in minutes."""
BUDGET = 100_000_000
"""Candidates after which a search is given up, some 5 s."""


def run(networks: Sequence[str] = tuple(NETWORKS), num_devices: int = 16) -> list[Row]:
    return [_row(network, num_devices) for network in networks]


def _row(network: str, num_devices: int) -> Row:
    priced = Priced(traced(NETWORKS[network]), tensoropt_machine(num_devices))
    problem = priced.model.problem
    row: dict[str, object] = {"network": network, "nodes": problem.num_nodes, "pricing_s": priced.seconds}
    for key, linear in (("ldp_s", True), ("elimination_s", False)):
        start = time.process_time()
        found = track_frontier(problem, cap=POINTS, budget=BUDGET, linear=linear)
        row[key] = time.process_time() - start
        row[key.replace("_s", "_done")] = found is not None
    start = time.process_time()
    frontier(problem, "ft")
    row["ft_s"] = time.process_time() - start
    ldp, elimination, one_thread = PUBLISHED[network]
    published = {
        "published_ldp_s": ldp,
        "published_elimination_s": elimination,
        "published_one_thread_s": one_thread,
    }
    return {**row, **{key: float(value) for key, value in published.items()}}


def _faster(rows: Sequence[Row]) -> tuple[bool, str]:
    texts = [
        f"{r['network']} {r['ldp_s']:.1f} s{'' if r['ldp_done'] else ' (given up)'} against "
        f"{r['elimination_s']:.1f} s{'' if r['elimination_done'] else ' (given up)'}"
        for r in rows
    ]
    return all(r["ldp_done"] and r["ldp_s"] * NOTABLE <= r["elimination_s"] for r in rows), ", ".join(texts)


def measure_causes() -> list[Row]:
    """A chain of random prices, which is the linear graph of the paper's analysis."""
    rng = np.random.default_rng(0)
    length, size = 24, 24
    problem = Problem(
        time=[rng.random(size) for _ in range(length)],
        memory=[rng.integers(1, 1000, size) for _ in range(length)],
        edges=[(v, v + 1, rng.random((size, size))) for v in range(length - 1)],
    )
    row: dict[str, object] = {"nodes": length, "configurations": size}
    for key, linear in (("ldp_s", True), ("elimination_s", False)):
        start = time.process_time()
        track_frontier(problem, cap=POINTS, budget=BUDGET, linear=linear)
        row[key] = time.process_time() - start
    return [row]


def _faster_on_a_chain(rows: Sequence[Row], causes: Sequence[Row]) -> tuple[bool, str]:
    (row,) = causes
    text = (
        f"on a chain of {row['nodes']} nodes with {row['configurations']} configurations FT-LDP takes "
        f"{row['ldp_s']:.2f} "
        f"s, FT-Elimination {row['elimination_s']:.2f}"
    )
    return row["ldp_s"] * NOTABLE < row["elimination_s"], text


def _order(rows: Sequence[Row]) -> tuple[bool, str]:
    """Which network takes longest: prices and `ft`, against FT-LDP."""
    ours = {r["network"]: r["ft_s"] + r["pricing_s"] for r in rows}
    published = {r["network"]: r["published_ldp_s"] for r in rows}
    by = [sorted(of, key=of.__getitem__) for of in (ours, published)]
    return by[0] == by[1], ", ".join(f"{network} {ours[network]:.1f} s" for network in by[0])


def _minutes(rows: Sequence[Row]) -> tuple[bool, str]:
    texts = ", ".join(f"{r['network']} {r['ft_s'] + r['pricing_s']:.1f} s" for r in rows)
    return all(
        r["ft_s"] + r["pricing_s"] < 20 * 60 for r in rows
    ), f"prices and the frontier of `ft`: {texts}"


_SOURCE = "TensorOpt 5.2, Table 3"
EXPERIMENT = Experiment(
    name="tensoropt-table3",
    title="TensorOpt, Table 3: seconds of the search",
    setting=(
        f"The networks of Figure 6 on 16 V100, processor seconds on one core. Lists are thinned to {POINTS} points "
        f"in the first two columns of seconds and given up after {BUDGET:.0e} candidates; `ft` is the solver as it "
        "is (lists where they fit, hull and moves elsewhere)."
    ),
    run=run,
    measure_causes=measure_causes,
    columns=(
        Column(key="network", heading="network"),
        Column(key="nodes", heading="nodes"),
        Column(key="pricing_s", heading="pricing s", digits=1),
        Column(key="ldp_s", heading="lists, FT-LDP s", digits=1),
        Column(key="elimination_s", heading="lists, FT-Elimination s", digits=1),
        Column(key="ft_s", heading="`ft` s", digits=1),
        Column(key="published_ldp_s", heading="published: FT-LDP"),
        Column(key="published_elimination_s", heading="FT-Elimination"),
        Column(key="published_one_thread_s", heading="FT-LDP, one thread"),
    ),
    claims=(
        Claim(
            source=_SOURCE,
            published="FT-LDP is significantly faster than FT-Elimination",
            judge=_faster,
            reason="the graph of a whole train step is no chain: both fix or merge nodes of high degree first",
            cause=_faster_on_a_chain,
        ),
        Claim(
            source=_SOURCE,
            published="WideResNet takes longest and the RNN least",
            judge=_order,
        ),
        Claim(
            source=_SOURCE,
            published="tens of minutes are enough for complex models",
            judge=_minutes,
        ),
        Claim(
            source=_SOURCE,
            published="many threads make it up to 13 times as fast",
            reason="no threads: tables are NumPy arrays, and equal layers are worked on once (docs/solvers.md)",
        ),
    ),
)
