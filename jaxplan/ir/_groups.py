"""Coarsening: which equations share one configuration (Tofu 4.2.1).

A *group* is a set of equations with one iteration space. There are six ways into a group:

1. state: optimizer slots, and the element-wise equations of their update, found by walking back from the outputs
   that replace them; laid out apart from the forward use, so that ZeRO and FSDP can emerge. The parameter that the
   forward pass reads is with them where the update has no slots, else a group of its own (kind ``parameter``, with
   its casts and views): ZeRO-1 splits the slots and keeps it whole. So is a parameter that no output replaces;
2. contraction: a contraction, its input gradient and its weight gradient, which share operands pairwise;
3. sum: the sum of several contractions' results (the gradient of the operand of queries, keys and values) is a group of
   its own, with a sharding that may be partial: add first, reduce once;
4. follow: everything else joins the element-wise group of its operands: the latest one in the forward pass, the
   earliest in the backward pass, which makes forward and backward of a residual block one group;
5. source: a batch input (and values computed from it alone) seeds a group of its own, which ends where a dimension
   is whole (tokens but the first) or a larger value is computed (a mask of all pairs). No value that depends on a
   parameter follows it: a mask that all layers read would tie them;
6. user: equations that the step itself shards (sharding constraints, `jax.shard_map`) are groups of their own.

Equations on free values and on scalars are in no group: they exist in every sharding at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxplan.ir._coarsening import Coarsening
from jaxplan.ir._contraction_groups import ContractionGroups
from jaxplan.ir._follow_groups import FollowGroups
from jaxplan.ir._grouping import Grouping, grouping_of
from jaxplan.ir._program import Program
from jaxplan.ir._rule import OperatorRule
from jaxplan.ir._state_groups import StateGroups
from jaxplan.ir._sum_groups import SumGroups
from jaxplan.ir._values import Values


def coarsen(
    program: Program,
    rules: Sequence[OperatorRule],
    values: Values,
    frozen: frozenset[int] = frozenset(),
    *,
    gradients_apart: bool = False,
) -> tuple[Grouping, dict[int, int]]:
    """Assign every equation to a group, deterministic in program order.

    ``frozen``: parameters that no output replaces. With ``gradients_apart`` gradients of a contraction are groups
    of their own, to measure the cost of sharing.

    Returns:
      The grouping, and for each tensor found to be a cotangent its primal.
    """
    work = Coarsening(program, rules, values, frozen)
    _user_groups(work)
    SumGroups(work).run()
    StateGroups(work).run()
    _input_groups(work)
    parts = work.program, work.rules, work.values, work.union, work.kind, work.mirror
    ContractionGroups(*parts, apart=gradients_apart).run()
    FollowGroups(work).run()
    return grouping_of(program, work.kind, work.union), work.mirror


def _user_groups(work: Coarsening) -> None:
    """Each equation that the step itself shards is a group: its neighbours need not agree, resharding is priced."""
    for eqn in work.program.equations:
        if work.rules[eqn.index].family == "user":
            work.kind[eqn.index] = "user"


def _input_groups(work: Coarsening) -> None:
    for t, node in work.input_node.items():
        if work.program.tensors[t].shape and node not in work.kind:
            work.kind[node] = "input"
            work.given.add(t)
