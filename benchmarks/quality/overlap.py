"""Gain and cost of a search that credits communication beside compute.

    python -m benchmarks.overlap                                    # two layers of the models, or blocks of a stage
    python -m benchmarks.overlap --pair gpt2-small@h100:2x8 --layers 12

Each model is planned twice, as always and with ``overlap=True``. Compared are the fastest plans, both simulated (the
simulator decides), and the processor time of planning. Beside them the fastest reference strategy, simulated too.
Exit status 1 where the search with overlap ends slower than the one without.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import jax

import jaxplan
from benchmarks.models import MODELS, build
from benchmarks.quality.__main__ import DEFAULT_LAYERS, layer_overrides

PAIRS = (
    "gpt2-small@h100:8",
    "gpt2-small@a100-pcie:8",
    "gpt2-medium@h100:2x8",
    "bert-large@a100-pcie:8",
    "resnet50@h100:8",
    "moe-8x@h100:8",
)
ROUNDING = 1e-9


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.overlap", description="The worth of overlap in the objective.")
    parser.add_argument("--pair", metavar="MODEL@TOPOLOGY", action="append", help="default: " + ", ".join(PAIRS))
    parser.add_argument("--layers", type=int, default=DEFAULT_LAYERS, help="layers of a stack, or blocks of a stage")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    print("| model, machine | simulated | of a search with overlap | gain | hidden | best reference | planning |")
    print("|---|---|---|---|---|---|---|")
    slower = False
    for pair in options.pair or PAIRS:
        serial, serial_cost = _planned(pair, options.layers, overlap=False)
        overlapped, cost = _planned(pair, options.layers, overlap=True)
        before, after = (f.fastest().simulate().time_seconds for f in (serial, overlapped))
        best = min(p.time_seconds for p in overlapped.references.values())
        print(
            f"| {pair} | {before * 1e3:.3f} ms | {after * 1e3:.3f} ms | {1 - after / before:.1%} "
            f"| {overlapped.fastest().hidden_seconds / overlapped.fastest().communication_seconds:.0%} "
            f"| {best / after:.2f}x | {cost / serial_cost:.2f}x |",
            flush=True,
        )
        slower = slower or after > before * (1 + ROUNDING)
    return int(slower)


def _planned(pair: str, layers: int, overlap: bool) -> tuple[jaxplan.Frontier, float]:
    """A frontier, and the processor seconds that it took."""
    model, _, where = pair.partition("@")
    step, args = build(model, **layer_overrides(model, layers)[0])
    start = time.process_time()
    donated = MODELS[model].donate_argnums
    frontier = jaxplan.plan(step, *args, topology=where, donate_argnums=donated, overlap=overlap, progress=False)
    return frontier, time.process_time() - start


if __name__ == "__main__":
    raise SystemExit(main())
