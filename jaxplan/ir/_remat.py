"""Rematerialisation as a rewrite of the program: a block's forward equations again, behind a barrier.

Differentiation has happened when a step is traced, so `jax.checkpoint` cannot be applied any more. Its result
is built here: before the first equation of the backward pass that reads a residual of a block, a barrier on the
block's operands and on the gradient that has come that far, and after it the block's equations that compute the
residuals. The backward pass reads these copies and the operands of the barrier, so that neither is merged with the
originals. A copy has the value number of its original, and so joins its group (`jaxplan.ir._groups`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax

from jaxplan.core import _compat
from jaxplan.ir._batch import Batch
from jaxplan.ir._blocks import LEAST_INTENSITY, Block, Passes, Remat, find_blocks
from jaxplan.ir._dead_code import remove_dead
from jaxplan.ir._dimensions import NamedDimensions
from jaxplan.ir._grouping import CONTRACTION_FAMILIES, STORED_KINDS, UNGROUPED
from jaxplan.ir._model import StepGraph, analyse, rule_of
from jaxplan.ir._program import REGION_IN, REGION_OUT, Equation, Program, Region, RematPolicy, Tensor
from jaxplan.ir._spaces import Structures


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The recomputed part of one block.

    Attributes:
      equations: indices of the forward equations, ascending.
      sources: values that they read and that are kept, ascending.
      residuals: values of the block that the backward pass reads and that they make.
      first, last: the equations of the backward pass that read these, from the first to the last.
      passes: the passes that the block is a part of.
    """

    equations: tuple[int, ...]
    sources: tuple[int, ...]
    residuals: frozenset[int]
    first: int
    last: int
    passes: Passes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rematerialised:
    """A step that recomputes blocks.

    Attributes:
      graph: its program analysed; the fingerprint is that of the step as it was traced.
      parts: the recomputed parts, in the order in which the backward pass needs them.
      original: equation index -> index in the program before, for all equations but the barriers.
    """

    graph: StepGraph
    parts: tuple[Again, ...]
    original: dict[int, int]


def recomputable_blocks(graph: StepGraph) -> tuple[Block, ...]:
    """The repeated blocks of a step that the backward pass can recompute, at least in part; found once."""

    def find() -> tuple[Block, ...]:
        blocks = find_blocks(graph.program, graph.rules, graph.values)
        finder = _Finder(graph)
        return tuple(block for block in blocks if finder.again(block, "all") is not None)

    return graph.derive("blocks", None, find)


def rematerialise(
    graph: StepGraph,
    remat: Remat,
    blocks: Sequence[Block] | None = None,
    structures: Structures | None = None,
) -> Rematerialised:
    """The step as a choice has it.

    Args:
      graph: the step as it was traced.
      blocks: those of `recomputable_blocks`, where they are known already.
      structures: those that other choices of the same step were seen to have; new ones are added.
    """
    blocks = recomputable_blocks(graph) if blocks is None else blocks
    finder = _Finder(graph)
    found = [finder.again(block, policy) for block, policy in zip(blocks, remat.policies)]
    parts = tuple(sorted((again for again in found if again is not None), key=lambda again: again.first))
    rewriter = _Rewriter(graph, parts)
    program, original = rewriter.run()
    rules = [
        graph.rules[original[e.index]] if e.index in original else rule_of(program, e)
        for e in program.equations
    ]
    counts = {e.index: graph.counts[original[e.index]] for e in program.equations if e.index in original}
    known = _known(graph, rewriter.copies)
    again = dataclasses.replace(
        analyse(program, rules=rules, structures=structures, known=known, counts=counts),
        remat=remat,
        traced=graph,
    )
    return Rematerialised(graph=again, parts=parts, original=original)


def _known(graph: StepGraph, copies: Mapping[int, int]) -> tuple[NamedDimensions, Batch]:
    """Dimensions by name, and the batch: those of the step as it was traced.

    Args:
      copies: tensor -> the one of the step as it was traced that it equals.
    """
    of = dict(graph.named.of)
    for copy, t in copies.items():
        dims = range(len(graph.program.tensors[t].shape))
        of.update({(copy, d): of[t, d] for d in dims if (t, d) in of})
    return dataclasses.replace(graph.named, of=of), graph.batch


