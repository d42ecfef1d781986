"""The cost of one configuration for a contraction and its two gradients.

    python -m benchmarks.grouping
    python -m benchmarks.grouping --model gpt2-small --set num_layers=2 --topology h100:8

Each model is planned twice: as always, and with every gradient a group of its own. Compared is all that the two
searches find and nothing beats, before points are chosen to be shown: the fastest, by predicted time, and for each plan
that is found without sharing the fastest with it that takes as much memory; positive is the cost of sharing. The
additive problem prices a copy of a parameter for each group that reads it, where a plan makes it once, so the search
apart pays for copies that forward and backward pass would share, and may end slower: so may its lower bound. Exit
status 1 where sharing costs more than 1 %.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from benchmarks._options import add_overrides
from benchmarks.models import MODELS, build
from jaxplan.core._progress import Progress
from jaxplan.frontend._options import Options
from jaxplan.ir import StepGraph, analyse, trace
from jaxplan.mesh import Topology
from jaxplan.plans._undominated import undominated
from jaxplan.search._candidate import Candidate
from jaxplan.search._open_configurations import open_configurations
from jaxplan.search._score import predict_all
from jaxplan.search._solve import find_solutions
from jaxplan.simulate import predictor_of
from jaxplan.strategies import apply_strategies

LAYERS: dict[str, dict[str, Any]] = {
    "gpt2-small": {"num_layers": 2},
    "moe-8x": {"num_layers": 2},
    "resnet50": {},
}
"""The three families of the bar; layers of a stack are equal."""
MOST = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Points found with and without gradients in the group of their contraction, leanest first; numbers of groups."""

    together: Sequence[Candidate]
    apart: Sequence[Candidate]
    num_groups: tuple[int, int]

    @property
    def fastest_cost(self) -> float:
        """How much slower the fastest plan is for sharing; negative where the search apart finds less."""
        return self.together[-1].time_seconds / self.apart[-1].time_seconds - 1

    @property
    def worst_cost(self) -> float:
        """The most at the memory of any plan found apart; one percent more memory counts as equal."""
        costs = []
        for plan in self.apart:
            fitting = [p.time_seconds for p in self.together if p.memory_bytes <= 1.01 * plan.memory_bytes]
            costs.append(min(fitting, default=math.inf) / plan.time_seconds - 1)
        return max(costs)

    @property
    def leanest_cost(self) -> float:
        """How much more memory the leanest plan takes."""
        return self.together[0].memory_bytes / self.apart[0].memory_bytes - 1


def compare(model: str, overrides: dict[str, Any], topology: str) -> Comparison:
    """Plan a model both ways."""
    step, args = build(model, **overrides)
    program = trace(step, args, {})
    machine = Topology.parse(topology)
    found = [_found(analyse(program, gradients_apart=apart), machine) for apart in (False, True)]
    (together, groups), (apart, groups_apart) = found
    return Comparison(together=together, apart=apart, num_groups=(groups, groups_apart))


def _found(graph: StepGraph, machine: Topology) -> tuple[list[Candidate], int]:
    """The undominated points of a search, and the number of groups."""
    strategies = apply_strategies(graph, machine).plans
    options = Options(remat=False)
    with Progress(False) as report:
        configurations = [plan.configurations for plan in strategies.values()]
        opened = open_configurations(graph, machine, lambda _: None, configurations)
        predictor = predictor_of(opened.model)
        candidates = predict_all(predictor, find_solutions(predictor, strategies, options, report), report)
    return undominated(candidates), len(graph.grouping.groups)


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
        bound = found.together[-1].time_seconds / found.apart[-1].solution.lower_bound - 1
        together, apart = found.num_groups
        print(
            f"| {model}, {options.topology} | {together} | {apart} | {found.fastest_cost:+.2%} | {bound:+.2%} "
            f"| {found.worst_cost:+.2%} | {found.leanest_cost:+.2%} |",
            flush=True,
        )
        missed = missed or max(found.fastest_cost, found.worst_cost) > MOST
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
