"""Equations of small programs, for the tests of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxplan.core._compat import Literal, open_jaxpr
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


def applied(fn: Callable[..., Any], primitive_name: str, *args: Any) -> tuple[Any, list[Any], list[Any]]:
    """The only equation of that primitive in a function, with its own operands and results for these arguments."""
    found: list[tuple[Any, list[Any], list[Any]]] = []

    def run(jaxpr: Any, consts: Any, values: Any) -> list[Any]:
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *values)))
        read = lambda atom: atom.val if isinstance(atom, Literal) else env[atom]  # noqa: E731
        for eqn in jaxpr.eqns:
            operands = list(map(read, eqn.invars))
            if eqn.primitive.name in ("jit", "pjit"):
                results = run(*open_jaxpr(eqn.params["jaxpr"]), operands)
            else:
                results = bind(eqn, eqn.params, operands)
            if eqn.primitive.name == primitive_name:
                found.append((eqn, operands, results))
            env.update(zip(eqn.outvars, results))
        return list(map(read, jaxpr.outvars))

    run(*open_jaxpr(jax.make_jaxpr(fn)(*args)), args)
    (only,) = found
    return only


def bind(eqn: Any, params: Any, operands: Any) -> list[Any]:
    """Results of an equation's primitive with other parameters."""
    results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(dict(params)))
    return list(results) if eqn.primitive.multiple_results else [results]
