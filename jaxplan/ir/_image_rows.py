"""Names of single dimensions of inputs: the rows of an image, and the sequence of patches that begins with them.

An operator that merges rows and columns joins the result and the rows in one named dimension, as the rows are the
leading factor. People call the two by different names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from jaxplan.ir._dimension_uses import DimensionUses
from jaxplan.ir._dimensions import NamedDimensions, path_name
from jaxplan.ir._program import Equation
from jaxplan.ir._union import UnionFind

_Node = tuple[int, int]
"""A tensor and one of its dimensions."""


def names_of_rows(
    uses: DimensionUses, named: NamedDimensions, images: Collection[int], convolutions: Sequence[Equation]
) -> dict[_Node, str]:
    """Names of those dimensions of inputs that begin with the rows of an image.

    Args:
      named: with the names of whole sets.
      images: the named dimensions that begin with rows.
      convolutions: of the data with parameters; their first spatial dimension is rows and nothing else.
    """
    number = {node: n for n, node in enumerate(node for node, k in named.of.items() if k in images)}
    alike = UnionFind(len(number))
    for first, node in _same_factors(uses, number):
        alike.join(number[first], number[node])
    rows = {alike.find(number[node]) for node in _rows(convolutions) if node in number}
    inputs = frozenset(uses.program.inputs)
    return {
        node: "rows" if alike.find(n) in rows else _merged(uses, named, node)
        for node, n in number.items()
        if node[0] in inputs
    }


def _merged(uses: DimensionUses, named: NamedDimensions, node: _Node) -> str:
    name = named.dimensions[named.of[node]].name
    return path_name(uses.program, [node]) if name == "rows" else name


def _same_factors(uses: DimensionUses, members: Collection[_Node]) -> Iterator[tuple[_Node, _Node]]:
    """Pairs of dimensions that an operator gives the same factors, all of them."""
    for eqn, rule in zip(uses.program.equations, uses.rules, strict=True):
        holders: dict[tuple[int, ...], _Node] = {}
        pairs = zip((*eqn.operands, *eqn.results), (*rule.operands, *rule.results), strict=True)
        for t, dims in pairs:
            for d, factors in enumerate(dims):
                if (t, d) in members:
                    yield holders.setdefault(tuple(factors), (t, d)), (t, d)


def _rows(convolutions: Sequence[Equation]) -> Iterator[_Node]:
    for eqn in convolutions:
        numbers = eqn.params["dimension_numbers"]
        for t, places in ((eqn.operands[0], numbers.lhs_spec), (eqn.results[0], numbers.out_spec)):
            if len(places) == 4:
                yield t, places[2]
