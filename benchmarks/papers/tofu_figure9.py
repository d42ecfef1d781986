"""Tofu, Figure 9: Wide ResNets of 50 to 152 layers on eight K80.

python -m benchmarks.papers tofu-figure9
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers._experiment import Claim, Column, Experiment, Row
from benchmarks.papers._large import on_eight, on_one, row_of

WIDTHS = {50: (4, 10), 101: (4,), 152: (10,)}
"""The narrowest and the widest of all, and those that the paper's claims name; the others lie between them."""
NETWORKS = [f"wresnet-{depth}-{times}" for depth, widths in WIDTHS.items() for times in widths]
_BATCHES = tuple(2**k for k in range(8))


def run(networks: Sequence[str] = NETWORKS, batches: tuple[int, int] = (8, 32)) -> list[Row]:
    return [_row(name, batches) for name in networks]


def _row(name: str, batches: tuple[int, int]) -> Row:
    single = on_one(name, batches)
    split, seconds = on_eight(name, batches)
    fits = split.largest([b for b in _BATCHES if b >= 8])
    return row_of(name, single, split, seconds, fits, _BATCHES)


def _all_fit(rows: Sequence[Row]) -> tuple[bool, str]:
    texts = [f"{row['network']} {row['batch'] or 'no batch'}" for row in rows]
    return all(row["batch"] for row in rows), "largest batch that fits: " + ", ".join(texts)


def _shares(rows: Sequence[Row]) -> tuple[bool, str]:
    added = [row["share"] for row in rows if "share" in row]
    hidden = [row["share_overlapped"] for row in rows if "share" in row]
    text = (
        f"{min(added):.0%} to {max(added):.0%} with communication added, {min(hidden):.0%} to {max(hidden):.0%} "
        "with it hidden"
    )
    return min(added) >= 0.6 and min(hidden) >= 0.6, text


def _small_only(rows: Sequence[Row]) -> tuple[bool, str]:
    fitting = [row["network"] for row in rows if row["small_batch"]]
    return set(fitting) == {
        "wresnet-50-4",
        "wresnet-101-4",
    }, f"fits with a small batch: {', '.join(fitting) or 'none'}"


def _small_wins(rows: Sequence[Row]) -> tuple[bool, str]:
    ratios = {
        row["network"]: row["small_batch"] / row["tofu"]
        for row in rows
        if row["small_batch"] and row.get("tofu")
    }
    texts = ", ".join(f"{name} {ratio:.2f} times" for name, ratio in ratios.items())
    return all(ratios.get(name, 0) > 1 for name in ("wresnet-50-4", "wresnet-101-4")), texts


def _swapping(rows: Sequence[Row]) -> tuple[bool, str]:
    ratios = [row["swapping"] / row["tofu"] for row in rows if row.get("tofu")]
    return max(ratios) < 1, f"at most {min(ratios):.0%} to {max(ratios):.0%} of Tofu's"


_SOURCE = "Tofu 6.2, Figure 9"
_COMMAND = "python -m benchmarks.papers tofu-figure9"
EXPERIMENT = Experiment(
    name="tofu-figure9",
    title="Tofu, Figure 9: Wide ResNets on eight K80",
    setting=(
        "Four of the twelve networks are run, the narrowest and the widest among them. Images of 224 x 224, "
        "float32, momentum, 12 GiB a device. The text does not give the batch: the largest power of two from 8 on "
        "that fits is taken, figures on a line through batches of 8 and 32. Baselines as in Figure 10; throughputs "
        "are images per second."
    ),
    run=run,
    columns=(
        Column(key="network", heading="network"),
        Column(key="one_gpu_gib", heading="one GPU, batch 1: GiB", digits=1),
        Column(key="batch", heading="batch that fits"),
        Column(key="tofu_gib", heading="`tofu` GiB", digits=1),
        Column(key="ideal", heading="ideal", digits=1),
        Column(key="tofu", heading="`tofu`", digits=1),
        Column(key="tofu_overlapped", heading="`tofu`, overlapped", digits=1),
        Column(key="small_batch", heading="small batch", digits=1),
        Column(key="swapping", heading="swapping at most", digits=1),
        Column(key="search_s", heading="search s", digits=1),
    ),
    claims=(
        Claim(
            source=_SOURCE,
            published="no network trains on one GPU in a vanilla way",
            reason="the text does not give the batch; a batch of 1 takes 4.1 GiB of the narrowest network",
        ),
        Claim(
            source=_SOURCE,
            published="Tofu trains all networks, up to WResNet-152-10",
            judge=_all_fit,
            shown_by=_COMMAND,
            reason="batch normalisation keeps its input and its result beside the convolution's, where MXNet writes "
            "in place",
        ),
        Claim(source=_SOURCE, published="Tofu reaches 60 to 95 % of ideal", judge=_shares, shown_by=_COMMAND),
        Claim(
            source=_SOURCE,
            published="small batches fit WResNet-50-4 and WResNet-101-4 alone",
            judge=_small_only,
            shown_by=_COMMAND,
        ),
        Claim(
            source=_SOURCE,
            published="there they beat Tofu, by 12 and 15 %",
            judge=_small_wins,
            shown_by=_COMMAND,
        ),
        Claim(
            source=_SOURCE,
            published="swapping is 20 to 63 % slower than Tofu",
            judge=_swapping,
            shown_by=_COMMAND,
            reason="ours is a bound: what does not fit is moved once each way",
        ),
        Claim(
            source=_SOURCE,
            published="with one GPU alone the latency of fetches is half of that with eight",
            reason="the link to the host is taken as shared; nothing is measured",
        ),
    ),
)
