"""Transfer dtypes: the width in which a tensor travels and its copies are held."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxplan.ir import CONTRACTION_FAMILIES, REGION_IN, REGION_OUT, UNGROUPED, StepGraph, Tensor
from jaxplan.xla._target import Target
from jaxplan.xla.rules.both.liveness import NARROW_TRANSFERS
from jaxplan.xla.rules.tpu.layouts import ROUNDED_FOR_LOOPS, ROUNDED_TABLES, ROUNDED_TRANSFERS

NARROW_BYTES = 2
_READ_EVERY_TRIP = ("const", "x")
_FULL_PRECISION = ("HIGH", "HIGHEST")


def carried_tensor(graph: StepGraph, t: int) -> int:
    """The tensor that travels when a tensor is resharded: itself, or the narrower one that it was cast from.

    Only where the cast loses nothing and nothing is summed on the way. The compiler was seen to exchange activations
    so, cast back where they arrive, for all-to-alls; the lowering does it for every step.
    """
    index, group = graph.values.producer[t], graph.grouping.tensor_group[t]
    if index < 0 or group == UNGROUPED or t in graph.spaces[group].tensor_partial:
        return t
    eqn = graph.program.equations[index]
    tensors = graph.program.tensors
    if eqn.name != "convert_element_type" or not _is_lossless(tensors[eqn.operands[0]].dtype, tensors[t].dtype):
        return t
    return eqn.operands[0]


@functools.lru_cache(maxsize=2**10)
def _is_lossless(narrow: Any, wide: Any) -> bool:
    """Whether every number of a floating-point type is one of the wider other's."""
    if narrow.itemsize >= wide.itemsize or not all(jnp.issubdtype(t, jnp.floating) for t in (narrow, wide)):
        return False
    fewer, more = jnp.finfo(narrow), jnp.finfo(wide)
    return fewer.nmant <= more.nmant and fewer.minexp >= more.minexp and fewer.maxexp <= more.maxexp


def wire_tensor(graph: StepGraph, target: Target, t: int, readers: Iterable[int]) -> Tensor:
    """A tensor as it travels to some of its readers (equations), see `carried_tensor`.

    Where float32 dots run in bfloat16, the compiler rounds operands that only dots read before they are
    gathered: compiled TPU programs move and hold half of the bytes. Sums are taken in float32.
    """
    tensor, carried = graph.program.tensors[t], graph.program.tensors[carried_tensor(graph, t)]
    if NARROW_TRANSFERS.applies_to(target) and carried.itemsize < tensor.itemsize:
        return dataclasses.replace(tensor, itemsize=carried.itemsize)
    group = graph.grouping.tensor_group[t]
    is_sum = group != UNGROUPED and t in graph.spaces[group].tensor_partial
    if not ROUNDED_TRANSFERS.applies_to(target) or tensor.dtype != np.float32 or is_sum:
        return tensor
    equations = [e for e in readers if e < len(graph.program.equations)]
    rounded = equations and all(_rounds(graph, e, t) for e in equations)
    return dataclasses.replace(tensor, itemsize=NARROW_BYTES) if rounded else tensor


def rounded_tables(graph: StepGraph, target: Target) -> dict[int, tuple[int, int]]:
    """Tables of parameters that are rounded as a whole because only dots read the rows looked up in them.

    Returns:
      Tensor -> its first and its last look-up.
    """
    found: dict[int, tuple[int, int]] = {}
    if not ROUNDED_TABLES.applies_to(target):
        return found
    for t in graph.state:
        readers = [e for e in graph.values.consumers[t] if graph.program.equations[e].phase == "forward"]
        is_table = any(graph.rules[e].family == "gather" and graph.rules[e].indexed for e in readers)
        if is_table and wire_tensor(graph, target, t, readers).itemsize < graph.program.tensors[t].itemsize:
            found[t] = min(readers), max(readers)
    return found


def rounded_for_loops(graph: StepGraph, target: Target) -> dict[int, int]:
    """Values computed and read by loops, if only dots read them: they are rounded once, before the first loop.

    With the bytes of an element.
    """
    if not ROUNDED_FOR_LOOPS.applies_to(target):
        return {}
    entries = [e for e in graph.program.equations if e.name == REGION_IN and e.params["role"] in _READ_EVERY_TRIP]
    tensors, consumers = graph.program.tensors, graph.values.consumers
    made = {e.operands[0] for e in entries if graph.values.producer[e.operands[0]] >= 0}
    return {
        t: NARROW_BYTES
        for t in made - set(graph.program.outputs)
        if tensors[t].dtype == np.float32 and all(_rounds(graph, c, t) for c in consumers[t])
    }


def _rounds(graph: StepGraph, e: int, t: int, seen: frozenset[int] = frozenset()) -> bool:
    """Whether an equation is a dot, at default precision, or only dots read the parts that it takes out of a tensor,
    that a loop takes of it, stacks, or hands to the next trip. ``seen``: exits of loops on the way."""
    eqn, family = graph.program.equations[e], graph.rules[e].family
    if family in CONTRACTION_FAMILIES:
        return not any(name in str(eqn.params.get("precision")) for name in _FULL_PRECISION)
    is_entry = eqn.name == REGION_IN and eqn.params["role"] in _READ_EVERY_TRIP
    is_stacked = eqn.name == REGION_OUT and eqn.params["role"] == "y"
    is_carried = eqn.name == REGION_OUT and eqn.params["role"] == "carry"
    passed_on: tuple[int, ...] = ()
    if is_entry or is_stacked or family == "shape" or (family == "gather" and eqn.operands[0] == t):
        passed_on = eqn.results
    elif is_carried and e not in seen:
        passed_on, seen = (eqn.operands[0], *eqn.results), seen | {e}
    if set(passed_on) & set(graph.program.outputs):
        return False
    readers = [(c, r) for r in passed_on for c in graph.values.consumers[r] if c not in seen]
    return bool(readers) and all(_rounds(graph, c, r, seen) for c, r in readers)
