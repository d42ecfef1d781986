"""Uses of parameters in a step: every contraction and look-up with a stored array, by named dimensions."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

from jaxplan.cost import flops_of
from jaxplan.ir import CONTRACTION_FAMILIES, Equation, ParameterReads, StepGraph
from jaxplan.ir.attention import ATTENTIONS, Attention

_DOT_FAMILIES = CONTRACTION_FAMILIES | {"attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUse:
    """One equation that reads a parameter.

    Attributes:
      equation: its index.
      leaf: tensor index of the parameter that the operand holds, a program input.
      kind: ``dot``, ``convolution`` or ``look-up``.
      weight: named dimensions of the parameter as the equation reads it.
      data: named dimensions of the other operand.
      reduced: named dimensions over which the equation sums.
      result: named dimensions of the result.
      result_bytes: bytes of the result.
      batched: named dimensions of factors that the parameter, the other operand and the result all have.
      forward: whether it is in the forward pass.
    """

    equation: int
    leaf: int
    kind: str
    weight: tuple[int, ...]
    data: tuple[int, ...]
    reduced: frozenset[int]
    result: tuple[int, ...]
    result_bytes: int
    batched: frozenset[int]
    forward: bool


class Weights:
    """The uses of parameters in a step, and the dimensions that dots of two activations sum over."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self.program = graph.program
        self._reads = ParameterReads(
            graph.program, graph.rules, graph.values, graph.named, graph.named.batch
        )

    def dims(self, t: int) -> tuple[int, ...]:
        """Named dimension of each dimension of a tensor, -1 where it has none."""
        return tuple(self.graph.named.of.get((t, d), -1) for d in range(len(self.program.tensors[t].shape)))

    def is_batch(self, dimension: int) -> bool:
        return dimension in self.graph.named.batch

    @cached_property
    def uses(self) -> tuple[WeightUse, ...]:
        """In program order."""
        found = []
        for eqn in self.program.equations:
            kind = self._kind(eqn)
            if kind is None:
                continue
            sides = enumerate(eqn.operands[: 1 if kind == "look-up" else 2])
            read = [(p, leaf) for p, t in sides if (leaf := self._reads.held(t)) is not None]
            read.sort(key=lambda of: self._reads.stored(eqn.operands[of[0]]) is None)
            if not self.graph.named.batch:  # data has no batch dimension that tells it from parameters
                read.sort(key=lambda of: of[1] not in self.graph.state)
            found += [self._use(eqn, kind, *of) for of in read[:1]]
        return tuple(found)

    def _kind(self, eqn: Equation) -> str | None:
        rule = self.graph.rules[eqn.index]
        if rule.family == "gather" and rule.indexed:
            return "look-up"
        return {"contraction": "dot", "convolution": "convolution"}.get(rule.family)

    def _use(self, eqn: Equation, kind: str, position: int, leaf: int) -> WeightUse:
        (result, *_) = eqn.results
        return WeightUse(
            equation=eqn.index,
            leaf=leaf,
            kind=kind,
            weight=self.dims(eqn.operands[position]),
            data=self.dims(eqn.operands[1 - position]),
            reduced=self._reduced(eqn),
            result=self.dims(result),
            result_bytes=self.program.tensors[result].num_bytes * self.program.tensors[result].trips,
            batched=self._batched(eqn),
            forward=eqn.phase == "forward",
        )

    def _batched(self, eqn: Equation) -> frozenset[int]:
        """Named dimensions of the factors that both operands and the result of an equation have; or of the groups that
        the rows of a ragged dot belong to."""
        rule = self.graph.rules[eqn.index]
        if eqn.name == "ragged_dot_general":
            return self._groups(eqn)
        sides = (*rule.operands[:2], *rule.results[:1])
        shared = set.intersection(*({f for dim in dims for f in dim} for dims in sides))
        held = zip(self.dims(eqn.results[0]), rule.results[0], strict=True)
        return frozenset(d for d, factors in held if d >= 0 and shared & set(factors))

    def _groups(self, eqn: Equation) -> frozenset[int]:
        axes = eqn.params["ragged_dot_dimension_numbers"].rhs_group_dimensions
        group = (eqn.operands[1], axes[0]) if axes else (eqn.results[0], 0)
        found = self.graph.named.of.get(group, -1)
        return frozenset(() if found < 0 else (found,))

    def _reduced(self, eqn: Equation) -> frozenset[int]:
        found = self._dims_with(eqn, "reduce")
        return found - self._groups(eqn) if eqn.name == "ragged_dot_general" else found

    def _dims_with(self, eqn: Equation, kind: str) -> frozenset[int]:
        """Named dimensions of operands that carry a factor of a kind."""
        rule = self.graph.rules[eqn.index]
        found = set()
        for t, dims in zip(eqn.operands, rule.operands, strict=True):
            for d, factors in enumerate(dims):
                if any(rule.factors[f].kind == kind for f in factors):
                    found.add(self.graph.named.of.get((t, d), -1))
        return frozenset(found)

    @cached_property
    def summed_without(self) -> frozenset[int]:
        """Named dimensions over which dots without a parameter sum: head size and sequence, of attention. Where
        attention is fused they are those that operators on activations need whole: itself, and the halves of rotary
        positions before it."""
        with_weight = {use.equation for use in self.uses}
        found: set[int] = set()
        is_fused = any(rule.family == "attention" for rule in self.graph.rules)
        for eqn in self.program.equations:
            if is_fused and any(self.is_batch(d) for t in eqn.operands for d in self.dims(t)):
                found |= self._dims_with(eqn, "whole")
            if self._kind(eqn) in ("dot", "convolution") and eqn.index not in with_weight:
                found |= self._reduced(eqn)
        return frozenset(found)

    @cached_property
    def compared(self) -> frozenset[int]:
        """Named dimensions that a dot of the forward pass without a parameter has in two factors: sequences, in the
        scores of attention, and batches, in a loss that compares examples. A dot that sums over examples compares
        parameters: second moments of activations, and Gauss-Newton matrices."""
        with_weight = {use.equation for use in self.uses}
        found: set[int] = set()
        for eqn in self.program.equations:
            rule = self.graph.rules[eqn.index]
            if eqn.name in ATTENTIONS:
                found.add(self._sequence_of(eqn))
                continue
            is_dot = rule.family in _DOT_FAMILIES and eqn.index not in with_weight
            if not is_dot or eqn.phase != "forward":  # the gradient of a square weight has its dimension twice
                continue
            if any(self.is_batch(d) for d in self._reduced(eqn)):
                continue
            factors: dict[int, set[int]] = defaultdict(set)
            sides = ((eqn.operands, rule.operands), (eqn.results, rule.results))
            for t, dims in (pair for tensors, held in sides for pair in zip(tensors, held, strict=True)):
                for named, of in zip(self.dims(t), dims, strict=False):
                    factors[named].update(of[:1])
            found |= {d for d, of in factors.items() if len(of) > 1}
        return frozenset(found - {-1})

    def _sequence_of(self, eqn: Equation) -> int:
        """The named dimension of the queries that an attention in blocks compares with keys."""
        attention: Attention = eqn.params["attention"]
        return self.dims(eqn.operands[0])[attention.operands[0].index(attention.query)]

    @cached_property
    def elements(self) -> dict[int, int]:
        """Elements of every parameter that is used, by tensor index."""
        return {use.leaf: self.program.tensors[use.leaf].num_elements for use in self.uses}

    @cached_property
    def leaf_dims(self) -> dict[int, Counter[int]]:
        """How often each named dimension is in each parameter that is used."""
        found: dict[int, Counter[int]] = defaultdict(Counter)
        for leaf in self.elements:
            found[leaf].update(d for d in self.dims(leaf) if d >= 0)
        return dict(found)

    def flops(self, kind: str) -> float:
        """Floating-point operations of the forward dots of one kind with a parameter."""
        return sum(
            flops_of(self.graph, use.equation) for use in self.uses if use.kind == kind and use.forward
        )
