"""The tensor-dimension graph and its connected sets, the *named dimensions* of the program.

Nodes are ``(tensor, dimension)``; an edge joins two that carry the same factor of some operator. A connected set is a
dimension as people name it: batch, sequence, heads, vocabulary.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from jaxplan.core._interner import Memo
from jaxplan.core._paths import readable_path
from jaxplan.ir._program import Program
from jaxplan.ir._rule import OperatorRule

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDimension:
    """One connected set of tensor dimensions.

    Attributes:
      name: ``batch`` when it is a batch (`jaxplan.ir.find_batch`), else the name that its operators suggest
        (`jaxplan.ir.dimension_names`), else the dimension of the input of highest rank in it (``query/kernel.1``),
        else ``dim<k>``.
      size: the largest size among its members.
      num_elements: elements of all tensors that carry it, each counted once: how much splitting it would divide.
    """

    name: str
    size: int
    num_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDimensions:
    """All named dimensions, most elements first, and the one of each ``(tensor, dimension)``.

    Attributes:
      dimensions: by index.
      of: index of the named dimension of each dimension of a tensor.
      batch: indices of those that are batches, the most important first.
      names_at: names of dimensions of inputs that differ from that of the set: an image's rows and the sequence of
        patches that begins with them are one set.
    """

    dimensions: tuple[NamedDimension, ...]
    of: dict[tuple[int, int], int]
    batch: tuple[int, ...] = ()
    names_at: Mapping[tuple[int, int], str] = dataclasses.field(default_factory=dict)

    def name_at(self, t: int, d: int) -> str:
        """Name of a dimension of a tensor; empty where it has none (size 1)."""
        if (t, d) in self.names_at:
            return self.names_at[t, d]
        return self.dimensions[self.of[t, d]].name if (t, d) in self.of else ""

    def called(self, pattern: str) -> tuple[int, ...]:
        """Indices of the named dimensions that have a name of this pattern (`fnmatch`), as a whole or at some input.

        Example: the rows of an image and the sequence of patches that begins with them are one named dimension, found
        as ``rows`` and as ``sequence``.
        """
        found = {k for k, of in enumerate(self.dimensions) if fnmatch.fnmatchcase(of.name, pattern)}
        found |= {self.of[node] for node, name in self.names_at.items() if fnmatch.fnmatchcase(name, pattern)}
        return tuple(sorted(found))

    @property
    def front(self) -> int:
        """The dimension that takes the outermost axes: the batch, or else the largest."""
        return self.batch[0] if self.batch else 0

    def with_batch(self, batch: Sequence[int]) -> NamedDimensions:
        """The same with these as batches."""
        return dataclasses.replace(self.with_names(dict.fromkeys(batch, "batch")), batch=tuple(batch))

    def with_names(self, names: Mapping[int, str]) -> NamedDimensions:
        """The same with other names of some dimensions, by index."""
        dimensions = list(self.dimensions)
        for k, name in names.items():
            dimensions[k] = dataclasses.replace(dimensions[k], name=name)
        return dataclasses.replace(self, dimensions=tuple(dimensions))


def dimension_graph(program: Program, rules: Sequence[OperatorRule]) -> nx.Graph:
    """Undirected graph over ``(tensor index, dimension)``; edge attribute ``equation`` names the operator."""
    import networkx as nx  # slow to import, and only the graph needs it

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


def _components(
    program: Program, rules: Sequence[OperatorRule]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Connected sets of the dimension graph and of the inputs' dimensions.

    Returns:
      Tensor, dimension and number of the set of every node, each of shape (N,), by tensor and then dimension.
    """
    ranks = np.array([len(t.shape) for t in program.tensors], dtype=np.int64)
    first = np.cumsum(ranks) - ranks  # nodes of a tensor follow each other
    tensor = np.repeat(np.arange(len(ranks)), ranks)
    heads, tails = [], []
    for held, links in _links_by_rule(program, rules):
        for (p, d), (q, e) in links:
            heads.append(first[held[:, p]] + d)
            tails.append(first[held[:, q]] + e)
    linked = np.isin(tensor, np.array(program.inputs, dtype=np.int64))
    head, tail = (np.concatenate(of) if of else np.zeros(0, dtype=np.int64) for of in (heads, tails))
    linked[head] = linked[tail] = True
    size = len(tensor)
    number = _connected(head, tail, size)
    nodes = np.flatnonzero(linked)
    return tensor[nodes], nodes - first[tensor[nodes]], number[nodes]


