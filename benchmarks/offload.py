"""The leanest plans of a model with nothing, state, and parameters too on the host: memory predicted and compiled.

    python -m benchmarks.offload                                   # GPT-2 small on h100:8
    python -m benchmarks.offload --model gpt-1.3b --topology a100-pcie:8 --set scan=True

Compiled without devices. Host bytes have to be equal; `collectives` says whether those of the program are as planned.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from benchmarks._options import add_overrides

KINDS = ("nothing", "state", "parameters")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each kind of plan that the frontier has."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="gpt2-small", help="of the registry")
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--remat", action="store_true", help="blocks may be recomputed too")
    add_overrides(parser)
    options = parser.parse_args(arguments)
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jaxplan
    from benchmarks.models import build

    step, args = build(options.model, **dict(options.set))
    frontier = jaxplan.plan(
        step,
        *args,
        topology=options.topology,
        offload=True,
        remat=options.remat,
        verify=False,
        progress=False,
    )
    leanest: dict[str, Any] = {}
    for plan in frontier.points:  # by ascending memory
        leanest.setdefault(_kind(plan), plan)
    print("| on the host | GiB there | compiled | GiB on a device | compiled | step | link | collectives |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        if kind in leanest:
            print(_row(kind, leanest[kind]), flush=True)
    return 0


def _kind(plan: Any) -> str:
    if plan.offload is None:
        return "nothing"
    return "parameters" if plan.offload.parameters else "state" if plan.offload.inputs else "activations"


def _row(kind: str, plan: Any) -> str:
    audit = plan.audit()
    there, here = (
        (of / 2**30, compiled / 2**30)
        for of, compiled in (
            (plan.host_bytes, audit.compiled_host_bytes),
            (plan.memory_bytes, audit.compiled_memory_bytes),
        )
    )
    return (
        f"| {kind} | {there[0]:.3f} | {there[1]:.3f} | {here[0]:.3f} | {here[1]:.3f} "
        f"| {plan.time_seconds * 1e3:.1f} ms | {plan.host_seconds * 1e3:.1f} ms "
        f"| {'as planned' if audit.collectives_ok else 'others'} |"
    )


if __name__ == "__main__":
    raise SystemExit(main())
