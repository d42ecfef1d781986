"""The tensor-dimension graph and its connected sets, the *named dimensions* of the program.

Nodes are ``(tensor, dimension)``; an edge joins two that carry the same factor of some operator. A connected set is a
dimension as people name it: batch, sequence, heads, vocabulary.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxplan.ir._program import Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._union import UnionFind

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDimension:
    """One connected set of tensor dimensions.

    Attributes:
      name: ``batch`` when it holds the leading dimension of a batch input, else the dimension of the
        parameter of highest rank in it (``query/kernel.1``), else ``dim<k>``.
      size: the largest size among its members.
      num_elements: elements of all tensors that carry it, each counted once: how much splitting it would divide.
    """

    name: str
    size: int
    num_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDimensions:
    """All named dimensions, most elements first, and the one of each ``(tensor, dimension)``."""

    dimensions: tuple[NamedDimension, ...]
    of: dict[tuple[int, int], int]

    @property
    def front(self) -> int:
        """The dimension that takes the outermost axes: the batch, or else the largest."""
        return next((k for k, dimension in enumerate(self.dimensions) if dimension.name == "batch"), 0)


def dimension_graph(program: Program, rules: Sequence[OperatorRule]) -> nx.Graph:
    """Undirected graph over ``(tensor index, dimension)``; edge attribute ``equation`` names the operator."""
    import networkx as nx  # slow to import, and needed by those alone who ask for the graph

    graph = nx.Graph()
    for first, node, equation in _links(program, rules):
        if first == node:
            graph.add_node(node)
        else:
            graph.add_edge(first, node, equation=equation)
    return graph


def _links(
    program: Program, rules: Sequence[OperatorRule]
) -> Iterator[tuple[tuple[int, int], tuple[int, int], int]]:
    """(first holder, holder, equation) of every factor that leads a dimension."""
    for eqn, rule in zip(program.equations, rules, strict=True):
        holders: dict[int, tuple[int, int]] = {}
        operands = zip(eqn.operands, rule.operands, strict=True)
        results = zip(eqn.results, rule.results, strict=True)
        for tensor, dims in itertools.chain(operands, results):
            for dim, factors in enumerate(dims):
                if factors:
                    node = (tensor, dim)
                    yield holders.setdefault(factors[0], node), node, eqn.index


def _connected_sets(program: Program, rules: Sequence[OperatorRule]) -> list[list[tuple[int, int]]]:
    """Connected sets of the dimension graph and of the inputs' dimensions, each ascending."""
    nodes = {(t, d): 0 for t in program.inputs for d in range(len(program.tensors[t].shape))}
    links = [(first, node) for first, node, _ in _links(program, rules)]
    nodes.update((node, 0) for _, node in links)
    nodes = {node: i for i, node in enumerate(sorted(nodes))}
    union = UnionFind(len(nodes))
    for first, node in links:
        union.join(nodes[first], nodes[node])
    sets: dict[int, list[tuple[int, int]]] = {}
    for node, i in nodes.items():
        sets.setdefault(union.find(i), []).append(node)
    return list(sets.values())


def named_dimensions(
    program: Program, rules: Sequence[OperatorRule], state: frozenset[int]
) -> NamedDimensions:
    """Connected sets of the dimension graph, named and ordered.

    Args:
      program: the traced step.
      rules: one rule per equation.
      state: tensor indices of inputs that are state (parameters, optimizer slots); the others are batch inputs.
    """
    components = _connected_sets(program, rules)
    inputs = {t: i for i, t in enumerate(program.inputs)}
    described = []
    for members in components:
        tensors = {t for t, _ in members}
        size = max(program.tensors[t].shape[d] for t, d in members)
        elements = sum(program.tensors[t].num_elements for t in tensors)
        first_dim = min(d for _, d in members)
        described.append((-elements, first_dim, members[0], size, members))
    described.sort(key=lambda item: item[:3])
    dimensions, of = [], {}
    for k, (negative, _, _, size, members) in enumerate(described):
        name = _dimension_name(program, members, inputs, state) or f"dim{k}"
        dimensions.append(NamedDimension(name=name, size=size, num_elements=-negative))
        of.update(dict.fromkeys(members, k))
    return NamedDimensions(dimensions=tuple(dimensions), of=of)


def _dimension_name(program: Program, members, inputs: dict[int, int], state: frozenset[int]) -> str:
    if any(t in inputs and t not in state and d == 0 for t, d in members):
        return "batch"
    stored = [(-len(program.tensors[t].shape), t, d) for t, d in members if t in inputs]
    if not stored:
        return ""
    _, t, d = min(stored)
    keys = re.findall(r"\w+", re.sub(r"^\[\d+\]", "", program.tensors[t].path)) or ["argument"]
    return f"{'/'.join(keys[-2:])}.{d}"
