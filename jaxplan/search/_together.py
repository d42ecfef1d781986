"""Several steps planned over one layout of the arrays that they share.

One problem holds the steps (`jaxplan.search._joint_problem`), and the solvers of a single step solve it. Its memory is
that of one step while it runs, so it is solved for each step that needs most somewhere on the frontier. Every solution
is predicted step by step; parts of solutions with the same layout of the shared arrays are combined freely, because
nothing else ties the steps.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxplan.core._collector import paused_collector
from jaxplan.cost import Prediction, Predictor
from jaxplan.errors import InfeasibleError
from jaxplan.frontend._options import Options
from jaxplan.plans._joint import JointPlan
from jaxplan.plans._plan import Plan
from jaxplan.plans._undominated import undominated
from jaxplan.search._joint_problem import Choice, JointProblem, Layout, Member, mirrored
from jaxplan.search._make_plan import make_plan
from jaxplan.search._price import Priced
from jaxplan.search._recompute import ACTIVATION_PARTS
from jaxplan.search._shared import Shared
from jaxplan.search._shown_points import shown_points
from jaxplan.search._traced import Report
from jaxplan.simulate import overlapped_bound, predictor_of
from jaxplan.solvers import Problem, frontier, outline, restrict
from jaxplan.strategies import reference_solution

MAX_CANDIDATES = 64
"""Solutions of the joint problem that are predicted."""
MAX_OF_STEP = 48
"""Solutions of a step by itself that are predicted, alone and under a layout of the shared arrays."""
MOST_GROUPS, MAX_MINIMISED = 64, 16
"""Of steps with more groups than so many, the hull alone, by at most so many minimisations."""
MAX_AROUND = 6
"""Minimisations for the other steps around one that is fixed; four are for both ends."""
ALONE = " alone"
"""Ends the name of the reference in which one step is laid out as by itself."""
MAX_COMBINED = 1024
"""Combinations of parts of solutions that are looked at for one layout."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A predicted plan of one step.

    Attributes:
      activation_bytes: of the memory, for activations and copies of them.
      kept: per step, bytes of the arrays that this one owns and that one does not have (`JointProblem.kept_bytes`).
      make: builds the plan.
    """

    time_seconds: float
    memory_bytes: int
    activation_bytes: int
    kept: tuple[int, ...]
    make: Callable[[], Plan]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointCandidate:
    """A plan of each step with one layout of the shared arrays.

    Attributes:
      resident: per step, bytes of arrays that others keep while it runs.
      lower_bound: weighted seconds that nothing of at most this memory beats; 0 where unknown.
    """

    layout: tuple[Layout, ...]
    parts: tuple[Part, ...]
    time_seconds: float
    memory_bytes: int
    resident: tuple[int, ...]
    lower_bound: float = 0.0


def open_together(
    priced: Sequence[Priced], names: Sequence[str], shared: Sequence[Shared]
) -> list[Priced]:
    """Priced steps, each with the layouts of shared arrays that the others use by themselves or in a strategy."""
    members = [Member(name=name, weight=1.0, model=of.model) for name, of in zip(names, priced, strict=True)]
    hulls = [of.opened.hull() if of.opened is not None else None for of in priced]
    used = [
        [point.assignment for point in hull.points] if hull is not None else [] for hull in hulls
    ]
    for s, of in enumerate(priced):
        used[s] += [reference_solution(of.model, strategy)[0] for strategy in of.allowed.values()]
    more: list[dict[int, set]] = [defaultdict(set) for _ in priced]
    number = {name: s for s, name in enumerate(names)}
    for array in shared:
        wanted: set[Layout] = set()
        for leaf in array.leaves:
            member, s = members[number[leaf.step]], number[leaf.step]
            layouts, v = member.layouts(leaf), member.group(leaf)
            wanted |= {layouts[assignment[v] if v >= 0 else 0] for assignment in used[s]}
        for leaf in array.leaves:
            member, s = members[number[leaf.step]], number[leaf.step]
            for layout in sorted(wanted.difference(member.layouts(leaf))):
                config = mirrored(member, leaf, layout)
                if config is not None:
                    more[s][member.group(leaf)].add(config)
    return [
        _with_more(of, wanted, hull) if wanted else of for of, wanted, hull in zip(priced, more, hulls, strict=True)
    ]


def _with_more(priced: Priced, more: Mapping[int, Iterable], hull) -> Priced:
    assert priced.opened is not None
    opened = priced.opened.with_more(more, hull)
    return dataclasses.replace(
        priced,
        opened=opened,
        model=opened.model,
        most_configurations=opened.most_configurations,
        certificate=opened.certificate(),
    )


class JointSearch:
    """Finds joint plans of priced steps.

    Attributes:
      problem: the steps, tied.
      found: candidates so far.
      references: candidates by name in which one step decides.
    """

    def __init__(
        self, problem: JointProblem, priced: Sequence[Priced], options: Options, report: Report
    ) -> None:
        self.problem, self.priced, self.options, self.report = problem, priced, options, report
        self.predictors = [predictor_of(member.model) for member in problem.members]
        self.found: list[JointCandidate] = []
        self.references: dict[str, JointCandidate] = {}
        self._predicted: dict[tuple[int, Choice], Part] = {}
        self._by_layout: dict[tuple[Layout, ...], list[dict[Part, None]]] = {}
        self._labels: dict[tuple[Layout, ...], tuple[Choice, ...]] = {}
        self._problem_of = functools.cache(problem.problem)

    def run(self) -> None:
        """Solve, predict and combine."""
        with paused_collector():
            self._around_steps()
            solved: set[int] = set()
            while (dominating := self._dominating() - solved) and len(solved) < len(self.problem.members):
                self._solve(min(dominating))
                solved |= {min(dominating)}
            self.combine()
            self._refine()
            self.combine()

    def best(self) -> list[JointCandidate]:
        """The candidates that nothing beats, by ascending memory."""
        return undominated(self.found)

    def _dominating(self) -> set[int]:
        """The steps that need most memory in some candidate that nothing beats."""
        found = set[int]()
        for candidate in self.best():
            peaks = [part.memory_bytes + own for part, own in zip(candidate.parts, candidate.resident)]
            found.add(peaks.index(max(peaks)))
        return found

    def _solve(self, dominating: int) -> None:
        """Solutions of the joint problem with the memory of one step."""
        solutions = frontier(
            self._problem_of(dominating),
            solver=self.options.solver,
            max_points=MAX_CANDIDATES,
            progress=lambda stage, fraction: self.report("solve", fraction),
        )
        self.report("score")
        models = [(member.model, member.weight) for member in self.problem.members]
        for solution in solutions:
            bound = solution.lower_bound
            if bound > 0 and models[0][0].overlapped:
                bound = overlapped_bound(models, bound)
            self._add(self.problem.choices_of(solution.assignment, solution.choices), bound)

    def _around_steps(self) -> None:
        """Candidates in which one step is as it is best by itself, or as a strategy, and the others follow."""
        for s, (member, priced) in enumerate(zip(self.problem.members, self.priced, strict=True)):
            self.report("solve", s / len(self.priced))
            alone: dict[str, Choice] = {}
            solutions = _solutions(member.model.problem)
            choices = [(of.assignment[: len(member.model.configurations)], of.choices) for of in solutions]
            parts = {choice: self.part(s, choice) for choice in choices}
            if parts:
                alone[f"{member.name}{ALONE}"] = min(parts, key=lambda choice: parts[choice].time_seconds)
                alone[""] = min(parts, key=lambda choice: parts[choice].memory_bytes)
            for name, strategy in priced.allowed.items():
                alone[name] = reference_solution(member.model, strategy)
            for name, choice in alone.items():
                candidates = self._around(s, choice)
                if name and name not in self.references and candidates:
                    self.references[name] = min(candidates, key=lambda of: of.time_seconds)

    def _around(self, s: int, choice: Choice) -> list[JointCandidate]:
        """The best of the other steps around one; none where they cannot have the shared arrays so."""
        problem = self._problem_of(s)
        fixed = [choice[0] if s == other else None for other in range(len(self.priced))]
        try:
            labels = self.problem.labels(fixed)
            solutions = outline(restrict(problem, labels), MAX_AROUND).points
        except InfeasibleError:
            return []
        found = []
        for solution in solutions:
            assignment = [of[k] for of, k in zip(labels, solution.assignment, strict=True)]
            parts = list(self.problem.choices_of(assignment, solution.choices))
            parts[s] = choice
            found.append(self._add(parts))
        return found

    def part(self, s: int, choice: Choice) -> Part:
        """A step's part of a solution, predicted; one object for equal ones."""
        key = (s, choice)
        if key not in self._predicted:
            prediction, _ = self.predictors[s].predict(*choice)
            make = functools.partial(_made, self.predictors[s], choice, prediction)
            self._predicted[key] = Part(
                time_seconds=prediction.time_seconds,
                memory_bytes=prediction.memory_bytes,
                activation_bytes=sum(prediction.memory_parts.get(part, 0) for part in ACTIVATION_PARTS),
                kept=self.problem.kept_bytes(s, self.problem.chosen_bytes(s, choice)),
                make=make,
            )
        return self._predicted[key]

    def _add(self, choices: Sequence[Choice], lower_bound: float = 0.0) -> JointCandidate:
        """A solution as a candidate, and its parts as material for others with the same layout."""
        layout = self.problem.layout(choices)
        parts = tuple(self.part(s, choice) for s, choice in enumerate(choices))
        self._labels.setdefault(layout, tuple(choices))
        for known, part in zip(self._by_layout.setdefault(layout, [{} for _ in parts]), parts, strict=True):
            known[part] = None
        candidate = self.joined(layout, parts, lower_bound)
        self.found.append(candidate)
        return candidate

    def add_part(self, layout: tuple[Layout, ...], s: int, part: Part) -> None:
        """Another plan of a step under a layout of the shared arrays that is known."""
        self._by_layout[layout][s][part] = None

    def joined(
        self, layout: tuple[Layout, ...], parts: Sequence[Part], lower_bound: float = 0.0
    ) -> JointCandidate:
        """A candidate of these plans of the steps."""
        members = self.problem.members
        resident = tuple(map(sum, zip(*(part.kept for part in parts), strict=True)))
        return JointCandidate(
            layout=layout,
            parts=tuple(parts),
            time_seconds=sum(member.weight * part.time_seconds for member, part in zip(members, parts)),
            memory_bytes=max(part.memory_bytes + others for part, others in zip(parts, resident)),
            resident=resident,
            lower_bound=lower_bound,
        )

    def combine(self) -> None:
        """Parts of candidates with the same layout in all combinations that can matter."""
        for layout, known in self._by_layout.items():
            most = max(2, int(MAX_COMBINED ** (1 / len(known))))
            choices = [_spread(_useful(parts), most) for parts in known]
            for parts in itertools.product(*choices):
                self.found.append(self.joined(layout, parts))
        self.found = self.best()

    def _refine(self) -> None:
        """Each step solved by itself under the layouts of the fastest and leanest candidate, and of each step alone.

        Solutions of the joint problem have the least additive cost, and of these few the prediction may prefer others.
        """
        best = self.best()
        wanted = [of.layout for name, of in self.references.items() if name.endswith(ALONE)]
        for layout in dict.fromkeys([best[-1].layout, best[0].layout, *wanted]):
            if layout not in self._labels:
                continue
            for s, member in enumerate(self.problem.members):
                labels = self.problem.labels_of_layout(s, layout)
                for solution in _solutions(restrict(member.model.problem, labels)):
                    assignment = tuple(of[k] for of, k in zip(labels, solution.assignment, strict=True))
                    choice = (assignment[: len(member.model.configurations)], solution.choices)
                    self.add_part(layout, s, self.part(s, choice))


