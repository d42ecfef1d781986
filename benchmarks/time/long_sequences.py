"""Memory and time of attention over a long sequence: as the step says, keys gathered, and in a ring, side by side.

    python -m benchmarks.long_sequences                      # 128 Ki tokens of a model of 1.1B parameters on h100:8
    python -m benchmarks.long_sequences --tokens 32768 --layers 4 --audit

For each way the frontier of its own program is searched. The table has its leanest and its fastest plan within the
memory of the machine, and with `--audit` the memory that the compiler assigns, without devices.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import jax

from benchmarks.models import MODELS, build
from jaxplan.core._progress import Progress
from jaxplan.core._units import format_bytes
from jaxplan.errors import InfeasibleError
from jaxplan.frontend._options import Options
from jaxplan.ir import StepGraph, analyse, trace
from jaxplan.ir.attention import FORMS, attention_graph, largest_scores
from jaxplan.mesh import parse_topology
from jaxplan.plans._plan import Plan
from jaxplan.search._planner import _plan_graph

AS_WRITTEN = "as written"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.long_sequences", description="Attention over long sequences."
    )
    parser.add_argument(
        "--model", choices=[name for name in MODELS if name.startswith("llama")], default="llama-1b"
    )
    parser.add_argument("--tokens", type=int, default=131072, help="of one sequence, which is the batch")
    parser.add_argument("--layers", type=int, default=None)
    parser.add_argument("--topology", default="h100:8")
    parser.add_argument("--memory", default=None, help="limit per device; default: the chip's")
    parser.add_argument("--ways", nargs="+", choices=(AS_WRITTEN, *FORMS), default=(AS_WRITTEN, *FORMS))
    parser.add_argument("--audit", action="store_true", help="compile each plan, without its devices")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here
    layers = {} if options.layers is None else {"num_layers": options.layers}
    step, args = build(options.model, sequence_length=options.tokens, batch_size=1, remat=True, **layers)
    graph = analyse(trace(step, args, donate_argnums=MODELS[options.model].donate_argnums))
    scores = format_bytes(largest_scores(graph))
    print(f"{options.model}, {options.tokens} tokens, on {options.topology}: scores of a layer take {scores}")
    print("| way | plan | GiB | compiled GiB | ms | compute | communication |\n|---|---|---|---|---|---|---|")
    for way in options.ways:
        of = graph if way == AS_WRITTEN else attention_graph(graph, way)
        for name, plan in _plans(of, options.topology, options.memory).items():
            compiled = f"{plan.audit().compiled_memory_bytes / 2**30:.2f}" if options.audit else ""
            print(
                f"| {way}, {name} | {plan.summary} | {plan.memory_bytes / 2**30:.2f} | {compiled} "
                f"| {plan.time_seconds * 1e3:.1f} | {plan.compute_seconds * 1e3:.1f} "
                f"| {plan.communication_seconds * 1e3:.1f} |",
                flush=True,
            )
    return 0


def _plans(graph: StepGraph, machine: str, memory: str | None) -> dict[str, Plan]:
    """The leanest and the fastest plan of one program; none where none fits, which is printed."""
    topology = parse_topology(machine)
    options = Options(topology=topology, **({} if memory is None else {"memory": memory})).on(topology)
    try:
        with Progress(False) as report:
            frontier = _plan_graph(graph, topology, options, report, "step")
    except InfeasibleError as error:
        print(
            f"no plan of this program fits: the leanest takes {format_bytes(error.smallest_memory_bytes or 0)}"
        )
        return {}
    return {"leanest": frontier.points[0], "fastest": frontier.points[-1]}


if __name__ == "__main__":
    raise SystemExit(main())
