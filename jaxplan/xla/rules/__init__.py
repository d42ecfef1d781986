"""Every rule on the compiler by its name; `docs/compiler_rules.md` is the table of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from jaxplan.errors import ArgumentError
from jaxplan.xla._rule import STAGES, CompilerRule, Stage
from jaxplan.xla._target import Target
from jaxplan.xla.rules.both import boundaries as _both_boundaries
from jaxplan.xla.rules.both import deferred as _both_deferred
from jaxplan.xla.rules.both import gated as _both_gated
from jaxplan.xla.rules.both import kernels as _both_kernels
from jaxplan.xla.rules.both import liveness as _both_liveness
from jaxplan.xla.rules.both import residual_sums as _both_residual_sums
from jaxplan.xla.rules.both import residuals as _both_residuals
from jaxplan.xla.rules.both import schedule as _both_schedule
from jaxplan.xla.rules.both import transfers as _both_transfers
from jaxplan.xla.rules.gpu import borders as _gpu_borders
from jaxplan.xla.rules.gpu import folded as _gpu_folded
from jaxplan.xla.rules.gpu import functions as _gpu_functions
from jaxplan.xla.rules.gpu import in_place_fusions as _gpu_in_place_fusions
from jaxplan.xla.rules.gpu import kernels as _gpu_kernels
from jaxplan.xla.rules.gpu import layouts as _gpu_layouts
from jaxplan.xla.rules.gpu import library_sums as _gpu_library_sums
from jaxplan.xla.rules.gpu import loop_stacks as _gpu_loop_stacks
from jaxplan.xla.rules.gpu import losses as _gpu_losses
from jaxplan.xla.rules.gpu import padding as _gpu_padding
from jaxplan.xla.rules.gpu import pooling as _gpu_pooling
from jaxplan.xla.rules.gpu import ragged as _gpu_ragged
from jaxplan.xla.rules.gpu import schedule as _gpu_schedule
from jaxplan.xla.rules.gpu import summands as _gpu_summands
from jaxplan.xla.rules.gpu import transposed as _gpu_transposed
from jaxplan.xla.rules.tpu import channel_groups as _tpu_channel_groups
from jaxplan.xla.rules.tpu import dot_operands as _tpu_dot_operands
from jaxplan.xla.rules.tpu import dot_results as _tpu_dot_results
from jaxplan.xla.rules.tpu import functions as _tpu_functions
from jaxplan.xla.rules.tpu import inner_dims as _tpu_inner_dims
from jaxplan.xla.rules.tpu import kernels as _tpu_kernels
from jaxplan.xla.rules.tpu import layouts as _tpu_layouts
from jaxplan.xla.rules.tpu import liveness as _tpu_liveness
from jaxplan.xla.rules.tpu import rearranged as _tpu_rearranged
from jaxplan.xla.rules.tpu import rounding as _tpu_rounding
from jaxplan.xla.rules.tpu import slices as _tpu_slices

_MODULES = (
    _both_boundaries,
    _both_kernels,
    _both_residual_sums,
    _both_gated,
    _both_residuals,
    _both_deferred,
    _both_schedule,
    _both_liveness,
    _both_transfers,
    _gpu_kernels,
    _gpu_borders,
    _gpu_library_sums,
    _gpu_summands,
    _gpu_folded,
    _gpu_functions,
    _gpu_transposed,
    _gpu_loop_stacks,
    _gpu_padding,
    _gpu_pooling,
    _gpu_ragged,
    _gpu_losses,
    _gpu_layouts,
    _gpu_schedule,
    _gpu_in_place_fusions,
    _tpu_inner_dims,
    _tpu_rounding,
    _tpu_kernels,
    _tpu_dot_results,
    _tpu_dot_operands,
    _tpu_rearranged,
    _tpu_slices,
    _tpu_functions,
    _tpu_layouts,
    _tpu_channel_groups,
    _tpu_liveness,
)
_FOUND = [value for module in _MODULES for value in vars(module).values() if isinstance(value, CompilerRule)]
_BY_STAGE = {
    stage: tuple(sorted((r for r in dict.fromkeys(_FOUND) if r.stage == stage), key=lambda rule: rule.priority))
    for stage in STAGES
}

RULES: Mapping[str, CompilerRule] = MappingProxyType({rule.name: rule for rule in _FOUND})
"""Name -> rule, backends apart, in the order in which a table shows them."""


def rules_of(target: Target, stage: Stage) -> Iterator[CompilerRule]:
    """The rules of a pass that hold for a target, by priority."""
    return (rule for rule in _BY_STAGE[stage] if rule.applies_to(target))


def check_names(names: Collection[str]) -> frozenset[str]:
    """The names of rules that are to be left out.

    Raises:
      ArgumentError: no rule has such a name.

    >>> sorted(check_names(["masks-are-compared-again"]))
    ['masks-are-compared-again']
    """
    for name in names:
        if name not in RULES:
            raise ArgumentError(f"no compiler rule is named {name!r}; docs/compiler_rules.md lists them")
    return frozenset(names)
