"""Rematerialisation in the search: the step with recomputed blocks, on the configurations that plans use.

The choice is a ladder: the first blocks of the forward pass hold their residuals longest, so they are recomputed first,
up to their contractions, ever more of them; then the contractions too. A rung is a program of its own
(`jaxplan.ir.rematerialise`) with the groups of the step as it is: the configurations that plans of the step use are
carried over, and only among them is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from jaxplan.core._interner import Memo
from jaxplan.cost import CostModel, ModelBuilder
from jaxplan.ir import (
    WHOLE,
    Block,
    Configuration,
    GroupSpace,
    Remat,
    Rematerialised,
    StepGraph,
    Structures,
    ordered,
    recomputable_blocks,
    rematerialise,
)
from jaxplan.plans._undominated import undominated
from jaxplan.search._candidate import Candidate
from jaxplan.simulate import predictor_of
from jaxplan.solvers import frontier

RUNGS = 5
"""Numbers of blocks that are tried in each way: so many even steps up to all of them."""
MAX_AT_ENDS, MAX_BETWEEN = 16, 6
"""Solutions that are predicted where all blocks are recomputed in one way, and on the other rungs."""
LEAST_SHARE = 0.25
"""Where the fastest plan needs at most this share of the memory there is, no rematerialisation is looked for."""
LEAST_ACTIVATIONS = 0.15
"""... nor where activations, and copies of them, are at most this share of its memory."""
LEAST_SAVING = 0.03
"""A way to recompute blocks is tried on some of them where on all it saves at least this share of memory."""
ACTIVATION_PARTS = ("activations", "resharded copies")

_Used = list[tuple[Configuration, ...]]
"""Per group of the step as it was traced, the configurations to search; one object for equal groups."""


def is_worth_it(fastest_bytes: int, activation_bytes: int, memory_limit_bytes: int | None) -> bool:
    """Whether memory is short enough, and activations large enough, for rematerialisation to be looked for."""
    is_short = memory_limit_bytes is not None and fastest_bytes > LEAST_SHARE * memory_limit_bytes
    return is_short and activation_bytes > LEAST_ACTIVATIONS * fastest_bytes


def ends(num_blocks: int) -> list[Remat]:
    """All blocks recomputed: up to contractions, and with them."""
    if not num_blocks:
        return []
    return [Remat(num_contractions=num_blocks, of=num_blocks), Remat(num_all=num_blocks, of=num_blocks)]


def rungs_between(num_blocks: int, *, light: bool, heavy: bool) -> list[Remat]:
    """Choices between the step as it is and the ends.

    Args:
      light: recomputing the operators between contractions saves memory; of ever more blocks.
      heavy: recomputing contractions too saves more; of ever more blocks, the others light where that saves.
    """
    counts = sorted({max(1, round(num_blocks * rung / RUNGS)) for rung in range(1, RUNGS)} - {num_blocks})
    found = [Remat(num_contractions=k, of=num_blocks) for k in counts if light]
    others = num_blocks if light else 0
    return found + [
        Remat(num_all=k, num_contractions=max(0, others - k), of=num_blocks) for k in counts if heavy
    ]


def recomputed(
    model: CostModel,
    candidates: Sequence[Candidate],
    solver: str,
    progress: Callable[[float], None],
    limit_bytes: int | None = None,
) -> list[Candidate]:
    """Solutions of the step with recomputed blocks, a few for each rung of the ladder.

    The ends are searched on the configurations that the undominated of ``candidates`` use, the other rungs on those
    that the solutions of the ends use.

    Args:
      limit_bytes: where not even the ends take at most so much, the rungs between them are left out.
    """
    blocks = recomputable_blocks(model.graph)
    search, best = _Search(model, blocks, solver), undominated(candidates)
    used = search.used([model.chosen(c.solution.assignment) for c in best])
    found: list[Candidate] = []
    least = [best[0].memory_bytes]
    for remat in ends(len(blocks)):
        found += search.solve(remat, used, MAX_AT_ENDS)
        least.append(min((c.memory_bytes for c in found), default=least[0]))
        progress(len(least) / (2 * RUNGS))
    if not found or (limit_bytes is not None and min(least) > limit_bytes):
        return found
    light, heavy = (after < (1 - LEAST_SAVING) * before for before, after in pairwise(least))
    rungs = rungs_between(len(blocks), light=light, heavy=heavy)
    used = search.used([search.before[search.before.number(c.solution)] for c in undominated(found)])
    for done, remat in enumerate(rungs):
        found += search.solve(remat, used, MAX_BETWEEN)
        progress((done + 1) / len(rungs))
    return found


class _Search:
    """Solves rungs of one step; ``before``: per solution, the configurations that it was carried over from."""

    def __init__(self, model: CostModel, blocks: Sequence[Block], solver: str) -> None:
        self.model, self.blocks, self.solver = model, blocks, solver
        self.before = Memo()
        self._structures = Structures()

    def used(self, chosen: Iterable[Sequence[Configuration]]) -> _Used:
        """The configurations that some plan gives a group or an equal one, the replicated one first."""
        model, found = self.model, list(chosen)
        kinds = Memo()
        for v, (configs, kind) in enumerate(zip(model.configurations, model.problem.node_kinds, strict=True)):
            kinds.setdefault((kind, kinds.number(configs)), []).append(v)
        result: _Used = [()] * len(model.configurations)
        for members in kinds.values():
            first = model.configurations[members[0]][0]
            others = ordered({configs[v] for configs in found for v in members} - {first})
            for v in members:
                result[v] = (first, *others)
        return result

    def solve(self, remat: Remat, used: _Used, max_points: int) -> list[Candidate]:
        """Solutions of one rung, predicted; none where nothing is recomputed."""
        graph = self.model.graph
        again = rematerialise(graph, remat, self.blocks, self._structures)
        if not again.parts:
            return []
        maps = [_class_map(graph, again, v) for v in range(len(again.graph.spaces))]
        sources = [() if before is None else used[before] for before, _ in maps]
        carried = [
            [tuple(config[c] if c >= 0 else () for c in classes) for config in configs]
            or [((),) * len(classes)]
            for configs, (_, classes) in zip(sources, maps, strict=True)
        ]
        builder = ModelBuilder(again.graph, self.model.topology, overlap=self.model.overlapped)
        model = builder.build([tuple(configs) for configs in carried])
        predictor, found = predictor_of(model), []
        for solution in frontier(model.problem, solver=self.solver, max_points=max_points):
            prediction, _ = predictor.predict(solution.assignment, solution.choices)
            found.append(Candidate(prediction=prediction, solution=solution, predictor=predictor))
            origin = [configs[0] for configs in self.model.configurations]
            for (before, _), configs, k in zip(maps, sources, solution.assignment, strict=True):
                if before is not None:
                    origin[before] = configs[k]
            self.before[self.before.number(solution)] = origin
        return found


def _class_map(graph: StepGraph, again: Rematerialised, v: int) -> tuple[int | None, list[int]]:
    """The group that a group of the rewritten program was, and which of its classes each class was (-1: none)."""
    group, space = again.graph.grouping.groups[v], again.graph.spaces[v]
    classes, before = [-1] * len(space.classes), None
    for t in group.inputs:
        before = graph.grouping.tensor_group[t]
        dims = graph.spaces[before].tensor_dims.get(t, ())
        _match(classes, [c for d in space.tensor_dims.get(t, ()) for c in d], [c for d in dims for c in d])
    for e in group.equations:
        if e in again.original:
            old = again.original[e]
            before = graph.grouping.equation_group[old]
            _match(classes, space.factor_class[e], graph.spaces[before].factor_class[old])
    if before is not None:
        _match(classes, _of_sums(space), _of_sums(graph.spaces[before]))
    return before, classes


def _of_sums(space: GroupSpace) -> list[int]:
    """The classes that no tensor has: partial sums are split along them (gradients of micro-batches)."""
    return [c for c, of in enumerate(space.classes) if not of.sizes]


def _match(classes: list[int], new: Sequence[int], old: Sequence[int]) -> None:
    for c, known in zip(new, old):
        if c != WHOLE and known != WHOLE:
            classes[c] = known
