"""Planning time of steps that need no micro-batches, host memory or stages: with them searched, and switched off.

    python -m benchmarks.time.dimensions                          # GPT-2 and Llama 8B on h100:8
    python -m benchmarks.time.dimensions gpt2-small --rounds 5

Llama has 32 sequences in place of 128, so that it fits without them.

Each round plans the step in two cold processes, one with the options as they are by default, one with
`microbatches=False, offload=False, stages=False`; the order alternates. Printed are processor seconds from the traced
step to the frontier (medians) and their ratio, which may be 1.2 at most.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from typing import Any

MOST_RATIO = 1.2
OFF = {"microbatches": False, "offload": False, "stages": False}
MODELS: dict[str, dict[str, Any]] = {"gpt2-small": {}, "llama3-8b": {"batch_size": 32}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each model; 1 if one is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    missed = 0
    for model in options.models:
        default, off = [], []
        for number in range(options.rounds):
            pair = [(default, {}), (off, OFF)]
            for seconds, chosen in pair if number % 2 == 0 else reversed(pair):
                seconds.append(_in_process(model, options.topology, chosen))
        ratio = statistics.median(default) / statistics.median(off)
        missed += ratio > MOST_RATIO
        print(
            f"{'ok  ' if ratio <= MOST_RATIO else 'MISS'} {model} on {options.topology}: "
            f"{statistics.median(default):.2f} s by default {_listed(default)}, "
            f"{statistics.median(off):.2f} s switched off {_listed(off)}: {ratio:.3f}",
            flush=True,
        )
    return 1 if missed else 0


def _in_process(model: str, topology: str, chosen: dict[str, Any]) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(processor_seconds, (model, topology, chosen))


def processor_seconds(model: str, topology: str, chosen: dict[str, Any]) -> float:
    """Processor seconds of planning a model's step, its trace apart."""
    import jax

    import jaxplan
    from benchmarks.models import build
    from jaxplan.core._progress import Progress

    jax.config.update("jax_platforms", "cpu")
    step, args = build(model, **MODELS[model])
    clock = Progress(False, clock=time.process_time)
    jaxplan.plan(step, *args, topology=topology, progress=clock, **chosen)
    clock("end", 1.0)
    return sum(seconds for stage, seconds in clock.seconds.items() if stage not in ("trace", "end"))


def _listed(seconds: Sequence[float]) -> str:
    return "(" + ", ".join(f"{of:.2f}" for of in seconds) + ")"


if __name__ == "__main__":
    raise SystemExit(main())
