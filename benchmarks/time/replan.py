"""Time of planning a step again with other pins, from the tables of its first plan.

    python -m benchmarks.time.replan                              # Llama 3 8B, 32 layers, on h100:8
    python -m benchmarks.time.replan --model gpt2-small --topology a100:2x8

The step is traced and planned once, and then again with each of a few sets of pins that a person would try, one after
the other in one process. Printed are processor seconds, so that other programs on the machine do not count; the
slowest may take 2 s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxplan import Forbid, Split

MOST_SECONDS = 2.0
PINS: tuple[Any, ...] = ("fsdp", "tensor parallel inside a node", {"vocabulary": Forbid()}, {"batch": Split(4)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for the first plan and for each set of pins; 1 if one of these is above the limit."""
    import jax

    import jaxplan
    from benchmarks.models import build

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--batch", type=int, default=32, help="sequences or images in a batch; default: 32")
    parser.add_argument("--topology", default="h100:8")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    step, args = build(options.model, batch_size=options.batch)
    traced = jaxplan.trace(step, *args)

    def plan(**keywords: Any) -> Any:
        return traced.plan(topology=options.topology, verify=False, progress=False, **keywords)

    seconds, frontier = timed(plan)
    print(f"     first plan of {options.model} on {options.topology}: {seconds:.2f} s", flush=True)
    slowest = 0.0
    for pins in PINS:
        seconds, frontier = timed(lambda pins=pins: plan(pins=pins))
        slowest = max(slowest, seconds)
        print(
            f"{'ok  ' if seconds <= MOST_SECONDS else 'MISS'} again with pins={pins!r}: {seconds:.2f} s, "
            f"{len(frontier)} points",
            flush=True,
        )
    return 1 if slowest > MOST_SECONDS else 0


def timed(do: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds of a call, and its result."""
    start = time.process_time()
    found = do()
    return time.process_time() - start, found


if __name__ == "__main__":
    raise SystemExit(main())
