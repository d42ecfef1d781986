"""TensorOpt, Figure 7: the frontier of the Transformer by model size, network between machines and links within.

python -m benchmarks.papers tensoropt-figure7
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers._experiment import Claim, Column, Experiment, Judge, Row
from benchmarks.papers._steps import Priced, figures, tensoropt_machine, traced
from benchmarks.papers._tolerance import NOTABLE, SAME, near
from benchmarks.papers._turning_point import slopes, turning_point
from jaxplan.mesh import Topology
from jaxplan.mesh._scaled import with_bandwidth

NETWORK = "transformer-9.7gb"
WIDTHS = (1920, 3840)
NETWORKS = {"no RDMA": 0.5, "RDMA": 1.0, "4x RDMA": 4.0}
"""Bandwidth between machines, of that with RDMA (section 5.1)."""
LINKS = {"NVLink": 1.0, "PCIe": 1 / 20}
"""Bandwidth within a machine, as the paper measured it (section 5.1)."""


def run(
    widths: Sequence[int] = WIDTHS,
    networks: Sequence[str] = tuple(NETWORKS),
    links: Sequence[str] = tuple(LINKS),
) -> list[Row]:
    machine = tensoropt_machine(16)
    rows = [row for width in widths for row in _rows("size", f"width {width:,}", machine, width=width)]
    for name in networks:
        of_largest = [
            {**row, "part": "network", "case": name} for row in rows if row["case"] == f"width {WIDTHS[-1]:,}"
        ]
        with_links = with_bandwidth(machine, {"node": NETWORKS[name]})
        rows += of_largest if NETWORKS[name] == 1 and of_largest else _rows("network", name, with_links)
    for name in links:
        rows += _rows("links", name, with_bandwidth(tensoropt_machine(8), LINKS[name]))
    return rows


def _rows(part: str, name: str, topology: Topology, **overrides: int) -> list[Row]:
    plans = Priced(traced(NETWORK, **overrides), topology).plans("ft")
    return [{"part": part, "case": name, **figures(plan)} for plan in plans]


def _cases(rows: Sequence[Row], part: str) -> dict[str, list[Row]]:
    """The points of each case of a part, leanest first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["part"] == part:
            found.setdefault(row["case"], []).append(row)
    return found


def _turn(points: Sequence[Row]) -> Row:
    return points[turning_point(points)]


def _shapes(part: str) -> Judge:
    return lambda rows: _shaped(rows, part)


def _shaped(rows: Sequence[Row], part: str) -> tuple[bool, str]:
    """Every frontier of a part has its turning point."""
    found = {name: slopes(points) for name, points in _cases(rows, part).items()}
    texts = [
        f"{name}: {before:,.0f} and {after:,.1f} ms per GiB below and above"
        for name, (before, after) in found.items()
    ]
    return all(before > 2 * after for before, after in found.values()), "; ".join(texts)


def _larger(rows: Sequence[Row]) -> tuple[bool, str]:
    turns = [_turn(points)["gib"] for points in _cases(rows, "size").values()]
    return turns == sorted(turns), f"turning points at {', '.join(f'{gib:.2f}' for gib in turns)} GiB"


def _same_memory(rows: Sequence[Row]) -> tuple[bool, str]:
    turns = {name: _turn(points)["gib"] for name, points in _cases(rows, "network").items()}
    spread = max(turns.values()) / min(turns.values())
    return spread < NOTABLE, ", ".join(
        f"{name} {gib:.2f} GiB" for name, gib in turns.items()
    ) + f" (spread {spread:.2f})"


def _half_the_time(rows: Sequence[Row]) -> tuple[bool, str]:
    cases = _cases(rows, "network")
    fast, slow = (_turn(cases[name]) for name in ("4x RDMA", "no RDMA"))
    ratio = fast["ms"] / slow["ms"]
    sent = fast["communication_ms"] / slow["communication_ms"]
    return near(ratio, 0.5), (
        f"{ratio:.2f} of the time (communication {sent:.2f}; {slow['compute_ms']:,.0f} ms are compute)"
    )


def _links(rows: Sequence[Row]) -> tuple[bool, str]:
    cases = _cases(rows, "links")
    ratios = []
    for point in cases["NVLink"]:
        within = [p["ms"] for p in cases["PCIe"] if p["gib"] <= point["gib"] * SAME]
        ratios += [min(within) / point["ms"]] if within else []
    return bool(ratios) and min(
        ratios
    ) >= NOTABLE, f"PCIe takes {min(ratios):.2f} to {max(ratios):.2f} times as long"


def shown_points(rows: Sequence[Row]) -> list[Row]:
    """Of each frontier the leanest point, the turning point and the fastest."""
    shown: list[Row] = []
    for part in ("size", "network", "links"):
        for points in _cases(rows, part).values():
            shown += [points[k] for k in sorted({0, turning_point(points), len(points) - 1})]
    return shown


_SOURCE = "TensorOpt 5.1, Figure 7"
EXPERIMENT = Experiment(
    name="tensoropt-figure7",
    title="TensorOpt, Figure 7: model size and bandwidth",
    setting=(
        "The Transformer of Figure 6 on two machines of 8 V100: two widths; the network between machines at half, "
        "once and four times; on one machine, links within it at the speed of NVLink and at a twentieth, which the "
        "paper measured of PCIe. Of each frontier the leanest point, the turning point and the fastest are shown."
    ),
    run=run,
    shown=shown_points,
    columns=(
        Column(key="part", heading="part"),
        Column(key="case", heading="case"),
        Column(key="gib", heading="GiB"),
        Column(key="ms", heading="ms", digits=0),
        Column(key="compute_ms", heading="compute ms", digits=0),
        Column(key="communication_ms", heading="communication ms", digits=0),
    ),
    claims=(
        Claim(
            source=f"{_SOURCE}a",
            published="frontiers of all sizes have a similar shape",
            judge=_shapes("size"),
        ),
        Claim(
            source=f"{_SOURCE}a",
            published="a larger model has its turning point at more memory",
            judge=_larger,
        ),
        Claim(
            source=f"{_SOURCE}b",
            published="frontiers on all networks have a similar shape",
            judge=_shapes("network"),
        ),
        Claim(
            source=f"{_SOURCE}b",
            published="the memory of the turning point is almost the same for all networks",
            judge=_same_memory,
        ),
        Claim(
            source=f"{_SOURCE}b",
            published="at the turning point 4x RDMA takes half the time of no RDMA",
            judge=_half_the_time,
        ),
        Claim(
            source=f"{_SOURCE}c",
            published="NVLink is significantly faster than PCIe at the same memory",
            judge=_links,
        ),
    ),
)
