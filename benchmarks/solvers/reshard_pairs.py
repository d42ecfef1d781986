"""The commonest changes of layout in plans and their paths, and paths beside the least seconds: docs/resharding.md.

    python -m benchmarks.reshard_pairs --cache .pairs                     # count, and print the table
    python -m benchmarks.reshard_pairs --cache .pairs --write docs/resharding.md
    python -m benchmarks.reshard_pairs --optimum --write docs/resharding.md   # see benchmarks.reshard_optimum
    python -m benchmarks.reshard_pairs --optimum --topology k80:4x4           # the rows of one machine

Counted over the fastest, knee and leanest plan of each model on each topology: a tensor that a plan brings to another
layout counts once, if it has at least 64 KiB (smaller ones the compiler combines). Pairs that differ only in dimensions
whole before and after, or in the names of axes of one level, are one; each is shown by the change that is most frequent
in it. `--cache` keeps the counts of each model and topology, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax

import jaxplan
from benchmarks.models import MODELS, build
from benchmarks.solvers.reshard_optimum import optimum_rows
from jaxplan.core._files import write_whole
from jaxplan.cost import find_reads, plan_transfers
from jaxplan.mesh import AtomicAxis, Sharding, Topology, reshard_path
from jaxplan.xla import Target, analyse_buffers

DEFAULT_MODELS = ("gpt2-small", "bert-large", "vit-b16", "resnet50", "lstm", "moe-8x", "mlp")
DEFAULT_TOPOLOGIES = ("h100:8", "h100:2x8")
LEAST_BYTES = 64 * 2**10
ROLES = ("fastest", "knee", "leanest")
START, END = "<!-- pairs: begin -->", "<!-- pairs: end -->"
OPTIMUM_START, OPTIMUM_END = "<!-- optimum: begin -->", "<!-- optimum: end -->"
HEADER = (
    "| # | count | on | from | to | tensor | path: steps, the axes of their groups, bytes per device | us |",
    "|---|---|---|---|---|---|---|---|",
)

Dims = tuple[tuple[int, ...], ...]


class Change(NamedTuple):
    """A tensor brought from one layout to another."""

    topology: str
    source: Sharding
    target: Sharding
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of the whole tensor."""
        return math.prod(self.shape) * jax.numpy.dtype(self.dtype).itemsize


def pair_of(
    change: Change, axes: Sequence[AtomicAxis]
) -> tuple[str, Dims, Dims, tuple[int, ...], tuple[int, ...]]:
    """What a change has in common with those that differ in idle dimensions or in names of axes of one level."""
    source, target = change.source, change.target
    kept = [d for d in range(source.rank) if source.dims[d] or target.dims[d]]
    names: dict[int, int] = {}
    for axis in (*source.used, *target.used):
        alike = [
            a
            for a, other in enumerate(axes)
            if (other.level, other.size) == (axes[axis].level, axes[axis].size)
        ]
        names.setdefault(axis, next((a for a in alike if a not in names.values()), axis))

    def named(sharding: Sharding) -> tuple[Dims, tuple[int, ...]]:
        dims = tuple(tuple(names[a] for a in sharding.dims[d]) for d in kept)
        return dims, tuple(sorted(names[a] for a in sharding.partial))

    (before, summed), (after, left) = named(source), named(target)
    return change.topology, before, after, summed, left


def count_changes(model: str, topology: Topology) -> Counter[Change]:
    """The changes of layout of three plans of a model, and how many tensors make each."""
    step, args = build(model)
    frontier = jaxplan.plan(step, *args, topology=topology, progress=False)
    found: Counter[Change] = Counter()
    for plan in {id(p): p for p in map(frontier.choose, ROLES)}.values():
        graph = plan.require_program()
        reads = find_reads(graph)
        repeated = frozenset(plan.repeated)
        buffers = analyse_buffers(graph, Target.of(topology.chip))
        for transfer in plan_transfers(graph, topology, reads, plan.configurations, repeated, buffers):
            tensor = graph.program.tensors[transfer.tensor]
            source, target = transfer.path.shardings[0], transfer.path.shardings[-1]
            found[Change(topology.name, source, target, str(tensor.dtype), tensor.shape)] += 1
    return found


