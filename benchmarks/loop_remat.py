"""Memory of a model with all layers in one loop, as it is and with layers recomputed, predicted and compiled.

    python -m benchmarks.loop_remat                                   # GPT-2 small on h100:8, the strategy fsdp
    python -m benchmarks.loop_remat --model llama2-7b --set num_layers=8 --set "remat='none'"

Compiled without devices. Each line has the same shardings, so that stacks of the loops alone differ.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from benchmarks._options import add_overrides


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="gpt2-small", help="of the registry; its layers are put into a loop"
    )
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--strategy", default="fsdp")
    add_overrides(parser)
    options = parser.parse_args(arguments)
    os.environ["JAX_PLATFORMS"] = "cpu"
    from benchmarks.models import build
    from jaxplan.core._progress import Progress
    from jaxplan.frontend._options import Options
    from jaxplan.ir import LoopRemat, analyse, loop_recomputed_graph, trace
    from jaxplan.mesh import parse_topology
    from jaxplan.search._planner import plan_graph

    step, args = build(options.model, **{"scan": True, **dict(options.set)})
    graph = analyse(trace(step, args, donate_argnums=(0,)))
    machine = parse_topology(options.topology)
    chosen = Options(topology=machine, remat=False, microbatches=False, stages=False).on(machine)
    print("| layers | predicted GiB | compiled GiB | step |\n|---|---|---|---|")
    some = LoopRemat(policy="all", share=0.5, rest="contractions")
    forms = [None, LoopRemat(policy="contractions"), some, LoopRemat(policy="all")]
    for form in forms:
        of = graph if form is None else loop_recomputed_graph(graph, form)
        with Progress(False) as report:
            found = plan_graph(of, topology=machine, options=chosen, report=report, name="step")
        plan = found.references[options.strategy]
        compiled = plan.audit().compiled_memory_bytes
        words = str(plan.recomputed_loops or "as they are")
        print(
            f"| {words} | {plan.memory_bytes / 2**30:.3f} | {compiled / 2**30:.3f} "
            f"| {plan.time_seconds * 1e3:.1f} ms |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
