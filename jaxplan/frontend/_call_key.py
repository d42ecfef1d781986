"""The key of a plan: calls with equal keys share one plan and one compiled program."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from jaxplan.core import _compat
from jaxplan.frontend._call import Aval, Call


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallKey:
    """The cache key of a decorated step.

    Not in it: values, shardings and devices of the arguments. The first state comes from one device or from a
    file, those that follow come as the plan left them, and one plan serves both.

    Attributes:
      tree: structure of the arguments that are no settings.
      avals: (shape, dtype, weak type) of each leaf.
      statics: (parameter, value) of each setting, by type too: 1, 1.0 and True are equal, and trace differently.
      topology: the topology that was asked for, or the devices present.
      context: settings that change the result of a trace, such as `jax_enable_x64`, as in `jax.jit`'s key.
    """

    tree: Any
    avals: tuple[Aval, ...]
    statics: tuple[tuple[Any, Any], ...]
    topology: Any
    context: Any

    @classmethod
    def of(cls, call: Call, topology: Any) -> CallKey:
        """The key of one call; ``topology``: a string, a `Topology`, or None for the devices present."""
        return cls(
            tree=call.tree,
            avals=call.avals,
            statics=call.statics,
            topology=tuple(jax.devices()) if topology is None else topology,
            context=_compat.trace_context(),
        )

    def may_share(self, other: CallKey) -> bool:
        """Whether calls of both could be one program on one machine: only structure and settings differ."""
        arrays = [aval[:2] for aval in self.avals]
        return (
            arrays == [aval[:2] for aval in other.avals]
            and self.topology == other.topology
            and self.context == other.context
        )
