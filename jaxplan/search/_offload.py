"""Host memory in the search: plans that were found, with state of the optimizer on the host.

No configuration changes by that, so plans of the step, with and without recomputed blocks, are predicted again as they
are: with a part of the state on the host, and with all of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from jaxplan.core._interner import Memo
from jaxplan.cost import (
    OTHER_STATE,
    PARAMETERS,
    CostModel,
    offloadable_inputs,
    offloadable_parameters,
    offloaded_model,
)
from jaxplan.errors import InfeasibleError
from jaxplan.ir import Offload, StepGraph
from jaxplan.plans._frontier import Frontier
from jaxplan.search._candidate import Candidate
from jaxplan.simulate import predictor_of

SHARES = (0.5, 1.0)
"""Of the bytes that could live on the host, those that do."""
_COULD_BE_AWAY = (PARAMETERS, OTHER_STATE)


def offloaded(candidates: Sequence[Candidate], progress: Callable[[float], None]) -> list[Candidate]:
    """The candidates with state on the host; none where there is no state that could live there."""
    models = Memo()
    for candidate in candidates:
        models.setdefault(models.number(candidate.predictor.model), []).append(candidate)
    found: list[Candidate] = []
    total = 2 * len(SHARES) * len(candidates)
    for members in models.values():
        model = members[0].predictor.model
        for offload in choices(model.graph, parameters=not model.buffers.target.fuses_operands):
            found += _predicted(offloaded_model(model, offload), members)
            progress(len(found) / total)
    return found


def choices(graph: StepGraph, *, parameters: bool) -> Iterator[Offload]:
    """Ever more on the host: state in the order of the arguments, then all of it with the parameters, or with the
    operands of recomputed regions in the order of the forward pass.

    The last region stays on the device: it is read at once.

    Args:
      parameters: whether these too. The compiler for TPUs copies all of them to the device when the step begins.
    """
    could, regions = offloadable_inputs(graph), len(graph.waiting)
    inputs, outputs = tuple(could), tuple(could.values())
    sizes = [graph.program.tensors[graph.program.inputs[i]].num_bytes for i in inputs]
    whole = Offload()
    for share in SHARES:
        count, num_bytes = 0, 0
        while count < len(inputs) and num_bytes + sizes[count] <= share * sum(sizes):
            num_bytes += sizes[count]
            count += 1
        if count > len(whole.inputs):
            whole = Offload(inputs=inputs[:count], outputs=outputs[:count], of=len(inputs))
            yield whole
    of_passes = offloadable_parameters(graph) if parameters else {}
    if of_passes:
        trained = {i: o for i, o in of_passes.items() if o is not None}
        updated = dict(sorted({**could, **trained}.items()))
        yield Offload(
            inputs=tuple(updated), outputs=tuple(updated.values()), of=len(inputs), parameters=tuple(of_passes)
        )
    for number in sorted({round(share * (regions - 1)) for share in SHARES} - {0, -1}):
        yield dataclasses.replace(whole, regions=number, regions_of=regions)


def _predicted(model: CostModel, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    predictor = predictor_of(model)
    for candidate in candidates:
        prediction, _ = predictor.predict(candidate.solution.assignment, candidate.solution.choices)
        yield Candidate(prediction=prediction, solution=candidate.solution, predictor=predictor)


def plan_with_offload(asked: bool | None, plan: Callable[[bool], Frontier], limit_bytes: int | None) -> Frontier:
    """The frontier with state on the host as asked for; by default, where nothing fits without.

    Args:
      plan: plans the step, for True with state on the host too.

    Raises:
      InfeasibleError: no plan fits; that of the leanest there is.
    """
    if asked is not None:
        return plan(asked)
    try:
        return plan(False)
    except InfeasibleError as error:
        away = sum(error.memory_parts.get(part, 0) for part in _COULD_BE_AWAY)
        if limit_bytes is None or not away or (error.smallest_memory_bytes or 0) - away > limit_bytes:
            raise
        try:
            return plan(True)
        except InfeasibleError as other:
            raise other from None
