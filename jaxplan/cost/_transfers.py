"""The reshardings that a plan executes: the one list that prediction and lowering share, so that they agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jaxplan.cost._model import CostModel
from jaxplan.cost._pricing import REPEAT
from jaxplan.ir import UNGROUPED
from jaxplan.mesh import Layout, Path, reshard_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One execution of a transfer: made before equation ``first``, last read by equation ``last``."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One tensor brought to one other layout, for all of its readers that want it.

    Attributes:
      tensor: tensor index.
      path: the chain of steps.
      spans: its executions in program order: one, or one per phase when the copy is made again.
      repeated: the copy is not kept between forward and backward pass.
    """

    tensor: int
    path: Path
    spans: tuple[Span, ...]
    repeated: bool

    @property
    def target(self) -> Layout:
        return self.path.layouts[-1]


def plan_transfers(
    model: CostModel, assignment: Sequence[int], choices: Sequence[int]
) -> tuple[Transfer, ...]:
    """All reshardings of a solution, in order of first execution.

    Args:
      assignment: configuration index per group.
      choices: choice per edge of the problem.
    """
    choice_of = {
        flow: choices[edge] for edge, flows in enumerate(model.edge_flows) if len(flows) == 1 for flow in flows
    }
    reads: dict[tuple[int, Layout], list[int]] = defaultdict(list)
    sources: dict[int, Layout] = {}
    for index, flow in enumerate(model.flows):
        source = model.produced(flow.producer, _config(model, assignment, flow.producer), flow.tensor)
        target = model.required(flow.consumer, _config(model, assignment, flow.consumer), flow.tensor)
        if source != target:
            sources[flow.tensor] = source
            reads[flow.tensor, target].append(index)
    transfers = []
    for (t, target), indices in reads.items():
        tensor = model.graph.program.tensors[t]
        path = reshard_path(sources[t], target, tensor.shape, tensor.itemsize, model.topology)
        flows = [model.flows[i] for i in indices]
        forward = sorted(e for flow in flows for e in flow.forward)
        later = sorted(e for flow in flows for e in flow.later)
        again = [choice_of.get(i) == REPEAT for i in indices if model.flows[i].reads_twice]
        repeated = bool(forward and later and path.collectives) and (not again or all(again))
        reading = (forward, later) if repeated else (forward + later,)
        spans = tuple(Span(first=e[0], last=e[-1]) for e in reading if e)
        transfers.append(Transfer(tensor=t, path=path, spans=spans, repeated=repeated))
    transfers.sort(key=lambda x: (x.spans[0].first, x.tensor, x.target.dims))
    return tuple(transfers)


def _config(model: CostModel, assignment: Sequence[int], group: int):
    return () if group == UNGROUPED else model.configurations[group][assignment[group]]
