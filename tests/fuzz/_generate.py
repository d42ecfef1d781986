"""Random programs, by number or as a hypothesis strategy."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import _calls, _elementwise, _indexing, _reductions, _shapes, _sharded
from tests.fuzz._operators import OPERATORS, Operator
from tests.fuzz._program import Kind, Program, Value
from tests.fuzz._scope import Inapplicable, Scope, Shared

_MODULES = (_calls, _elementwise, _indexing, _reductions, _shapes, _sharded)  # they fill the table
MAX_STATEMENTS = 30
MAX_RESULTS = 12
_SIZES = (2, 4, 6, 8, 12, 16)
_KINDS: tuple[Kind, ...] = ("plain", "plain", "gradient", "update")
_DTYPES = (
    ("float64",),
    ("float64",),
    ("float64",),
    ("float64", "float32"),
    ("float64", "float32", "bfloat16"),
)
_ATTEMPTS = 4


def generate(integer: Callable[[int, int], int], max_statements: int = MAX_STATEMENTS) -> Program:
    """A program of up to about ``max_statements`` statements; ``integer(low, high)`` draws all there is to draw."""
    kind = _KINDS[integer(0, len(_KINDS) - 1)]
    shared = Shared(
        integer=integer,
        sizes=tuple(_SIZES[integer(0, len(_SIZES) - 1)] for _ in range(3)),
        dtypes=_DTYPES[integer(0, len(_DTYPES) - 1)],
        differentiable=kind != "plain",
    )
    scope = Scope(shared)
    for _ in range(2):
        scope.argument(scope.shape(2, 3), scope.one_of(shared.dtypes))
    scope.argument(scope.shape(1, 2), "int32")
    fill(scope, integer(3, max_statements))
    program = Program(
        arguments=tuple(shared.arguments),
        statements=tuple(scope.statements),
        results=_results(scope, kind),
        kind=kind,
        num_parameters=integer(1, 3),
        seed=integer(0, 999),
    ).trimmed()
    if kind == "plain" or program.floats:
        return program
    first = next(a for a in shared.arguments if a.is_float)  # no float is read: read one
    return dataclasses.replace(
        program, arguments=(*program.arguments, first), results=(*program.results, first)
    )


@st.composite
def programs(draw: Any, max_statements: int = MAX_STATEMENTS) -> Program:
    """A hypothesis strategy of programs."""
    return generate(lambda low, high: draw(st.integers(low, high)), max_statements)


def program_of(seed: int, index: int, max_statements: int = MAX_STATEMENTS) -> Program:
    """Program number ``index`` of a seed, the same in every process."""
    return generate(random.Random(f"{seed} {index}").randint, max_statements)


def fill(scope: Scope, num_statements: int) -> None:
    """Add operators until there are so many statements; at least one."""
    table = [op for op in OPERATORS if op.differentiable or not scope.shared.differentiable]
    weights = [op for op in table for _ in range(op.weight)]
    while len(scope.statements) < num_statements:
        for _ in range(_ATTEMPTS):
            if _apply(scope, scope.one_of(weights)):
                break
        else:
            value = scope.argument(scope.shape(), scope.one_of(scope.shared.dtypes))
            scope.emit(f"jnp.sin({value.name})", bound=1.0)


def _apply(scope: Scope, op: Operator) -> bool:
    try:
        op.fn(scope)
    except Inapplicable:
        return False
    return True


def _results(scope: Scope, kind: Kind) -> tuple[Value, ...]:
    """Values that nothing reads, latest first, and a few more; floats among them where a loss is made of them."""
    made = [v for s in scope.statements for v in s.results]
    read = {name for s in scope.statements for name in s.reads()}
    unread = [v for v in reversed(made) if v.name not in read]
    chosen = unread[:MAX_RESULTS]
    if kind != "plain" and not any(v.is_float for v in chosen):
        chosen.extend([v for v in reversed(made) if v.is_float][:1])
    return tuple(chosen)


_calls.set_fill(fill)
