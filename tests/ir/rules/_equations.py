"""Equations of small programs, for the tests of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxplan._compat import open_jaxpr
from jaxplan.ir.rules import OperatorRule, operator_rule

# Primitives that hold a program and are no operators themselves.
CALLS = frozenset(
    {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "custom_lin", "eval_jaxpr"}
    | {"checkpoint", "remat2", "scan", "while", "cond"}
)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, those of inner programs included, without the calls themselves."""
    for eqn in open_jaxpr(jaxpr)[0].eqns:
        if eqn.primitive.name not in CALLS:
            yield eqn
            continue
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from equations(inner)


def rule_of(eqn: Any) -> OperatorRule:
    """The registered rule of an equation."""
    ins, outs = [var.aval for var in eqn.invars], [var.aval for var in eqn.outvars]
    return operator_rule(eqn.primitive.name, ins, outs, eqn.params)


def single_equation(fn: Callable[..., Any], primitive_name: str, *args: Any) -> Any:
    """The only equation of that primitive in a function."""
    found = [eqn for eqn in equations(jax.make_jaxpr(fn)(*args)) if eqn.primitive.name == primitive_name]
    assert len(found) == 1, f"{len(found)} equations of {primitive_name} in {jax.make_jaxpr(fn)(*args)}"
    return found[0]
