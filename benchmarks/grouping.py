"""What it costs that a contraction and its two gradients share one configuration.

    python -m benchmarks.grouping
    python -m benchmarks.grouping --model gpt2-small --set num_layers=2 --topology h100:8

Each model is planned twice: as always, and with every gradient a group of its own. Compared are the fastest point, by
predicted time, and at the memory of each point of the grouped frontier the time of the apart one that fits there;
positive is what sharing costs. The additive problem prices a copy of a parameter for each group that reads it, where a
plan makes it once, so the search apart pays for copies that forward and backward pass would share, and may end slower:
so may its lower bound. Exit status 1 where sharing costs the fastest point more than 1 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks._options import add_overrides
from benchmarks.models import MODELS, build
from jaxplan._frontier import Frontier
from jaxplan._planner import Search, plan_graph
from jaxplan._progress import Progress
from jaxplan.ir import analyse, trace
from jaxplan.mesh import Topology

LAYERS: dict[str, dict[str, Any]] = {
    "gpt2-small": {"num_layers": 2},
    "moe-8x": {"num_layers": 2},
    "resnet50": {},
}
"""The three families of the bar; layers of a stack are equal."""
MOST = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Frontiers with and without gradients in the group of their contraction, and the numbers of groups."""

    together: Frontier
    apart: Frontier
    num_groups: tuple[int, int]

    @property
    def fastest_cost(self) -> float:
        """How much slower the fastest plan is for sharing; negative where the search apart finds less."""
        return self.together.fastest().time_seconds / self.apart.fastest().time_seconds - 1

    @property
    def worst_cost(self) -> float:
        """The same at the memory of every point of the grouped frontier; one percent more memory counts as equal."""
        costs = [0.0]
        for plan in self.together:
            fitting = [p.time_seconds for p in self.apart if p.memory_bytes <= 1.01 * plan.memory_bytes]
            costs.extend(plan.time_seconds / seconds - 1 for seconds in fitting)
        return max(costs)

    @property
    def leanest_cost(self) -> float:
        """How much more memory the leanest plan takes."""
        return self.together.leanest().memory_bytes / self.apart.leanest().memory_bytes - 1


def compare(model: str, overrides: dict[str, Any], topology: str) -> Comparison:
    """Plan a model both ways."""
    step, args = build(model, **overrides)
    program = trace(step, args, {})
    machine = Topology.parse(topology)
    frontiers, counts = [], []
    for gradients_apart in (False, True):
        graph = analyse(program, gradients_apart=gradients_apart)
        with Progress(False) as report:
            search = Search(memory_limit_bytes=None, remat=False)
            frontiers.append(plan_graph(graph, topology=machine, search=search, report=report, name=model))
        counts.append(len(graph.grouping.groups))
    return Comparison(together=frontiers[0], apart=frontiers[1], num_groups=(counts[0], counts[1]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.grouping", description="The price of shared configurations.")
    parser.add_argument("--model", choices=sorted(MODELS), help="default: " + ", ".join(LAYERS))
    parser.add_argument("--topology", default="h100:8")
    add_overrides(parser)
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    models = {options.model: dict(options.set)} if options.model else LAYERS
    missed = False
    print("| model | groups | groups apart | fastest | lower bound apart | at equal memory, worst | leanest memory |")
    print("|---|---|---|---|---|---|---|")
    for model, overrides in models.items():
        found = compare(model, overrides, options.topology)
        bound = found.together.fastest().time_seconds / found.apart.fastest().lower_bound_seconds - 1
        together, apart = found.num_groups
        print(
            f"| {model}, {options.topology} | {together} | {apart} | {found.fastest_cost:+.2%} | {bound:+.2%} "
            f"| {found.worst_cost:+.2%} | {found.leanest_cost:+.2%} |",
            flush=True,
        )
        missed = missed or found.fastest_cost > MOST
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