def _connected(
    head: npt.NDArray[np.int64], tail: npt.NDArray[np.int64], size: int
) -> npt.NDArray[np.int64]:
    """(size,) the lowest node of the connected set of each node.

    The sets hook on to lower ones and paths are halved, round by round (Shiloach and Vishkin, 1982), in arrays:
    `scipy.sparse.csgraph` takes a seventh of a second to import.
    """
    lowest = np.arange(size)
    while True:
        a, b = lowest[head], lowest[tail]
        apart = a != b
        if not apart.any():
            return lowest
        head, tail, a, b = head[apart], tail[apart], a[apart], b[apart]
        np.minimum.at(lowest, np.maximum(a, b), np.minimum(a, b))
        while not np.array_equal(shorter := lowest[lowest], lowest):
            lowest = shorter


_Place = tuple[int, int]
"""Position of a tensor among an equation's operands and results, and one of its dimensions."""


def _links_by_rule(
    program: Program, rules: Sequence[OperatorRule]
) -> Iterator[tuple[npt.NDArray[np.int64], list[tuple[_Place, _Place]]]]:
    """Per rule the tensors of its equations, (equations, positions), and which of their dimensions share a factor."""
    equations = Memo()
    for index, number in enumerate(equations.numbers(rules)):
        equations.setdefault(number, []).append(index)
    for indices in equations.values():
        rule = rules[indices[0]]
        holders: dict[int, _Place] = {}
        links = [
            (holders.setdefault(factors[0], (p, d)), (p, d))
            for p, dims in enumerate((*rule.operands, *rule.results))
            for d, factors in enumerate(dims)
            if factors
        ]
        of = [program.equations[e] for e in indices]
        yield np.array([(*e.operands, *e.results) for e in of], dtype=np.int64).reshape(len(of), -1), links


def named_dimensions(program: Program, rules: Sequence[OperatorRule]) -> NamedDimensions:
    """Connected sets of the dimension graph, named and ordered; ``rules`` has one per equation."""
    tensor, dim, number = _components(program, rules)
    _, first, number = np.unique(number, return_index=True, return_inverse=True)
    sizes = np.array([program.tensors[t].shape[d] for t, d in zip(tensor.tolist(), dim.tolist())], dtype=np.int64)
    size, lowest = np.zeros(len(first), dtype=np.int64), np.full(len(first), np.iinfo(np.int64).max)
    np.maximum.at(size, number, sizes)
    np.minimum.at(lowest, number, dim)
    counted = np.unique(np.stack([number, tensor]), axis=1)
    elements = [0] * len(first)
    for k, t in counted.T.tolist():
        elements[k] += program.tensors[t].num_elements
    order = sorted(range(len(first)), key=lambda k: (-elements[k], lowest[k], tensor[first[k]], dim[first[k]]))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    named = place[number].tolist()
    members: dict[int, list[tuple[int, int]]] = defaultdict(list)
    inputs = frozenset(program.inputs)
    nodes = list(zip(tensor.tolist(), dim.tolist()))
    for node, k in zip(nodes, named):
        if node[0] in inputs:
            members[k].append(node)
    dimensions = tuple(
        NamedDimension(
            name=path_name(program, members[k]) or f"dim{k}",
            size=int(size[old]),
            num_elements=elements[old],
        )
        for k, old in enumerate(order)
    )
    return NamedDimensions(dimensions=dimensions, of=dict(zip(nodes, named)))


def path_name(program: Program, members: Sequence[tuple[int, int]]) -> str:
    """By the inputs' dimensions among its members; empty where there is none."""
    if not members:
        return ""
    _, t, d = min((-len(program.tensors[t].shape), t, d) for t, d in members)
    path = program.tensors[t].path
    keys = re.findall(r"\w+", re.sub(r"^\[\d+\]", "", path) or readable_path(path, program.argument_names))
    return f"{'/'.join(keys[-2:])}.{d}"
