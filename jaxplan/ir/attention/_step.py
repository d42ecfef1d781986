"""A step with its attention worked through in blocks of keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from jaxplan.ir._dimensions import NamedDimensions
from jaxplan.ir._model import StepGraph, analyse, rule_of
from jaxplan.ir._program import Program
from jaxplan.ir.attention._operator import ATTENTIONS
from jaxplan.ir.attention._rewrite import find_attentions, fused_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """How a plan works through attention.

    Attributes:
      form: of the operators; ``ring`` passes blocks of keys and values on, ``gather`` gathers all of them, ``heads``
        exchanges heads, or gathers where that moves less.
      parts: the most parts that an attention has its sequence in; 1 where devices share examples and heads alone.
      exchanged: the most devices among which an attention exchanges heads.

    >>> str(Sequences(form="ring", parts=8)), str(Sequences(form="ring", parts=1))
    ('attention in a ring of 8', 'attention in blocks')
    >>> str(Sequences(form="gather", parts=4))
    'attention in blocks, keys gathered from 4'
    >>> str(Sequences(form="heads", parts=8, exchanged=4))
    'attention in blocks, heads exchanged among 4, keys gathered from 2'
    """

    form: str
    parts: int
    exchanged: int = 1

    def __str__(self) -> str:
        if self.parts == 1:
            return "attention in blocks"
        if self.form == "ring":
            return f"attention in a ring of {self.parts}"
        exchanged = f", heads exchanged among {self.exchanged}" if self.exchanged > 1 else ""
        gathered = f", keys gathered from {self.parts // self.exchanged}" if self.exchanged < self.parts else ""
        return f"attention in blocks{exchanged}{gathered}"


def attention_graph(graph: StepGraph, form: str) -> StepGraph:
    """The step with every attention in blocks of keys; itself where it has none."""
    program = fused_attention(graph.program, graph.rules, form)
    if program is graph.program:
        return graph
    return analyse(program, known=(_named_as(graph, program), graph.batch))


def _named_as(graph: StepGraph, program: Program) -> NamedDimensions:
    """The dimensions of the step by name; those of queries and of keys are one, and new arrays have those of others.

    An attention that is one operator does not show that it mixes positions, so they would be taken for examples.
    """
    of, same = dict(graph.named.of), {}
    for eqn in program.equations:
        if eqn.name not in ATTENTIONS:
            continue
        rule, leading = rule_of(program, eqn), dict[int, int]()
        for t, dims in zip((*eqn.operands, *eqn.results), (*rule.operands, *rule.results), strict=True):
            for d, factors in enumerate(dims):
                if factors and (t, d) in of:
                    first = leading.setdefault(factors[0], of[t, d])
                    same[of[t, d]] = first
                elif factors and factors[0] in leading:
                    of[t, d] = leading[factors[0]]
    joined = {node: _first(same, k) for node, k in of.items()}
    return dataclasses.replace(graph.named, of=joined)


def _first(same: Mapping[int, int], k: int) -> int:
    """The dimension that stands for all that are the same."""
    seen = {k}
    while (other := same.get(k, k)) not in seen:
        seen.add(other)
        k = other
    return k


def largest_scores(graph: StepGraph) -> int:
    """Bytes of the largest scores of an attention, of all pairs of a query and a key; 0 where there is none."""

    def find() -> int:
        found = find_attentions(graph.program, graph.rules)
        return max((graph.program.tensors[of.chain.product[0]].num_bytes for of in found), default=0)

    return graph.derive("largest scores", None, find)
