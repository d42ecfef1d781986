"""Nodes that decide together: one configuration for all of a class.

Source: Tofu, section 4.2.1 (coalescing): consecutive element-wise operators, and the time steps of an unrolled
recurrence, share one partition.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxplan.errors import ProblemError
from jaxplan.solvers._problem import Problem


def coalesce(problem: Problem, classes: Sequence[int]) -> Problem:
    """Return the problem over classes of nodes: an assignment of it has the cost of equal configurations in a class.

    Edges keep their fastest choice, and those between the same two classes become one.

    Args:
      problem: the problem over nodes.
      classes: (V,) numbers from 0 up, none left out; nodes of equal number take the same configuration.

    Raises:
      ProblemError: two nodes of a class have different numbers of configurations.
    """
    sizes: dict[int, int] = {}
    for node, (number, size) in enumerate(zip(classes, problem.num_configurations)):
        if sizes.setdefault(number, size) != size:
            raise ProblemError(
                f"node {problem.names[node]} has {size} configurations, and another one of its class {sizes[number]}; "
                "expected equal ones of equal meaning in each class"
            )
    time = [np.zeros(sizes[number]) for number in range(len(sizes))]
    memory = [np.zeros(sizes[number], np.int64) for number in range(len(sizes))]
    names = [""] * len(sizes)
    for node, number in reversed([*enumerate(classes)]):
        time[number] = time[number] + problem.time[node]
        memory[number] = memory[number] + problem.memory[node]
        names[number] = problem.names[node]
    tables: dict[tuple[int, int], np.ndarray] = {}
    for edge in problem.edges:
        table = edge.scalarised(1.0, 0.0)
        one, two = classes[edge.source], classes[edge.target]
        if one == two:
            time[one] = time[one] + np.diagonal(table)
            continue
        key = (min(one, two), max(one, two))
        tables[key] = tables.get(key, 0.0) + (table if one < two else table.T)
    return Problem(time=time, memory=memory, edges=[(*key, table) for key, table in tables.items()], names=names)
