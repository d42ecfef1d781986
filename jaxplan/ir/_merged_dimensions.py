"""Dimensions that an operator merges out of several: tokens, out of a batch and a sequence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from jaxplan.ir._dimensions import NamedDimensions
from jaxplan.ir._program import Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._union import UnionFind

_Node = tuple[int, int]
"""A tensor and one of its dimensions."""

MergedPart = tuple[int, int]
"""A named dimension (-1 without one) and its size."""


def merged_dimensions(
    program: Program, rules: Sequence[OperatorRule], named: NamedDimensions
) -> dict[_Node, tuple[MergedPart, ...]]:
    """The parts, major to minor, of every dimension of a tensor that merges several.

    The named dimension of a merged one is that of its first part alone, because it is split as that is, up to so many
    parts. ``reshape`` of ``(batch, sequence, hidden)`` to ``(tokens, hidden)`` gives ``((batch, 8), (sequence, 32))``
    for the tokens, and so do all element-wise results of them.
    """
    nodes = {node: n for n, node in enumerate(named.of)}
    alike, merged = UnionFind(len(nodes)), []
    for holders in _holders(program, rules):
        for held in holders.values():
            first = nodes.get(held[0], -1)
            for node in held[1:] if first >= 0 else ():
                if (other := nodes.get(node, -1)) >= 0:
                    alike.join(first, other)
        merged += [(held[0], factors, holders) for factors, held in holders.items() if len(factors) > 1]
    found: dict[int, tuple[MergedPart, ...]] = {}
    for node, factors, holders in merged:
        if node in nodes and alike.find(nodes[node]) not in found:
            leading = [holders.get((f,), [()])[0] for f in factors]
            if all(leading):
                parts = [_parts(of, nodes, alike, found, program, named) for of in leading]
                found[alike.find(nodes[node])] = tuple(itertools.chain(*parts))
    return {node: found[alike.find(n)] for node, n in nodes.items() if alike.find(n) in found}


def _holders(program: Program, rules: Sequence[OperatorRule]) -> Iterator[dict[tuple[int, ...], list[_Node]]]:
    """Per equation, the dimensions of its tensors by the factors that they hold."""
    for eqn, rule in zip(program.equations, rules, strict=True):
        holders: dict[tuple[int, ...], list[_Node]] = {}
        for t, dims in zip((*eqn.operands, *eqn.results), (*rule.operands, *rule.results), strict=True):
            for d, factors in enumerate(dims):
                if factors:
                    holders.setdefault(tuple(factors), []).append((t, d))
        yield holders


def _parts(
    node: _Node,
    nodes: dict[_Node, int],
    alike: UnionFind,
    found: dict[int, tuple[MergedPart, ...]],
    program: Program,
    named: NamedDimensions,
) -> tuple[MergedPart, ...]:
    single = ((named.of.get(node, -1), program.tensors[node[0]].shape[node[1]]),)
    return found.get(alike.find(nodes[node]), single) if node in nodes else single
