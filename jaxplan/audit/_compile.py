"""Compile a plan without its devices, and audit it: the compiler is the referee."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
from jax import export

from jaxplan.audit._aot import CompiledReport, compile_exported, require_plugin
from jaxplan.audit._audit import Audit, PredictedProgram, compare
from jaxplan.core import _compat
from jaxplan.errors import UnsupportedError
from jaxplan.frontend._backend import Backend
from jaxplan.partition._compiler_options import compiler_options
from jaxplan.partition._handed_back import computed, handed_back
from jaxplan.partition._host_memory import in_shardings
from jaxplan.partition._meshes import abstract_mesh
from jaxplan.partition._planned import jit_flat

if TYPE_CHECKING:
    from jaxplan.ir import Equation
    from jaxplan.mesh import Topology
    from jaxplan.partition._plan_like import PlanLike

CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback", "pure_callback"})
_READ_BACK = ("LayoutConstraint", "annotate_device_placement", "ragged_all_to_all")
"""Custom calls of an exported program: layout constraints, copies to the host and back, and rows sent to experts."""
_CALLS_BACK_MSG = (
    "a step that calls back into Python cannot be compiled without its devices.\n"
    "  given:        {name} at {where}\n"
    "  expected:     a step without jax.debug.print, callbacks and checks that raise from inside\n"
    "  likely cause: a print for debugging, or a library that raises errors at run time\n"
    "  fix:          leave it out for the audit; the plan itself runs with it"
)


def require_compiler(topology: Topology) -> str:
    """The platform that plans of the topology are compiled for without its devices.

    Raises:
      UnsupportedError: the compiler has no target for the chip.
      MissingExtraError: the compiler is not installed; names the extra that brings it.
    """
    platform = topology.chip.aot_platform
    if platform is None:
        raise UnsupportedError(
            f"{topology.name} can be planned but neither audited nor verified: the compiler has no target for "
            f"{topology.chip.name!r}; expected a chip with one, such as h100 or a100"
        )
    require_plugin(platform)
    return platform


def export_plan(plan: PlanLike, backend: Backend = "jit") -> bytes:
    """The planned program as serialised StableHLO for the topology's platform; needs no devices."""
    platform = require_compiler(plan.topology)
    program = plan.require_program().program
    mesh = abstract_mesh(plan.topology)
    leaves = [
        jax.ShapeDtypeStruct(
            program.tensors[t].shape,
            program.tensors[t].dtype,
            sharding=sharding,
        )
        for t, sharding in zip(program.inputs, in_shardings(plan, mesh), strict=True)
    ]
    # Arguments that nobody reads lie in memory all the same, and an exported program forgets how.
    step = jit_flat(plan, mesh, program.donated, keep_unused=True, backend=backend)
    try:
        # ... which the same version of JAX reads back.
        allowed = [export.DisabledSafetyCheck.custom_call(name) for name in _READ_BACK]
        return bytes(export.export(step, platforms=[platform], disabled_checks=allowed)(*leaves).serialize())
    except (ValueError, NotImplementedError) as error:
        callers = [eqn for eqn in program.equations if _calls_back(eqn)]
        if not callers:
            raise
        first = callers[0]
        where = _compat.eqn_source_line(first.origin) or "an unknown line"
        raise UnsupportedError(_CALLS_BACK_MSG.format(name=first.name, where=where)) from error


def _calls_back(eqn: Equation) -> bool:
    """Whether an equation, or a loop or branch that is kept whole, calls Python while it runs."""
    return eqn.name in CALLBACKS or _compat.has_effects(eqn.origin)


def compile_plan(
    plan: PlanLike,
    *,
    cache_dir: str | Path | None = None,
    cancelled: threading.Event | None = None,
    backend: Backend = "jit",
) -> CompiledReport:
    """Compile a plan for its topology in a child process, which ends when `cancelled` is set."""
    program = plan.require_program().program
    return compile_exported(
        export_plan(plan, backend),
        plan.topology,
        donate_argnums=[i for i, donated in enumerate(program.donated) if donated],
        mesh_axes=None if plan.topology.axes else [("device", 1)],
        cache_dir=cache_dir,
        cancelled=cancelled,
        host_argnums=plan.offload.arguments if plan.offload else (),
        host_results=_returned(plan, program.donated) if plan.offload else (),
        compiler_options=compiler_options(plan, plan.topology.chip.aot_platform),
    )


def _returned(plan: PlanLike, donate: Sequence[bool]) -> list[int]:
    """Positions of the results on the host among those that the compiled program returns."""
    hosted = plan.offload.outputs if plan.offload else ()
    left = computed(range(len(plan.output_shardings)), handed_back(plan, donate))
    return [place for place, o in enumerate(left) if o in hosted]


def audit_plan(
    plan: PlanLike,
    *,
    cache_dir: str | Path | None = None,
    report: CompiledReport | None = None,
    backend: Backend = "jit",
) -> Audit:
    """Predicted against compiled; compiles the plan unless its report is given."""
    return compare(predicted_program(plan), report or compile_plan(plan, cache_dir=cache_dir, backend=backend))


def predicted_program(plan: PlanLike) -> PredictedProgram:
    """The program that a plan predicts, as the audit compares it."""
    prediction = plan.prediction
    return PredictedProgram(
        memory_bytes=prediction.memory_bytes,
        flops=int(prediction.flops),
        collectives=tuple((c.kind, c.axes, c.num_bytes, c.count) for c in prediction.collectives),
        topology=plan.topology,
        memory_parts=prediction.memory_parts,
        host_bytes=prediction.host_bytes,
    )
