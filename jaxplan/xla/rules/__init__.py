"""Every rule on the compiler by its name; `docs/compiler_rules.md` is the table of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from jaxplan.errors import ArgumentError
from jaxplan.xla._rule import CompilerRule
from jaxplan.xla.rules.both import fusion as _fusion
from jaxplan.xla.rules.both import liveness as _liveness
from jaxplan.xla.rules.both import residuals as _residuals
from jaxplan.xla.rules.both import schedule as _schedule
from jaxplan.xla.rules.gpu import accumulation as _gpu_accumulation
from jaxplan.xla.rules.gpu import functions as _gpu_functions
from jaxplan.xla.rules.gpu import fusion as _gpu_fusion
from jaxplan.xla.rules.gpu import layouts as _gpu_layouts
from jaxplan.xla.rules.gpu import schedule as _gpu_schedule
from jaxplan.xla.rules.tpu import fusion as _tpu_fusion
from jaxplan.xla.rules.tpu import layouts as _tpu_layouts
from jaxplan.xla.rules.tpu import liveness as _tpu_liveness

_MODULES = (
    *(_fusion, _residuals, _schedule, _liveness),
    *(_gpu_fusion, _gpu_accumulation, _gpu_functions, _gpu_layouts, _gpu_schedule),
    *(_tpu_fusion, _tpu_layouts, _tpu_liveness),
)
_FOUND = [value for module in _MODULES for value in vars(module).values() if isinstance(value, CompilerRule)]

RULES: Mapping[str, CompilerRule] = MappingProxyType({rule.name: rule for rule in _FOUND})
"""Name -> rule, backends apart, in the order in which a table shows them."""


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
