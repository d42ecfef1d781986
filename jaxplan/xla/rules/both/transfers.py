"""The tensors that travel when others are resharded, and steps that transfers share."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from jaxplan.ir import UNGROUPED, StepGraph
from jaxplan.xla._facts import Facts
from jaxplan.xla._plan_effects import ShareSteps, TravelAs
from jaxplan.xla._rule import ALL, JAXPLAN_LOWERING, XLA, CompilerRule, always


def lossless_source(graph: StepGraph, t: int) -> int | None:
    """The narrower tensor that one was cast from; None: it is no cast, or a lossy one, or a sum on the way.

    The compiler was seen to exchange activations in their narrower dtype, cast back where they arrive, for all-to-alls;
    the lowering does it for every step.
    """
    index, group = graph.values.producer[t], graph.grouping.tensor_group[t]
    if index < 0 or group == UNGROUPED or t in graph.spaces[group].tensor_partial:
        return None
    eqn, tensors = graph.program.equations[index], graph.program.tensors
    if eqn.name != "convert_element_type" or not _is_lossless(tensors[eqn.operands[0]].dtype, tensors[t].dtype):
        return None
    return eqn.operands[0]


@functools.lru_cache(maxsize=2**10)
def _is_lossless(narrow: Any, wide: Any) -> bool:
    """Whether every number of a floating-point type is one of the wider other's."""
    if narrow.itemsize >= wide.itemsize or not all(jnp.issubdtype(t, jnp.floating) for t in (narrow, wide)):
        return False
    fewer, more = jnp.finfo(narrow), jnp.finfo(wide)
    return fewer.nmant <= more.nmant and fewer.minexp >= more.minexp and fewer.maxexp <= more.maxexp


def _casts(facts: Facts) -> Iterator[TravelAs]:
    for eqn in facts.equations:
        for t in eqn.results:
            source = lossless_source(facts.graph, t)
            if source is not None:
                yield TravelAs(t, source)


NARROW_TRANSFERS = CompilerRule(
    name="casts-travel-narrow",
    backends=ALL,
    stage="layouts",
    does="A value that was cast to a wider dtype is resharded as it was before the cast, as the lowering spells it.",
    source=JAXPLAN_LOWERING,
    made_after=("moe",),
    test="tests/xla/test_compiled_steps.py::test_compiled_gathers_of_casts_are_narrow",
    find=_casts,
)
SHARED_STEPS = CompilerRule(
    name="equal-first-steps-are-one-collective",
    backends=ALL,
    stage="liveness",
    does="Reshardings of one value that begin alike share these steps; the shared copy lives until the last goes on.",
    source=f"{XLA}service/hlo_cse.cc",
    made_after=("gpt",),
    test="tests/partition/test_plan_compiles.py::test_the_compiled_program_is_the_planned_one",
    find=always(ShareSteps()),
)