def counted(model: str, topology: Topology, cache: Path | None) -> Counter[Change]:
    """`count_changes`, or what an earlier run wrote of it."""
    entry = cache / f"{model}-{topology.name.replace(':', '-')}.json" if cache else None
    if entry is not None and entry.exists():
        return Counter({_change(topology.name, row): row["count"] for row in json.loads(entry.read_text())})
    found = count_changes(model, topology)
    if entry is not None:
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_whole(entry, json.dumps([_row(change, count) for change, count in found.items()]))
    return found


def _row(change: Change, count: int) -> dict[str, object]:
    sides = {
        name: [side.dims, side.partial]
        for name, side in (("source", change.source), ("target", change.target))
    }
    return {**sides, "dtype": change.dtype, "shape": change.shape, "count": count}


def _change(topology: str, row: dict) -> Change:
    def sharding(dims: list[list[int]], partial: list[int]) -> Sharding:
        return Sharding(tuple(map(tuple, dims)), tuple(partial))

    return Change(topology, sharding(*row["source"]), sharding(*row["target"]), row["dtype"], tuple(row["shape"]))


def commonest(changes: Counter[Change], number: int) -> list[tuple[int, Change]]:
    """The most frequent pairs, descending: how often, and the most frequent change of each."""
    changes = Counter({change: count for change, count in changes.items() if change.num_bytes >= LEAST_BYTES})
    axes = {name: Topology.parse(name).axes for name in {change.topology for change in changes}}
    pairs: dict[object, Counter[Change]] = defaultdict(Counter)
    for change, count in sorted(changes.items(), key=lambda item: repr(item[0])):
        pairs[pair_of(change, axes[change.topology])][change] += count
    ranked = sorted(pairs.values(), key=lambda counts: -counts.total())
    return [(counts.total(), counts.most_common(1)[0][0]) for counts in ranked[:number]]


def path_text(change: Change) -> tuple[str, float]:
    """Steps with the axes of their groups and bytes per device, and microseconds."""
    topology = Topology.parse(change.topology)
    itemsize = jax.numpy.dtype(change.dtype).itemsize
    path = reshard_path(change.source, change.target, change.shape, itemsize, topology)
    collectives = iter(path.collectives)
    steps = []
    for step in path.steps:
        names = " ".join(topology.axes[a].name for a in step.axes)
        steps.append(
            f"{step.kind} {names}"
            if step.kind == "slice"
            else f"{step.kind} {names} {next(collectives)[2]:,}"
        )
    return "; ".join(steps), path.seconds * 1e6


def table(changes: Counter[Change], number: int) -> Iterable[str]:
    """The rows of the document."""
    yield from HEADER
    for rank, (count, change) in enumerate(commonest(changes, number), 1):
        axes = Topology.parse(change.topology).axes
        steps, microseconds = path_text(change)
        cells = (
            *(rank, count, change.topology),
            *(f"`{sharding.describe(axes)}`" for sharding in (change.source, change.target)),
            f"{change.dtype}[{','.join(map(str, change.shape))}]",
            *(steps, f"{microseconds:.1f}"),
        )
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def write_table(lines: Iterable[str], path: Path, start: str = START, end: str = END) -> None:
    """Put the table between the marks of a document."""
    before, _, rest = path.read_text(encoding="utf-8").partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{path} has no place for the table: expected the lines {start} and {end}")
    write_whole(path, "\n".join([before + start, "", *lines, "", end + after]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.reshard_pairs", description="The commonest changes of layout."
    )
    parser.add_argument("--model", choices=list(MODELS), nargs="+", default=list(DEFAULT_MODELS))
    parser.add_argument("--topology", nargs="+", default=None)
    parser.add_argument("--optimum", action="store_true", help="compare paths with the least seconds")
    parser.add_argument("--number", type=int, default=20, help="pairs shown")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps the counts")
    parser.add_argument("--write", type=Path, default=None, help="document whose table is replaced")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # nothing runs here, and a plugin without its device complains
    if options.optimum:
        lines = []
        for line in optimum_rows(options.topology):
            print(line, flush=True)
            lines.append(line)
        if options.write is not None:
            write_table(lines, options.write, OPTIMUM_START, OPTIMUM_END)
        return 0
    changes: Counter[Change] = Counter()
    for name in options.topology or DEFAULT_TOPOLOGIES:
        for model in options.model:
            found = counted(model, Topology.parse(name), options.cache)
            print(f"{model} on {name}: {found.total()} tensors change layout", flush=True)
            changes += found
    lines = list(table(changes, options.number))
    print("\n".join(lines))
    if options.write is not None:
        write_table(lines, options.write)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
