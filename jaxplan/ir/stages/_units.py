"""The units that stages are made of: the smallest parts of a step that no parameter ties together.

Between two places where little is sent lies a piece of the model, such as a layer. Pieces that lie near each other and
read one parameter belong together: the parts of a block of which the backward pass is one equation, for example.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

from jaxplan.ir.stages._cut import Cut, cut
from jaxplan.ir.stages._step import PipelineStep, cut_places

MOST_SPAN = 3
"""A parameter ties pieces together that are at most one such part of the step away from each other, and not the two
ends of it (tied embeddings)."""


def units_of(step: PipelineStep, most: int) -> Cut:
    """A step cut into as many units as it has; of more than so many, neighbours are together, as many everywhere."""
    made = cut(step, [0, *cut_places(step)])
    while tied := _tied(made):
        made = cut(step, [start for unit, start in enumerate(made.starts) if unit not in tied])
    together = math.ceil(made.num_stages / most)
    return made if together == 1 else cut(step, made.starts[::together])


def _tied(made: Cut) -> set[int]:
    """Units that read a large input which a unit not far before reads too, and those between."""
    step, readers = made.step, defaultdict[int, set[int]](set)
    for e, stage in enumerate(made.loop_stage):
        if stage is not None:
            for t in step.loop[e].operands:
                for i in step.roots.get(t, ()):
                    readers[i].add(stage)
    near = [(min(of), max(of)) for of in readers.values() if MOST_SPAN * (max(of) - min(of)) <= made.num_stages]
    return {unit for first, last in near for unit in range(first + 1, last + 1)}


def unit_kinds(made: Cut) -> Sequence[int]:
    """A number for each unit, equal for units of equal operators and shapes; the first and the last are no others'."""
    words: list[list[Hashable]] = [[] for _ in range(made.num_stages)]
    values = made.step.values
    for e, unit in enumerate(made.loop_stage):
        if unit is not None:
            eqn = made.step.loop[e]
            shapes = tuple(values[t].small.str_short() for t in (*eqn.operands, *eqn.outputs))
            words[unit].append((eqn.full.primitive.name, shapes))
    seen: dict[Hashable, int] = {}
    last = made.num_stages - 1
    keys = [(tuple(of), unit if unit in (0, last) else -1) for unit, of in enumerate(words)]
    return [seen.setdefault(key, len(seen)) for key in keys]
