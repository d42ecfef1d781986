"""Small random problems, and their frontiers by counting through every assignment and choice."""

import itertools
import math

import numpy as np

from jaxplan.solvers import Problem

SHAPES = ("tree", "cycle", "width2", "multigraph")


def random_problem(seed: int, *, max_nodes: int = 6, max_labels: int = 4) -> Problem:
    """Return a problem of the shape `seed % 4`, with coarse numbers, so that ties are common."""
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(2, max_nodes + 1))
    sizes = [int(rng.integers(1, max_labels + 1)) for _ in range(num_nodes)]
    edges = []
    for u, v in _pairs(SHAPES[seed % 4], num_nodes, rng):
        num_choices = int(rng.integers(1, 4))
        shape = (sizes[u], sizes[v]) if num_choices == 1 else (sizes[u], sizes[v], num_choices)
        time = rng.integers(0, 8, shape).astype(float)
        if num_choices > 1:
            time[..., 1:][rng.random(time[..., 1:].shape) < 0.2] = np.inf
        edges.append((u, v, time, rng.integers(0, 8, shape)) if rng.random() < 0.8 else (u, v, time))
    return Problem(
        time=[rng.integers(0, 8, size).astype(float) for size in sizes],
        memory=[rng.integers(0, 8, size) for size in sizes],
        edges=edges,
    )


def _pairs(shape: str, num_nodes: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    tree = [(int(rng.integers(0, node)), node) for node in range(1, num_nodes)]
    flipped = [pair if rng.random() < 0.5 else pair[::-1] for pair in tree]
    if shape == "tree":
        return flipped
    if shape == "cycle":
        return [(node, (node + 1) % num_nodes) for node in range(num_nodes if num_nodes > 2 else 1)]
    if shape == "width2":
        ladder = [(node - 2, node) for node in range(2, num_nodes)]
        return [(node - 1, node) for node in range(1, num_nodes)] + ladder
    return flipped + flipped[:1]


def layered_problem(num_layers: int, *, seed: int = 0, layer_nodes: int = 4, labels: int = 3) -> Problem:
    """Return equal layers (the same array objects) between residual nodes, a branch in each layer."""
    rng = np.random.default_rng(seed)

    def table() -> tuple[np.ndarray, np.ndarray]:
        return rng.random((labels, labels)), rng.integers(0, 1000, (labels, labels))

    node = (rng.random(labels), rng.integers(0, 5000, labels))
    inner = [(rng.random(labels), rng.integers(0, 5000, labels)) for _ in range(layer_nodes)]
    into, out, skip = table(), table(), table()
    chain = [table() for _ in range(layer_nodes - 1)]
    nodes, edges = [node], []
    for _ in range(num_layers):
        entry, first = len(nodes) - 1, len(nodes)
        nodes += [*inner, node]
        last = len(nodes) - 1
        edges.append((entry, first, *into))
        edges += [(first + place, first + place + 1, *pair) for place, pair in enumerate(chain)]
        edges += [(last - 1, last, *out), (entry, last, *skip)]
    return Problem(time=[time for time, _ in nodes], memory=[memory for _, memory in nodes], edges=edges)


def all_costs(problem: Problem) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of every assignment with every combination of choices."""
    result = []
    for labels in itertools.product(*map(range, problem.num_configurations)):
        cells = []
        for edge in problem.edges:
            time = np.atleast_1d(edge.time[labels[edge.source], labels[edge.target]])
            memory = np.zeros(len(time), int)
            if edge.memory is not None:
                memory = np.atleast_1d(edge.memory[labels[edge.source], labels[edge.target]])
            cells.append(list(zip(memory.tolist(), time.tolist())))
        base_time = sum(float(problem.time[node][label]) for node, label in enumerate(labels))
        base_memory = sum(int(problem.memory[node][label]) for node, label in enumerate(labels))
        for picks in itertools.product(*cells):
            seconds = base_time + sum(pick[1] for pick in picks)
            if math.isfinite(seconds):
                result.append((base_memory + sum(pick[0] for pick in picks), seconds))
    return result


def brute_frontier(problem: Problem) -> list[tuple[int, float]]:
    """Return the (bytes, seconds) that nothing beats, ascending in bytes, by comparing all with all."""
    costs = sorted(set(all_costs(problem)))
    return [(m, t) for m, t in costs if not any((a <= m and b <= t and (a, b) != (m, t)) for a, b in costs)]


def brute_hull(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the vertices of the lower convex hull: points below every line through two others."""
    return [
        (m, t)
        for m, t in points
        if not any(
            a < m < c and t >= b + (d - b) * (m - a) / (c - a) - 1e-12 for a, b in points for c, d in points
        )
    ]
