"""The plan of one assignment of configurations."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from jaxplan.core._once import Once
from jaxplan.cost import Prediction, Predictor, boundary_shardings, sequences_of
from jaxplan.ir import Program
from jaxplan.partition import decide_lowering
from jaxplan.plans._plan import Plan
from jaxplan.plans._summary import input_dims, input_roles, outline_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The bounds that a solver proved for an assignment; see the attributes of the same name of `Plan`."""

    lower_bound_seconds: float = 0.0
    gap: float | None = None
    most_configurations: int | None = None

    def limited(self, prediction: Prediction) -> dict[str, Any]:
        """The attributes of the same names of a plan of that prediction: no bound is above its own time."""
        return {
            "lower_bound_seconds": min(self.lower_bound_seconds, prediction.time_seconds),
            "gap": self.gap,
            "most_configurations": self.most_configurations,
        }


NOTHING_PROVEN = Proof()


_ARGUMENTS: weakref.WeakKeyDictionary[Predictor, Mapping[str, Any]] = weakref.WeakKeyDictionary()
"""Facts on the arguments of a step, which all of its plans have in common."""


def _of_arguments(predictor: Predictor) -> Mapping[str, Any]:
    """The attributes of a plan that tell of the arguments."""
    found = _ARGUMENTS.get(predictor)
    if found is None:
        graph = predictor.model.graph
        found = _ARGUMENTS[predictor] = {
            "in_avals": graph.program.in_avals,
            "in_roles": input_roles(graph),
            "in_dims": input_dims(graph),
            "argument_names": graph.program.argument_names,
        }
    return found


def make_plan(
    predictor: Predictor,
    assignment: Sequence[int],
    choices: Sequence[int],
    *,
    name: str,
    proof: Proof = NOTHING_PROVEN,
    prediction: Prediction | None = None,
) -> Plan:
    """The plan of one assignment: predicted, unless that is known, and with the layouts of its inputs and outputs."""
    model = predictor.model
    transfers = predictor.transfers(assignment, choices)
    if prediction is None:
        prediction, _ = predictor.predict(assignment, choices)
    chosen, repeated = model.chosen(assignment), tuple(sorted(model.repeated(choices)))
    graph, topology = model.graph, model.topology
    input_shardings, output_shardings = boundary_shardings(model.graph, chosen)
    program: Program = model.graph.program
    return Plan(
        name=name,
        topology=model.topology,
        fingerprint=program.fingerprint,
        donate_argnums=program.donate_argnums,
        configurations=chosen,
        repeated=repeated,
        in_paths=program.in_paths,
        **_of_arguments(predictor),
        out_paths=program.out_paths,
        input_shardings=input_shardings,
        output_shardings=output_shardings,
        prediction=prediction,
        **proof.limited(prediction),
        outline=outline_of(model.graph, model.topology, chosen, transfers),
        remat=model.graph.remat,
        offload=model.graph.offload,
        microbatches=program.microbatches,
        recomputed_loops=program.recomputed_loops,
        sort_blocks=program.sort_blocks,
        sequences=sequences_of(graph, topology, chosen),
        graph=graph,
        decided=Once(lambda: decide_lowering(graph, topology, chosen, repeated)),
    )
