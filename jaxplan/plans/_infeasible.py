"""The error where no plan fits: the least memory that some plan needs, and the parts that it is made of."""

from __future__ import annotations

from collections.abc import Iterable

from jaxplan.core._units import format_bytes
from jaxplan.errors import InfeasibleError
from jaxplan.plans._undominated import Described

_INFEASIBLE_MSG = (
    "no plan fits {limit} per device ({limit_bytes} bytes).\n"
    "  expected:     a limit that some plan meets\n"
    "  but:          the leanest of {num_plans} plans needs {smallest} ({smallest_bytes} bytes): {parts}\n"
    "  likely cause: {cause}\n"
    "  fix:          a limit of at least that, more devices, {fix}"
)
_CAUSES = {
    "activations": (
        "what the forward pass saves for the backward pass",
        "a smaller batch, or rematerialisation (remat=True, or jax.checkpoint in the model)",
    ),
    "gradients and temporaries": (
        "gradients, results and temporaries that are there at one moment",
        "a smaller batch, or donation of the state that the step returns (donate_argnums)",
    ),
    "parameters": ("the parameters, although they are split", "or parameters of a narrower dtype"),
    "optimizer state": ("the optimizer's state, although it is split", "or an optimizer that keeps less"),
    "batch and other arguments": ("the batch, and arguments that are only read", "or a smaller batch"),
}
_SMALL_LIMIT = 1 << 20  # bytes; a limit below is likely a number of some other unit
_OTHER_CAUSE = ("copies and scratch space of the plan itself", "or a smaller batch")


def infeasible_error(plans: Iterable[Described], limit_bytes: int) -> InfeasibleError:
    """Return the error for plans none of which fits, made from the leanest of them."""
    plans = tuple(plans)
    leanest = min(plans, key=lambda plan: plan.memory_bytes)
    largest_first = sorted(leanest.memory_parts.items(), key=lambda part: (-part[1], part[0]))
    parts = ", ".join(f"{name} {format_bytes(num_bytes)}" for name, num_bytes in largest_first if num_bytes)
    cause, fix = _CAUSES.get(largest_first[0][0] if largest_first else "", _OTHER_CAUSE)
    if limit_bytes < _SMALL_LIMIT:
        fix += f"; or, if another unit was meant, memory='{limit_bytes}MiB'"
    message = _INFEASIBLE_MSG.format(
        cause=f"the largest part is {cause}",
        fix=fix,
        limit=format_bytes(limit_bytes),
        limit_bytes=limit_bytes,
        num_plans=len(plans),
        smallest=format_bytes(leanest.memory_bytes),
        smallest_bytes=leanest.memory_bytes,
        parts=parts or "not broken down",
    )
    return InfeasibleError(
        message, smallest_memory_bytes=leanest.memory_bytes, memory_parts=dict(leanest.memory_parts)
    )