class _Finder:
    """Finds the equations of a block that can be recomputed, and their operands."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph, self.program = graph, graph.program
        self.outside = {t for r in self.program.regions for t in (r.selector, r.predicate) if t is not None}
        self.outside.update(self.program.outputs)
        entries = (e for e in self.program.equations if e.name == REGION_IN)
        self.unchanging = {e.results[0] for e in entries if e.params["role"] == "const"}

    def again(self, block: Block, policy: RematPolicy) -> Again | None:
        """None where the backward pass reads nothing that could be recomputed."""
        equations = self.program.equations[block.start : block.stop]
        made = {t: eqn for eqn in equations for t in eqn.results}
        given = self._given(block, equations)
        if policy == "contractions":
            given |= self._costly(equations)
        passes = block.passes
        residuals = [t for t in made if t not in given and self._readers(t, passes)]
        needed, sources = set(), set()
        stack = list(residuals)
        while stack:
            t = stack.pop()
            if t in made and t not in given:
                if made[t].index not in needed:
                    needed.add(made[t].index)
                    stack.extend(made[t].operands)
            elif not self._is_there(t):
                sources.add(t)
        readers = [c for t in residuals if not self.graph.values.free[t] for c in self._readers(t, passes)]
        if not readers or not sources:
            return None
        return Again(
            equations=tuple(sorted(needed)),
            sources=tuple(sorted(sources)),
            residuals=frozenset(
                t for e in needed for t in self.program.equations[e].results if self._readers(t, passes)
            ),
            first=min(self._outermost(c, passes) for c in readers),
            last=max(readers),
            passes=passes,
        )

    def _is_there(self, t: int) -> bool:
        """Whether a value needs no barrier: it is free, or is a parameter, whose gathered copy a plan keeps
        or re-gathers like any other, or it is the same in every trip of the loop around the passes."""
        return (
            self.program.tensors[t].kind in ("literal", "constant")
            or self.graph.values.free[t]
            or self._is_stored(t)
            or t in self.unchanging
        )

    def _is_stored(self, t: int) -> bool:
        group = self.graph.grouping.tensor_group[t]
        return group != UNGROUPED and self.graph.grouping.groups[group].kind in STORED_KINDS

    def _given(self, block: Block, equations: Sequence[Equation]) -> set[int]:
        """The values that are kept anyway: results that the block hands on, and values that cannot be recomputed."""
        given: set[int] = set()
        passes = block.passes
        for eqn in equations:
            is_fixed = (
                eqn.region != passes.region
                or eqn.name in (REGION_IN, REGION_OUT)
                or getattr(eqn.origin, "effects", None)
            )
            for t in eqn.results:
                readers = self.graph.values.consumers[t]
                goes_on = any(block.stop <= c < passes.turning or c >= passes.stop for c in readers)
                hands_on = goes_on and not self.graph.values.free[t]
                if is_fixed or hands_on or t in self.outside or self._is_stored(t):
                    given.add(t)
        return given

    def _costly(self, equations: Sequence[Equation]) -> set[int]:
        """Results of contractions of many FLOPs for each element."""
        heavy = [e for e in equations if self.graph.rules[e.index].family in CONTRACTION_FAMILIES]
        elements = {e.index: self.program.tensors[e.results[0]].num_elements for e in heavy}
        work = {e.index: elements[e.index] * self._reduced(e) for e in heavy}
        mean = sum(work.values()) / max(1, sum(elements.values()))
        return {e.results[0] for e in heavy if work[e.index] >= LEAST_INTENSITY * mean * elements[e.index]}

    def _reduced(self, eqn: Equation) -> int:
        """How many products are added up for each element of a contraction's result."""
        rule, tensors = self.graph.rules[eqn.index], self.program.tensors
        if rule.family == "convolution":
            kernel = tensors[eqn.operands[1]].shape
            return (
                tensors[eqn.operands[1]].num_elements // kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
            )
        total = 1
        for factor in rule.factors_of_kind("reduce"):
            total *= rule.factors[factor].size
        return total

    def _readers(self, t: int, passes: Passes) -> list[int]:
        """The equations of the backward pass that read a value."""
        equations = self.program.equations
        return [
            c
            for c in self.graph.values.consumers[t]
            if equations[c].phase == "backward" and passes.turning <= c < passes.stop
        ]

    def _outermost(self, index: int, passes: Passes) -> int:
        """Where the outermost loop or branch of the passes around an equation begins; itself outside of all."""
        starts = [r.start for r in self.program.regions if passes.start <= r.start <= index < r.stop]
        return min([index, *starts])


