"""The stage that predicts: solutions of the additive problem with the time and memory that the model says of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from jaxplan.core._interrupt import current
from jaxplan.core._log import until_interrupted
from jaxplan.cost import CostModel, Prediction, Predictor
from jaxplan.frontend._options import Options
from jaxplan.plans._plan import Plan
from jaxplan.search._candidate import Candidate
from jaxplan.search._make_plan import NOTHING_PROVEN, Proof
from jaxplan.search._offload import offloaded
from jaxplan.search._recompute import ACTIVATION_PARTS, is_worth_it, recomputed
from jaxplan.search._solve import Drawn, Solutions
from jaxplan.search._traced import Report
from jaxplan.simulate import OverlappedPredictor, overlapped_bound
from jaxplan.solvers import FRONTIER_SOLVERS, Solution, bound_at, relative_gap


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Solutions, predicted, and the reference strategies with the bounds proven of them.

    Attributes:
      solutions: where they come from.
      references: plans by name.
      found: solutions of the step as it is, then those in which blocks are recomputed, then both with state on the
        host.
    """

    solutions: Solutions
    references: Mapping[str, Plan]
    found: tuple[Candidate, ...]


def score(solutions: Solutions, options: Options, report: Report) -> Candidates:
    """Predict the solutions; where memory is short, of the step with blocks recomputed too."""
    references = {name: drawn.plan for name, drawn in solutions.references.items()}
    found: list[Candidate] = []
    with until_interrupted("the search"):
        report("score")
        for name in references:
            references[name] = _proven(solutions, name)
        found += predict_all(solutions.predictor, solutions.found, report)
        if found and not current().happened and _wants_remat(options, found):
            with until_interrupted("looking for blocks to recompute"):
                report("remat")
                model = solutions.priced.model
                limit = None if options.offload else options.memory_limit_bytes  # with state away more of them fit
                found += recomputed(model, found, options.solver, lambda of: report("remat", of), limit)
        if found and not current().happened and options.offload:
            with until_interrupted("looking for state to keep on the host"):
                report("offload")
                found += offloaded([*found, *_drawn(solutions)], lambda fraction: report("offload", fraction))
    return Candidates(solutions=solutions, references=references, found=tuple(found))


def _drawn(solutions: Solutions) -> list[Candidate]:
    """The reference strategies as candidates: no solver has found them, and one may be the leanest with state away."""
    return [
        Candidate(
            prediction=drawn.plan.prediction,
            solution=Solution(
                assignment=tuple(drawn.assignment),
                choices=tuple(drawn.choices),
                time=drawn.plan.time_seconds,
                memory=drawn.plan.memory_bytes,
                lower_bound=0.0,
                gap=math.inf,
                solver="reference",
            ),
            predictor=solutions.predictor,
        )
        for drawn in solutions.references.values()
    ]


def _proven(solutions: Solutions, name: str) -> Plan:
    """A reference strategy with the solver's bounds for it."""
    drawn, priced = solutions.references[name], solutions.priced
    proof = _proof(
        priced.model, solutions.found, drawn, priced.most_configurations
    )
    return dataclasses.replace(drawn.plan, **proof.limited(drawn.plan.prediction))


def predict_all(
    predictor: Predictor, solutions: Sequence[Solution], report: Report
) -> list[Candidate]:
    """Solutions with their predictions; those predicted before an interruption."""
    candidates: list[Candidate] = []
    is_overlapped = isinstance(predictor, OverlappedPredictor)
    predict = predictor.predict_in_turn if is_overlapped else predictor.predict
    with until_interrupted("predicting what was found"):
        for done, solution in enumerate(_spread(solutions) if current().happened else solutions):
            if not current().time_is_left:
                break
            prediction, _ = predict(solution.assignment, solution.choices)
            candidates.append(Candidate(prediction=prediction, solution=solution, predictor=predictor))
            report("score", done / len(solutions))
    return _simulated(predictor, candidates) if isinstance(predictor, OverlappedPredictor) else candidates


def _simulated(predictor: OverlappedPredictor, in_turn: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with the communication that compute hides, in their order.

    Those that another of no more memory beats whatever they hide stay as they are: they are on no frontier.
    """
    found, known = list(in_turn), list[Candidate]()
    for i in sorted(range(len(found)), key=lambda i: in_turn[i].time_seconds):
        one = in_turn[i]
        least = predictor.least_seconds(one.prediction)
        if any(other.memory_bytes <= one.memory_bytes and other.time_seconds < least for other in known):
            continue
        of = one.solution
        prediction = predictor.hidden(one.prediction, of.assignment, of.choices)
        found[i] = dataclasses.replace(one, prediction=prediction)
        known.append(found[i])
    return found


def _spread(solutions: Sequence[Solution]) -> list[Solution]:
    """The fastest first, then the leanest, then from the middle outwards: the order for short time."""
    order, spans = [len(solutions) - 1, 0], [(0, len(solutions) - 1)]
    for low, high in spans:  # grows while it is walked
        middle = (low + high) // 2
        if low < middle:
            order.append(middle)
            spans += [(low, middle), (middle, high)]
    return [solutions[i] for i in dict.fromkeys(order)] if solutions else []


def _wants_remat(options: Options, candidates: Sequence[Candidate]) -> bool:
    """Whether rematerialisation is looked for: as asked, or where memory is short and activations are much of it."""
    if options.remat is False or options.solver not in FRONTIER_SOLVERS:
        return False
    if options.remat:
        return True
    fastest = min(candidates, key=lambda candidate: candidate.time_seconds).prediction
    activations = sum(fastest.memory_parts.get(part, 0) for part in ACTIVATION_PARTS)
    return is_worth_it(fastest.memory_bytes, activations, options.memory_limit_bytes)


def overlapped_proof(
    model: CostModel,
    prediction: Prediction,
    additive_seconds: float,
    additive_bound: float,
    most_configurations: int | None,
) -> Proof:
    """The bound of a simulated time, from an additive cost and its bound; none without one.

    The problem may price a resharding more often than it is executed; the gap counts that on the plan's side too.
    """
    if not additive_bound > 0 or not math.isfinite(additive_seconds):
        return NOTHING_PROVEN
    bound = overlapped_bound([(model, 1.0)], additive_bound)
    executed = prediction.time_seconds + prediction.hidden_seconds
    priced = prediction.time_seconds + max(0.0, additive_seconds - executed)
    return Proof(
        lower_bound_seconds=bound, gap=relative_gap(priced, bound), most_configurations=most_configurations
    )


def _proof(
    model: CostModel,
    solutions: Sequence[Solution],
    drawn: Drawn,
    most_configurations: int | None,
) -> Proof:
    """The solver's bounds for an assignment that it did not find."""
    if not solutions:
        return NOTHING_PROVEN
    time, memory, _ = model.problem.evaluate(drawn.assignment, drawn.choices)
    bound = bound_at(solutions, memory)
    if model.overlapped:
        return overlapped_proof(model, drawn.plan.prediction, time, bound, most_configurations)
    return Proof(
        lower_bound_seconds=bound,
        gap=relative_gap(time, bound) if bound > 0 and math.isfinite(time) else None,
        most_configurations=most_configurations,
    )
