"""Arguments that live in the memory of the host: their shardings, and the copies inside the step.

A sharding's ``memory_kind`` alone is dropped without a word by compile-only GPU devices. Counted, with donation kept,
is an argument with that kind that is put on the device inside the step (`jaxplan.partition._hosted_updates`); its
successor is put on the host there and has that kind too. See
https://docs.jax.dev/en/latest/notebooks/host-offloading.html .
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxplan.core._units import format_bytes
from jaxplan.errors import AuditError, PlanMismatchError
from jaxplan.ir import Offload, Program
from jaxplan.mesh import Sharding
from jaxplan.partition._meshes import specs_over
from jaxplan.partition._plan_like import PlanLike
from jaxplan.xla import is_host

HOST_KIND = "pinned_host"
_TOLERANCE = 0.01
"""Share by which compiled and predicted bytes on the host may differ: padding."""

_DIFFERENT_MSG = (
    "the compiled program keeps {compiled} per device on the host, and the plan {planned}.\n"
    "  expected: the same\n"
    "  likely cause: this compiler drops the memory that arrays are put in, or cannot alias them there\n"
    "  fix: plan with offload=False, or use a JAX in which the devices support {kind!r}"
)
_NOT_DONATED_MSG = (
    "the plan keeps arguments on the host that donate_argnums leaves out: {names}.\n"
    "  expected: every argument on the host is donated, or the host holds it twice\n"
    "  likely cause: donate_argnums was given to plan.jit, and not to jaxplan.plan\n"
    "  fix: leave donate_argnums out, or plan with offload=False"
)


def in_shardings(plan: PlanLike, mesh: Any, *, on_host: bool = True) -> list[NamedSharding]:
    """Of each argument; ``on_host=False``: as if all lived on the devices."""
    hosted = plan.offload.arguments if plan.offload and on_host else ()
    return _shardings(plan, plan.in_paths, plan.input_shardings, mesh, hosted)


def out_shardings(plan: PlanLike, mesh: Any, *, on_host: bool = True) -> list[NamedSharding]:
    """Of each result."""
    hosted = plan.offload.outputs if plan.offload and on_host else ()
    return _shardings(plan, plan.out_paths, plan.output_shardings, mesh, hosted)


def _shardings(
    plan: PlanLike, paths: Sequence[str], layouts: Sequence[Sharding], mesh: Any, hosted: Collection[int]
) -> list[NamedSharding]:
    return [
        NamedSharding(mesh, spec, memory_kind=HOST_KIND) if i in hosted else NamedSharding(mesh, spec)
        for i, spec in enumerate(specs_over(mesh, plan.topology, paths, layouts))
    ]


def for_host(results: Sequence[Any], places: Sequence[int], offload: Offload | None) -> tuple[Any, ...]:
    """The results of a step, those that live on the host put there; ``places``: positions among all of its results."""
    hosted = offload.outputs if offload else ()
    pairs = zip(results, places, strict=True)
    return tuple(jax.device_put(x, jax.memory.Space.Host) if o in hosted else x for x, o in pairs)


def check_donated(offload: Offload | None, program: Program, donate: Sequence[bool]) -> None:
    """Raise PlanMismatchError where an argument on the host is not donated."""
    astray = [i for i in (offload.inputs if offload else ()) if not donate[i]]
    if astray:
        names = ", ".join(program.in_paths[i] for i in astray[:3]) + (" ..." if len(astray) > 3 else "")
        raise PlanMismatchError(_NOT_DONATED_MSG.format(names=names))


def check_host_bytes(planned: int, compiled: Any, platform: str) -> None:
    """Raise AuditError where a compiled program keeps other bytes on the host than its plan; CPUs do not say."""
    if not planned or is_host(platform):
        return
    found = host_bytes(compiled.memory_analysis())
    if not agrees(planned, found):
        text = _DIFFERENT_MSG.format(compiled=format_bytes(found), planned=format_bytes(planned), kind=HOST_KIND)
        raise AuditError(text)


def host_bytes(stats: Any) -> int:
    """Bytes of one device on the host by a compiler's analysis: arguments + outputs - aliased + temporaries."""
    arguments, outputs = stats.host_argument_size_in_bytes, stats.host_output_size_in_bytes
    return arguments + outputs - stats.host_alias_size_in_bytes + stats.host_temp_size_in_bytes


def agrees(planned: int, compiled: int) -> bool:
    """Whether bytes on the host are those of the plan."""
    return abs(compiled - planned) <= _TOLERANCE * max(planned, compiled)
