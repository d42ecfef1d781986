"""The last stage: which of the candidates a person is shown, as plans, and the notes on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxplan.core._interrupt import current
from jaxplan.core._log import inform_once, until_interrupted, warn_once
from jaxplan.cost import CostModel
from jaxplan.errors import ArgumentError
from jaxplan.frontend._options import Options
from jaxplan.plans._frontier import Frontier
from jaxplan.plans._plan import Plan
from jaxplan.search._candidate import Candidate
from jaxplan.search._make_plan import NOTHING_PROVEN, Proof, make_plan
from jaxplan.search._operator_notes import operator_notes
from jaxplan.search._price import Priced, model_of_strategies
from jaxplan.search._score import Candidates, overlapped_proof
from jaxplan.search._shown_points import shown_points
from jaxplan.search._solve import draw_references, known_references
from jaxplan.search._uneven_dimensions import uneven_dimensions
from jaxplan.simulate import predictor_of
from jaxplan.strategies import StrategyPlan

NOTHING_MSG = (
    "there is nothing to plan in the step {name}: it does not compute with arrays that it was given.\n"
    "  expected: a step with at least one operator on arrays among its arguments\n"
    "  likely cause: it returns its arguments as they are, or closes over the arrays that it works on\n"
    "  fix: pass the arrays as arguments, or plan the function that trains"
)
_UNPROVEN_NOTE = (
    "bounds and gaps are of the step as it is: of plans that recompute blocks nothing is proven (docs/remat.md)"
)


def assemble(candidates: Candidates, options: Options, name: str) -> Frontier:
    """The frontier of the candidates.

    Raises:
      ArgumentError: the step computes nothing; ``name`` is how the error calls it.
      InfeasibleError: no plan fits the limit.
      KeyboardInterrupt: interrupted before there was any plan.
    """
    priced = candidates.solutions.priced
    plans = shown_plans(candidates, options.memory_limit_bytes)
    if not plans:
        raise KeyboardInterrupt  # nothing was found until then
    if not any(plan.time_seconds for plan in plans):
        raise ArgumentError(NOTHING_MSG.format(name=name))
    plans, references = _with_conditions(plans, candidates.references, priced)
    if priced.forbidden:
        references = _with_forbidden(references, priced)
    return Frontier.from_plans(
        plans,
        references=references,
        absent=priced.absent,
        memory_limit_bytes=options.memory_limit_bytes,
        notes=_notes(priced, plans, options),
    )


def _with_conditions(
    plans: Sequence[Plan], references: Mapping[str, Plan], priced: Priced
) -> tuple[list[Plan], Mapping[str, Plan]]:
    """The same plans with the pins, and with the layouts that could not be kept; points that are references stay so."""
    if not priced.pinned and not priced.free:
        return list(plans), references

    def marked(plan: Plan) -> Plan:
        return dataclasses.replace(plan, pins=priced.pinned, not_kept=priced.free)

    known = {name: marked(plan) for name, plan in references.items()}
    return [known[of.name] if references.get(of.name) is of else marked(of) for of in plans], known


def shown_plans(candidates: Candidates, memory_limit_bytes: int | None) -> list[Plan]:
    """The plans of a frontier by ascending memory; where none fits, all, so that an error can name the leanest."""
    references = list(candidates.references.values())
    plans: list[Plan] = references
    with until_interrupted("the search"):
        shown = shown_points(references, candidates.found, memory_limit_bytes)
        most = candidates.solutions.priced.most_configurations
        plans = _all_finished(shown or [*references, *candidates.found], most)
    return plans


def _notes(priced: Priced, plans: Sequence[Plan], options: Options) -> list[str]:
    notes = [*operator_notes(priced.model.graph), *_uneven_dimensions(priced.model, plans)]
    notes += [*priced.free, *filter(None, [priced.certificate])]
    for line in priced.free:
        warn_once(line)
    if current().happened:
        notes.append(current().note)
    if any(plan.remat for plan in plans):
        notes.append(_UNPROVEN_NOTE)
    return notes


def _with_forbidden(references: Mapping[str, Plan], priced: Priced) -> dict[str, Plan]:
    """All references in their order: those that pins rule out are priced too, to compare with."""
    of = priced.model
    predicted = known_references(of)
    forbidden = {name: strategy for name, strategy in priced.strategies.items() if name in priced.forbidden}
    unknown = {name: strategy for name, strategy in forbidden.items() if (name, strategy) not in predicted}
    if unknown:
        _draw(unknown, of)
    known = {**references, **{key[0]: predicted[key] for key in forbidden.items() if key in predicted}}
    return {name: known[name] for name in priced.strategies if name in known}


def _draw(strategies: Mapping[str, StrategyPlan], of: CostModel) -> None:
    """Predict strategies that are no points of a model, as known references."""
    model = model_of_strategies(strategies, of.graph, of.topology, overlap=of.overlapped, buffers=of.buffers)
    draw_references(predictor_of(model), strategies)


def _all_finished(items: Sequence[Plan | Candidate], most_configurations: int | None) -> list[Plan]:
    """Plans of the shown points; after an interrupt, of as many as there is time for, the fastest first."""
    order = sorted(range(len(items)), key=lambda i: items[i].time_seconds) if current().happened else range(len(items))
    plans = {i: item for i, item in enumerate(items) if isinstance(item, Plan)}
    with until_interrupted("describing the plans"):
        for i in order:
            if i not in plans and (current().time_is_left or not plans):
                plans[i] = _finished(items[i], most_configurations)
                current().plans = (*current().plans, plans[i])
    return [plans[i] for i in sorted(plans)]


def _finished(item: Plan | Candidate, most_configurations: int | None) -> Plan:
    if isinstance(item, Plan):
        return item
    found = item.solution
    model = item.predictor.model
    if model.graph.remat is not None or model.graph.offload is not None:
        proof = NOTHING_PROVEN
    elif model.overlapped:
        proof = overlapped_proof(model, item.prediction, found.time, found.lower_bound, most_configurations)
    else:
        proof = Proof(
            lower_bound_seconds=found.lower_bound, gap=found.gap, most_configurations=most_configurations
        )
    return make_plan(
        item.predictor,
        found.assignment,
        found.choices,
        name="plan",
        proof=proof,
        prediction=item.prediction,
    )


def _uneven_dimensions(model: CostModel, plans: Sequence[Plan]) -> list[str]:
    """Notes on dimensions that the devices do not divide; a warning where padding them would gain."""
    as_traced = [plan for plan in plans if plan.remat is None]  # the model's groups are those of the step as it is
    if not as_traced or current().happened:
        return []
    fastest = min(as_traced, key=lambda plan: plan.time_seconds)
    lines = []
    for uneven in uneven_dimensions(model, fastest.configurations):
        lines.append(uneven.describe(model.topology.num_devices, fastest.communication_seconds))
        say = warn_once if uneven.gains or uneven.is_batch else inform_once
        say(lines[-1])
    return lines