class _Rewriter:
    """Working state: the new equations, and the copy that the backward pass reads instead of a tensor."""

    def __init__(self, graph: StepGraph, parts: Sequence[Again]) -> None:
        self.graph, self.program, self.parts = graph, graph.program, parts
        self.tensors: list[Tensor] = list(graph.program.tensors)
        self.equations: list[Equation] = []
        self.name: dict[int, int] = {}
        self.copies: dict[int, int] = {}
        self.origin: dict[int, int] = {}

    def run(self) -> tuple[Program, dict[int, int]]:
        place: list[int] = []
        ends: list[int] = []
        waiting = list(self.parts)
        for eqn in self.program.equations:
            ends.append(len(self.equations))
            while waiting and waiting[0].first == eqn.index:
                self._insert(waiting.pop(0), waiting[0] if waiting else None)
            place.append(len(self.equations))
            operands = eqn.operands
            if eqn.phase == "backward" and not self.name.keys().isdisjoint(operands):
                operands = tuple([self.name.get(t, t) for t in operands])
            self._append(eqn.at(len(self.equations), operands, eqn.results), eqn.index)
        ends.append(len(self.equations))
        regions = tuple(_moved(region, place, ends) for region in self.program.regions)
        equations, regions = remove_dead(self.equations, self.program.outputs, regions)
        program = dataclasses.replace(
            self.program, tensors=tuple(self.tensors), equations=equations, regions=regions
        )
        original = {
            e.index: self.origin[e.results[0]] for e in equations if e.results and e.results[0] in self.origin
        }
        return program, original

    def _append(self, eqn: Equation, original: int) -> None:
        self.equations.append(eqn)
        if eqn.results:
            self.origin[eqn.results[0]] = original

    def _insert(self, part: Again, following: Again | None) -> None:
        """The barrier of one block and the equations behind it."""
        last = part.last
        if following is not None and following.passes == part.passes:
            last = min(last, following.first - 1)
        origin = _compat.fresh_equation(self.program.equations[part.equations[0]].origin)
        region = part.passes.region
        self._barrier(part.sources, part.sources, origin, region)
        gradients = self._gradients(part.first, last, part.passes.turning)
        self._barrier(gradients, [self.name.get(t, t) for t in gradients], origin, region)
        inner = {t: self.name[t] for t in part.sources}
        for index in part.equations:
            eqn = self.program.equations[index]
            operands = tuple([inner.get(t, t) for t in eqn.operands])
            results = tuple([self._copy_of(t) for t in eqn.results])
            inner.update(zip(eqn.results, results, strict=True))
            again = eqn.at(len(self.equations), operands, results, phase="backward", region=region)
            self._append(again, index)
        self.name.update((t, inner[t]) for t in part.residuals)

    def _barrier(self, tensors: Sequence[int], operands: Sequence[int], origin: object, region: int) -> None:
        """One equation for each tensor; they have one origin, and so are executed as one barrier."""
        for t, operand in zip(tensors, operands, strict=True):
            self.name[t] = self._copy_of(t)
            self.equations.append(
                Equation(
                    index=len(self.equations),
                    primitive=jax.lax.optimization_barrier_p,
                    params={},
                    operands=(operand,),
                    results=(self.name[t],),
                    name_stack="rematerialised",
                    phase="backward",
                    origin=origin,
                    region=region,
                )
            )

    def _gradients(self, first: int, last: int, turning: int) -> list[int]:
        """Values computed by the backward pass before an equation and read between it and another one."""
        found: dict[int, None] = {}
        for eqn in self.program.equations[first : last + 1]:
            if eqn.phase != "backward":
                continue
            for t in eqn.operands:
                made_by = self.graph.values.producer[t]
                is_gradient = (
                    turning <= made_by < first and self.program.equations[made_by].phase == "backward"
                )
                if is_gradient and self.program.tensors[t].shape and not self.graph.values.free[t]:
                    found.setdefault(t)
        return list(found)

    def _copy_of(self, t: int) -> int:
        like, index = self.program.tensors[t], len(self.tensors)
        self.copies[index] = t
        self.tensors.append(
            Tensor(
                index=index,
                shape=like.shape,
                dtype=like.dtype,
                itemsize=like.itemsize,
                kind="computed",
                trips=like.trips,
            )
        )
        return index


def _moved(region: Region, place: Sequence[int], ends: Sequence[int]) -> Region:
    """``place[i]``: where equation ``i`` has gone; ``ends[i]``: where the equations before it end."""
    return dataclasses.replace(
        region,
        start=place[region.start],
        stop=ends[region.stop],
        entries=tuple(tuple(place[e] for e in body) for body in region.entries),
        exits=tuple(place[e] for e in region.exits),
        ranges=tuple((place[first], ends[last]) for first, last in region.ranges),
    )
