"""Collect the equations of a step while its calls are inlined: one registered rule per calling primitive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxplan.core import _compat
from jaxplan.ir._one_hot import one_hot_form
from jaxplan.ir._program import Equation, Phase, Region, Tensor

InlineRule = Callable[["Builder", Any, list[int], str], list[int]]
_INLINE_RULES: dict[str, InlineRule] = {}


def register_inline(*names: str) -> Callable[[InlineRule], InlineRule]:
    """Register how a call primitive is inlined; returns the rule unchanged."""

    def register(rule: InlineRule) -> InlineRule:
        _INLINE_RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


class Builder:
    """Collects tensors and equations while calls are inlined."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.equations: list[Equation] = []
        self.after_backward: set[int] = set()
        self.regions: list[Region] = []
        self.region, self.trips = -1, 1
        self.rows: dict[tuple[int, int], int] = {}  # (stack, trip) -> its slice, for scans that are written out

    def add(self, aval: Any, kind: Any, path: str = "", value: Any = None) -> int:
        dtype = aval.dtype
        self.tensors.append(
            Tensor(
                index=len(self.tensors),
                shape=tuple(aval.shape),
                dtype=dtype,
                itemsize=_compat.itemsize(dtype),
                kind=kind,
                path=path,
                value=value,
                trips=self.trips,
            )
        )
        return len(self.tensors) - 1

    def append(
        self, primitive: Any, params: Mapping, operands: Sequence[int], out_avals, stack: str, origin
    ) -> list[int]:
        results = [self.add(aval, "computed") for aval in out_avals]
        self.equations.append(
            Equation(
                index=len(self.equations),
                primitive=primitive,
                params=params,
                operands=tuple(operands),
                results=tuple(results),
                name_stack=stack,
                phase=self._phase(operands, stack),
                origin=origin,
                region=self.region,
            )
        )
        if self.equations[-1].phase != "forward":
            self.after_backward.update(results)
        return results

    def _phase(self, operands: Sequence[int], stack: str) -> Phase:
        if "transpose(" in stack:
            return "backward"
        return "update" if any(t in self.after_backward for t in operands) else "forward"

    def inline(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[int], prefix: str) -> list[int]:
        """Replay a jaxpr into this builder; returns the tensor indices of its results."""
        env: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self.add(var.aval, "constant", value=value)

        def read(atom: Any) -> int:
            if isinstance(atom, _compat.Literal):
                return self.add(atom.aval, "literal", value=atom.val)
            return env[atom]

        for eqn in jaxpr.eqns:
            operands = [read(atom) for atom in eqn.invars]
            stack = "/".join(filter(None, (prefix, _compat.eqn_name_stack(eqn))))
            rule = _INLINE_RULES.get(eqn.primitive.name, keep)
            env.update(zip(eqn.outvars, rule(self, eqn, operands, stack), strict=True))
        return [read(atom) for atom in jaxpr.outvars]


def keep(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    return builder.append(eqn.primitive, eqn.params, operands, [v.aval for v in eqn.outvars], stack, eqn)


# Where calls keep the program that they call.
_CALLEE_PARAMS = ("jaxpr", "call_jaxpr", "call", "callee")


@register_inline("jit", "pjit", "call", "closed_call", "core_call", "eval_jaxpr")
@register_inline("composite", "custom_vmap_call", "linear_call", "xla_metadata_call")
def _inline_call(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    callee = next(eqn.params[name] for name in _CALLEE_PARAMS if name in eqn.params)
    jaxpr, consts = _compat.open_jaxpr(callee)
    return builder.inline(jaxpr, consts, operands, stack)


@register_inline("custom_linear_solve")
def _inline_linear_solve(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    """Differentiation is done by now, so that of the functions that the solve brings only ``solve`` is left to run.

    Operands: constants of ``matvec, vecmat, solve, transpose_solve``, then right-hand sides.
    """
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    start = lengths.matvec + lengths.vecmat
    consts = operands[start : start + lengths.solve]
    right_hand_sides = operands[sum(lengths) :]
    jaxpr, values = _compat.open_jaxpr(jaxprs.solve)
    return builder.inline(jaxpr, values, [*consts, *right_hand_sides], stack)


@register_inline("custom_jvp_call", "custom_jvp_call_jaxpr", "custom_vjp_call", "custom_vjp_call_jaxpr")
def _inline_custom(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    body = eqn.params.get("call_jaxpr", eqn.params.get("fun_jaxpr"))
    jaxpr, consts = _compat.open_jaxpr(body)
    return builder.inline(jaxpr, consts, operands, stack)


@register_inline("checkpoint", "remat", "remat2")
def _inline_remat(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    """A remat region is inlined behind a barrier on its inputs: without it the compiler's CSE undoes the remat."""
    jaxpr, consts = _compat.open_jaxpr(eqn.params["jaxpr"])
    if eqn.params.get("differentiated") and eqn.params.get("prevent_cse", True) is not False:
        operands = _inline_barrier(builder, eqn, operands, stack)
    return builder.inline(jaxpr, consts, operands, stack)


@register_inline("optimization_barrier")
def _inline_barrier(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    """One barrier per operand, so that each has a sharding of its own; equal origins are executed as one barrier."""
    primitive = jax.lax.optimization_barrier_p
    return [
        builder.append(primitive, {}, [t], [var.aval], stack, eqn)[0]
        for t, var in zip(operands, eqn.invars, strict=True)
    ]


@register_inline("gather", "scatter-add")
def _inline_look_up(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    """One look-up per row becomes a comparison, which fuses and splits; every other one stays as it is."""
    form = one_hot_form(eqn)
    if form is None:
        return keep(builder, eqn, operands, stack)
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    closed = jax.make_jaxpr(form)(*avals)
    return builder.inline(closed.jaxpr, closed.consts, operands, stack)


@register_inline("dynamic_slice")
def _inline_dynamic_slice(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    """A slice as large as the array is the array: starts are clamped to it."""
    whole = eqn.outvars[0].aval.shape == eqn.invars[0].aval.shape
    return operands[:1] if whole else keep(builder, eqn, operands, stack)
