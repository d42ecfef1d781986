"""Large parameters that are not gathered long before they are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from jaxplan.cost import Transfer, outer_operators, place_of_guard, views_of
from jaxplan.cost._plan_shardings import PlanShardings
from jaxplan.ir import Equation, StepGraph
from jaxplan.partition._lowering import GatherGuard
from jaxplan.partition._resident import Resident
from jaxplan.xla import LARGE_PARAMETER_BYTES


def find_gather_guards(shardings: PlanShardings, resident: Resident) -> tuple[GatherGuard, ...]:
    """Dots and look-ups before which large parameters are not gathered.

    Only operands in memory pass through the barrier, not those that a dot computes inside of it (probabilities of
    attention), unless all are computed so.
    """
    graph, found = shardings.graph, []
    gathers = [t for t in shardings.transfers if shardings.is_gathered_parameter(t)]
    for equation, parameters in _guarded(graph, shardings.target.tiles_arrays, gathers).items():
        operands: Sequence[int] = ()
        if graph.rules[equation].family != "gather":
            eqn = graph.program.equations[equation]
            positions = range(len(eqn.operands))
            operands = [i for i in positions if resident.is_resident(eqn, i)] or positions
        found.append(GatherGuard(equation=equation, parameters=tuple(parameters), operands=tuple(operands)))
    return tuple(found)


def _guarded(graph: StepGraph, is_tiled: bool, gathers: Sequence[Transfer]) -> Mapping[int, list[int]]:
    """Equation -> large parameters that are not gathered before it.

    Contraction -> those that are first read `PREFETCH_CONTRACTIONS` after it; look-up -> tables that are first read
    `PREFETCH_LOOK_UPS` after it. One that is gathered again, as another view, is on TPUs the latest view that exists by
    then: left alone, the compiler made one gather of that of an embedding of 50280 rows and that of its transpose for
    the head. Read again as it was, it is the copy that was gathered first.
    """
    program, values = graph.program, graph.values
    outer = outer_operators(graph)
    found: dict[int, list[int]] = defaultdict(list)
    seen: set[int] = set()
    for gather in sorted(gathers, key=lambda gather: gather.spans[0].first):
        first = gather.spans[0].first
        like, place = place_of_guard(outer, first)
        chain = list(views_of(graph, gather.tensor))
        source = chain[-1]
        if values.producer[source] >= 0 or program.tensors[source].num_bytes < LARGE_PARAMETER_BYTES:
            continue
        if source not in seen and place >= 0:
            found[outer[like][place]].append(source)
        elif source in seen and is_tiled and chain != [source] and not gather.shared:
            before = next((e for e in outer[like][max(place, 0) :] if e < first), None)
            if before is not None:
                found[before].append(next(u for u in chain if values.producer[u] < before))
        seen.add(source)
    return found


def is_written_look_up(shardings: PlanShardings, eqn: Equation) -> bool:
    """Whether the rows of a look-up are to be materialised: its large table is gathered for the forward pass alone.

    The compiler was seen to look rows up again in the fusions of the backward pass, and to keep the gathered table
    until there. Where the rows are smaller than the table, materialising them takes less memory.
    """
    graph = shardings.graph
    if not shardings.target.repeats_look_ups or eqn.phase == "backward" or graph.rules[eqn.index].family != "gather":
        return False
    table = shardings.copy_of(eqn, eqn.operands[0])
    if table is None or not shardings.is_gathered_parameter(table):
        return False
    readers = next(span.readers for span in table.spans if eqn.index in span.readers)
    if any(graph.program.equations[e].phase == "backward" for e in readers):
        return False
    rows, kept = shardings.local_bytes(eqn.results[0]), shardings.local_bytes(table.tensor, table.target)
    return kept > rows and graph.program.tensors[table.tensor].num_bytes >= LARGE_PARAMETER_BYTES
