"""Uses of parameters in a step: every contraction and look-up with a stored array, by named dimensions."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

from jaxplan.cost import flops_of
from jaxplan.ir import REGION_IN, VIEW_PRIMITIVES, Equation, StepGraph

_STORED_VIEWS = VIEW_PRIMITIVES | {"optimization_barrier", "copy", "stop_gradient", "rev"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUse:
    """One equation that reads a parameter.

    Attributes:
      equation: its index.
      leaf: tensor index of the parameter, a program input.
      kind: ``product``, ``convolution`` or ``look-up``.
      weight: named dimensions of the parameter as the equation reads it.
      data: named dimensions of the other operand.
      reduced: named dimensions over which the equation sums.
      result: named dimensions of the result.
      result_bytes: bytes of the result.
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
    forward: bool

    @property
    def batched(self) -> frozenset[int]:
        """Named dimensions that the parameter, the other operand and the result all have. A square matrix has two
        equal named dimensions in a residual stream; its dot sums over one of them, so that one is left out."""
        return frozenset(self.weight).intersection(self.data, self.result) - self.reduced


class Weights:
    """The uses of parameters in a step, and the dimensions that dots of two activations sum over."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self.program = graph.program
        self.inputs = frozenset(graph.program.inputs)

    def dims(self, t: int) -> tuple[int, ...]:
        """Named dimension of each dimension of a tensor, -1 where it has none."""
        return tuple(self.graph.named.of.get((t, d), -1) for d in range(len(self.program.tensors[t].shape)))

    def is_batch(self, dimension: int) -> bool:
        return dimension in self.graph.named.batch

    def leaf(self, t: int) -> int | None:
        """The parameter that a tensor is a view, a cast or a slice per trip of; None for everything else."""
        while t not in self.inputs:
            producer = self.graph.values.producer[t]
            if producer < 0:
                return None
            eqn = self.program.equations[producer]
            sliced = eqn.name == REGION_IN and eqn.params["role"] in ("x", "const", "operand")
            if eqn.name not in _STORED_VIEWS and not sliced:
                return None
            t = eqn.operands[0]
        if any(map(self.is_batch, self.dims(t))) or not self.program.tensors[t].shape:
            return None
        return t

    @cached_property
    def uses(self) -> tuple[WeightUse, ...]:
        """In program order."""
        found = []
        for eqn in self.program.equations:
            kind = self._kind(eqn)
            if kind is None:
                continue
            for position, t in enumerate(eqn.operands[:2]):
                leaf = self.leaf(t)
                if leaf is not None and (kind != "look-up" or position == 0):
                    found.append(self._use(eqn, kind, position, leaf))
                    break
        return tuple(found)

    def _kind(self, eqn: Equation) -> str | None:
        rule = self.graph.rules[eqn.index]
        if rule.family == "gather" and rule.indexed:
            return "look-up"
        return {"contraction": "product", "convolution": "convolution"}.get(rule.family)

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
            forward=eqn.phase == "forward",
        )

    def _reduced(self, eqn: Equation) -> frozenset[int]:
        return self._dims_with(eqn, "reduce")

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
        """Named dimensions over which products without a parameter sum: head size and sequence, of attention. Where
        attention is fused they are those that operators on activations need whole: itself, and the halves of rotary
        positions before it."""
        with_weight = {use.equation for use in self.uses}
        found: set[int] = set()
        is_fused = any(rule.family == "attention" for rule in self.graph.rules)
        for eqn in self.program.equations:
            if is_fused and any(self.is_batch(d) for t in eqn.operands for d in self.dims(t)):
                found |= self._dims_with(eqn, "whole")
            if self._kind(eqn) in ("product", "convolution") and eqn.index not in with_weight:
                found |= self._reduced(eqn)
        return frozenset(found)

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
        """Floating-point operations of the forward products of one kind with a parameter."""
        return sum(
            flops_of(self.graph, use.equation) for use in self.uses if use.kind == kind and use.forward
        )
