"""The cost of compiling a plan, beside the step as it was written for one device of the same chip.

    python -m benchmarks.compile_time                                     # two layers, or blocks of a stage
    python -m benchmarks.compile_time --pair gpt2-small@h100:8 --layers 12 --repeats 3

Processor seconds of lowering and compiling, the two taken in turns, medians; the time that a child process takes to
start and to compile nothing is taken off both. Planned are our fastest plan and, as the smallest that any
partitioned program costs,
`data`. Exit status 1 where the fastest plan takes more than `MOST` times as long.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import jax
from jax import export

import jaxplan
from benchmarks.models import MODELS, build
from benchmarks.quality.__main__ import DEFAULT_LAYERS, layer_overrides
from jaxplan.audit import compile_plan
from jaxplan.audit._aot import compile_exported
from jaxplan.mesh import Topology

PAIRS = ("gpt2-small@h100:8", "gpt2-medium@h100:2x8", "lstm@h100:8", "moe-8x@h100:8", "resnet50@h100:8")
MOST = 1.5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.compile_time", description="The cost of compiling plans.")
    parser.add_argument("--pair", metavar="MODEL@TOPOLOGY", action="append", help="default: " + ", ".join(PAIRS))
    parser.add_argument("--layers", type=int, default=DEFAULT_LAYERS, help="layers of a stack, or blocks of a stage")
    parser.add_argument("--repeats", type=int, default=1, help="compilations of each, of which the median counts")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    print("| model, machine | one device | fastest plan | data | fastest over one device | data over one device |")
    print("|---|---|---|---|---|---|")
    missed = False
    for pair in options.pair or PAIRS:
        model, _, where = pair.partition("@")
        seconds = _measured(model, Topology.parse(where), options.layers, options.repeats)
        alone, fastest, data = (seconds[name] for name in ("alone", "fastest", "data"))
        print(
            f"| {pair} | {alone:.1f} s | {fastest:.1f} s | {data:.1f} s | {fastest / alone:.2f}x "
            f"| {data / alone:.2f}x |",
            flush=True,
        )
        missed = missed or fastest > MOST * alone
    return int(missed)


def _measured(model: str, topology: Topology, layers: int, repeats: int) -> dict[str, float]:
    """Median processor seconds of each program."""
    step, args = build(model, **layer_overrides(model, layers)[0])
    donated = MODELS[model].donate_argnums
    frontier = jaxplan.plan(step, *args, topology=topology, donate_argnums=donated, progress=False)
    alone = Topology.parse(f"{topology.chip.name}:1")
    jobs: dict[str, Callable[[], Any]] = {
        "nothing": lambda: _compile_alone(lambda x: x + 1, (jax.ShapeDtypeStruct((8,), "float32"),), (), alone),
        "alone": lambda: _compile_alone(step, args, donated, alone),
        "fastest": lambda: compile_plan(frontier.fastest()),
        "data": lambda: compile_plan(frontier.references["data"]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            seconds[name].append(_processor_seconds(job))
    least = median(seconds.pop("nothing"))
    return {name: median(found) - least for name, found in seconds.items()}


def _compile_alone(step: Callable[..., Any], args: Sequence[Any], donated: Sequence[int], topology: Topology) -> None:
    """The step as `jax.jit` takes it."""
    leaves, tree = jax.tree.flatten(tuple(args))
    sizes = [len(jax.tree.leaves(arg)) for arg in args]
    positions = [i for n in donated for i in range(sum(sizes[:n]), sum(sizes[: n + 1]))]
    flat = jax.jit(lambda *flat: jax.tree.leaves(step(*jax.tree.unflatten(tree, flat))))
    exported = export.export(flat, platforms=[topology.chip.aot_platform or ""])(*leaves)
    compile_exported(bytes(exported.serialize()), topology, donate_argnums=positions, mesh_axes=[("device", 1)])


def _processor_seconds(job: Callable[[], Any]) -> float:
    """Of this process and of the child that compiles, one at a time; nothing that was traced before helps."""
    jax.clear_caches()
    before = time.process_time() + _of_children()
    job()
    return time.process_time() + _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
