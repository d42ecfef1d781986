"""Compile a plan without its devices, and audit it: the compiler is the referee."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import jax
from jax import export
from jax.sharding import NamedSharding

from jaxplan.audit._aot import CompiledReport, compile_exported, require_plugin
from jaxplan.audit._audit import Audit, PredictedProgram, compare
from jaxplan.core import _compat
from jaxplan.errors import UnsupportedError
from jaxplan.partition._combiner import combiner_options
from jaxplan.partition._planned import abstract_mesh, jit_flat

if TYPE_CHECKING:
    from jaxplan.ir import Equation
    from jaxplan.mesh import Topology
    from jaxplan.partition._plan_like import PlanLike

CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback", "pure_callback"})
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


def export_plan(plan: PlanLike) -> bytes:
    """The planned program as serialised StableHLO for the topology's platform; needs no devices."""
    platform = require_compiler(plan.topology)
    program = plan.require_program().program
    mesh = abstract_mesh(plan.topology)
    leaves = [
        jax.ShapeDtypeStruct(
            program.tensors[t].shape,
            program.tensors[t].dtype,
            sharding=NamedSharding(mesh, layout.partition_spec(plan.topology.axes)),
        )
        for t, layout in zip(program.inputs, plan.in_layouts, strict=True)
    ]
    # Arguments that nobody reads lie in memory all the same, and an exported program forgets how.
    step = jit_flat(plan, mesh, program.donated, keep_unused=True)
    try:
        # An exported program's layout constraints are read back by the same version of JAX.
        allowed = [export.DisabledSafetyCheck.custom_call("LayoutConstraint")]
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
    plan: PlanLike, *, cache_dir: str | Path | None = None, cancelled: threading.Event | None = None
) -> CompiledReport:
    """Compile a plan for its topology in a child process, which ends when `cancelled` is set."""
    program = plan.require_program().program
    return compile_exported(
        export_plan(plan),
        plan.topology,
        donate_argnums=[i for i, donated in enumerate(program.donated) if donated],
        mesh_axes=None if plan.topology.axes else [("device", 1)],
        cache_dir=cache_dir,
        cancelled=cancelled,
        compiler_options=combiner_options(plan, plan.topology.chip.aot_platform),
    )


def audit_plan(
    plan: PlanLike, *, cache_dir: str | Path | None = None, report: CompiledReport | None = None
) -> Audit:
    """Predicted against compiled; compiles the plan unless its report is given."""
    prediction = plan.prediction
    predicted = PredictedProgram(
        memory_bytes=prediction.memory_bytes,
        flops=int(prediction.flops),
        collectives=tuple((c.kind, c.axes, c.num_bytes, c.count) for c in prediction.collectives),
        topology=plan.topology,
        memory_parts=prediction.memory_parts,
    )
    return compare(predicted, report or compile_plan(plan, cache_dir=cache_dir))