def _solutions(problem: Problem) -> Sequence[Any]:
    """Solutions of a step by itself, the fastest and the leanest among them."""
    if problem.num_nodes > MOST_GROUPS:
        return outline(problem, MAX_MINIMISED).points
    return frontier(problem, max_points=MAX_OF_STEP)


def _made(predictor: Predictor, choice: Choice, prediction: Prediction) -> Plan:
    return make_plan(predictor, *choice, name="plan", prediction=prediction)


def _useful(parts: Iterable[Part]) -> list[Part]:
    """Those that none beats in time, memory and what it keeps, by ascending memory."""
    found: list[Part] = []
    for part in sorted(parts, key=lambda of: (of.memory_bytes, of.time_seconds, sum(of.kept))):
        if not any(o.time_seconds <= part.time_seconds and sum(o.kept) <= sum(part.kept) for o in found):
            found.append(part)
    return found


def _spread(parts: Sequence[Part], most: int) -> list[Part]:
    """At most so many, both ends among them."""
    if len(parts) <= most:
        return list(parts)
    return [parts[round(i * (len(parts) - 1) / (most - 1))] for i in range(most)]


def joint_plans(
    search: JointSearch, shared: Sequence[Mapping[str, str]], memory_limit_bytes: int | None
) -> tuple[list[JointPlan], dict[str, JointPlan]]:
    """The plans of a frontier, all where none fits, and the references."""
    best = shown_points(list(search.references.values()), search.found, memory_limit_bytes) or search.best()
    made: dict[Part, Plan] = {}

    def plan(candidate: JointCandidate, name: str) -> JointPlan:
        members = search.problem.members
        for part in candidate.parts:
            if part not in made:
                made[part] = part.make()
        return JointPlan(
            name=name,
            plans={member.name: made[part] for member, part in zip(members, candidate.parts, strict=True)},
            weights={member.name: member.weight for member in members},
            resident_bytes={
                member.name: size for member, size in zip(members, candidate.resident, strict=True)
            },
            shared=tuple(shared),
            lower_bound_seconds=min(candidate.lower_bound, candidate.time_seconds),
        )

    references = {name: plan(candidate, name) for name, candidate in search.references.items()}
    return [plan(candidate, "plan") for candidate in best], references
