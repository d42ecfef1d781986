"""Seconds of resharding paths beside the least that a plain search finds: the second table of docs/resharding.md.

    python -m benchmarks.reshard_pairs --optimum                          # the table, some minutes
    python -m benchmarks.reshard_pairs --optimum --topology k80:4x4       # the rows of one machine
    python -m benchmarks.reshard_pairs --optimum --write docs/resharding.md

Each row compares every layout that divides the shape, or as many drawn ones as it says, with every layout that it can
become, at several sizes of the tensor. Sources that differ only in names of axes of one level count once. Pairs that
are dearer than the least by more than a twentieth are counted, and the worst is shown.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.solvers.reshard_referee import Referee
from jaxplan.mesh import Sharding, Topology, reshard_seconds

NUM_BYTES = (2**16, 2**22, 2**28)
TOLERANCE = 1e-9  # of sums of the same prices in another order
HEADER = (
    "| machine | shape | layouts | pairs | dearer | by over 5 % | worst ratio | worst pair |",
    "|---|---|---|---|---|---|---|---|",
)
EIGHT = ("v100:2x2", "k80:2x4", "h100:2x4", "h100:8")
SIXTEEN = ("k80:4x4", "h100:4x4")
TORUS = ("v5e:2x4", "v5e:4x4", "v5p:2x2x2", "v5p:2x2x4")
VECTOR, MATRIX, CUBE, FOUR = (1024,), (1024, 512), (64, 128, 32), (16, 32, 64, 16)


class Case(NamedTuple):
    """Layouts of one shape on one machine.

    ``sources`` and ``targets`` of each source: how many are drawn, or None for all; ``sizes``: bytes of the tensor.
    """

    topology: str
    shape: tuple[int, ...]
    sources: int | None = None
    targets: int | None = None
    sizes: tuple[int, ...] = NUM_BYTES


# Every layout where a plain search of all takes a minute or two, drawn ones elsewhere.
CASES = (
    *(Case(name, shape) for name in EIGHT for shape in (VECTOR, MATRIX, CUBE, FOUR)),
    *(Case(name, shape) for name in SIXTEEN for shape in (VECTOR, MATRIX, CUBE)),
    *(Case(name, shape) for name in TORUS for shape in (VECTOR, MATRIX)),
    *(Case(name, CUBE) for name in ("v5e:2x4", "v5p:2x2x2")),
    *(Case("a100:2x6", shape) for shape in ((12, 6), (10, 36), (24, 4, 18))),
    Case("k80:2x4", (2, 12, 20)),
    Case("h100:2x8", MATRIX),
    *(Case(name, CUBE, 20) for name in ("h100:2x8", "v5e:4x4", "v5p:2x2x4")),
    Case("h100:4x4", (2, 4, 24), 40),
    Case("k80:4x8", MATRIX, 5),
    Case("h100:4x8", CUBE, 2),
    Case("h100:8x8", (8, 8), 1, 200, (2**16,)),
    Case("h100:8x8", (4, 2, 4), 1, 200, (2**28,)),
)  # fmt: skip


class Row(NamedTuple):
    """What a case came to; ``worst``: ratio, source, target, bytes of the tensor."""

    num_shardings: int
    num_pairs: int
    num_dearer: int
    num_over: int
    worst: tuple[float, Sharding, Sharding, int] | None


def compare(case: Case) -> Row:
    """Every pair of a case at every size, or as many as are drawn."""
    topology, num_pairs, ratios = Topology.parse(case.topology), 0, []
    shardings: list[Sharding] = []
    for num_bytes in case.sizes:
        itemsize = max(1, num_bytes // math.prod(case.shape))
        referee = Referee(case.shape, itemsize, topology)
        shardings = referee.shardings()
        for source in drawn(shardings, topology, case.sources):
            found = sorted(
                referee.seconds_from(source).items(), key=lambda item: (item[0].dims, item[0].partial)
            )
            for target, least in (
                found if case.targets is None else random.Random(0).sample(found, case.targets)
            ):
                if target != source:
                    seconds = reshard_seconds(source, target, case.shape, itemsize, topology)
                    assert seconds >= least * (1 - TOLERANCE), (source, target, itemsize)
                    num_pairs += 1
                    if seconds > least * (1 + TOLERANCE):
                        ratios.append((seconds / least, source, target, itemsize * math.prod(case.shape)))
    return Row(
        num_shardings=len(shardings),
        num_pairs=num_pairs,
        num_dearer=len(ratios),
        num_over=sum(ratio > 1.05 for ratio, *_ in ratios),
        worst=max(ratios, key=lambda found: found[0], default=None),
    )


def drawn(shardings: Sequence[Sharding], topology: Topology, number: int | None) -> list[Sharding]:
    """One of all layouts that differ in names of axes of one level; some of those where a number is given."""
    alike = defaultdict(list)
    for index, axis in enumerate(topology.axes):
        alike[axis.level, axis.size].append(index)
    seen: set[Sharding] = set()
    first = []
    for sharding in shardings:
        if sharding not in seen:
            first.append(sharding)
            for orders in itertools.product(*(itertools.permutations(axes) for axes in alike.values())):
                names = {a: b for axes, order in zip(alike.values(), orders) for a, b in zip(axes, order)}
                seen.add(_renamed(sharding, names))
    return first if number is None or number >= len(first) else random.Random(0).sample(first, number)


def _renamed(sharding: Sharding, names: dict[int, int]) -> Sharding:
    dims = tuple(tuple(names[a] for a in dim) for dim in sharding.dims)
    return Sharding(dims, tuple(names[a] for a in sharding.partial))


def row_text(case: Case, row: Row) -> str:
    """A row of the table."""
    axes, worst = Topology.parse(case.topology).axes, "-"
    if row.worst is not None:
        _, source, target, num_bytes = row.worst
        worst = f"`{source.describe(axes)}` to `{target.describe(axes)}`, {num_bytes:,} bytes"
    cells = (
        case.topology,
        " x ".join(map(str, case.shape)),
        f"{row.num_shardings:,}"
        + (f", {case.sources} drawn" if case.sources else "")
        + (f", {case.targets} targets" if case.targets else ""),
        f"{row.num_pairs:,}",
        f"{row.num_dearer:,}",
        f"{row.num_over:,}",
        f"{row.worst[0] if row.worst else 1:.3f}",
        worst,
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def optimum_rows(topologies: Sequence[str] | None = None) -> Iterable[str]:
    """The table, a row as soon as it is known, of some machines or all."""
    yield from HEADER
    for case in CASES:
        if topologies is None or case.topology in topologies:
            yield row_text(case, compare(case))
