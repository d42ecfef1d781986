"""Operands of dots, look-ups and poolings that wait for another value: barriers and order constraints, evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from jaxplan.ir import Equation
from jaxplan.mesh import Sharding
from jaxplan.partition._evaluation import Evaluation
from jaxplan.partition._lowering import GatherGuard, MergeGuard, Order, Unpooling
from jaxplan.partition._unpooling import POOLED_OPERAND


def ordered(run: Evaluation, order: Order, operands: Sequence[Any], shardings: Sequence[Sharding]) -> list[Any]:
    """Operands of a dot that runs after another, which is evaluated first: one depends on its result."""
    (result,) = run.lowered.program.equations[order.after].results
    run.evaluate_early(order.after)
    operands, position = list(operands), order.operand
    operands[position] = run.values.executor.behind(
        operands[position], shardings[position], run.values.env[result], run.lowered.home(result)
    )
    return operands


def not_gathered_before(run: Evaluation, guard: GatherGuard, values: Sequence[Any]) -> list[Any]:
    """Operands, or results, of an equation that exist before the guarded parameters are gathered.

    The barrier materialises them, so values that a dot computes inside of it do not pass.
    """
    env = run.values.env
    values, waiting = lax.optimization_barrier((list(values), [env[t] for t in guard.parameters]))
    env.update(zip(guard.parameters, waiting, strict=True))
    return list(values)


def not_merged(guard: MergeGuard, passed: dict[tuple[int, int], Any], operands: Sequence[Any]) -> list[Any]:
    """Operands of a dot that reads each shared one through one barrier more than the dot before; ``passed`` has those
    that were read last."""
    operands = list(operands)
    for shared in guard.shared:
        position = shared[1]
        if shared in passed:
            operands[position] = lax.optimization_barrier(passed[shared])
        passed[shared] = operands[position]
    return operands


def unpooled(run: Evaluation, eqn: Equation, how: Unpooling, operands: Sequence[Any]) -> list[Any]:
    """Operands of the gradient of a pooling; the pooled array is recomputed once the cotangent exists."""
    inner = run.child()
    places = [run.values.place_of(run.lowered.program.equations[e], t) for e, t in how.arrays]
    held, cotangent = lax.optimization_barrier(([values[key] for values, key in places], operands[0]))
    for (values, key), value in zip(places, held, strict=True):
        (inner.values.env if values is run.values.env else inner.values.copies)[key] = value
    inner.evaluate_again(how.recomputed)
    return [cotangent, inner.values.read_operand(eqn, POOLED_OPERAND)]
