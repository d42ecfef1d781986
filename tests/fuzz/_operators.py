"""The table of operators that programs are made of; the modules that fill it are imported by `_generate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz._scope import Scope

OperatorFn = Callable[[Scope], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A way to write one or a few statements; ``fn`` raises `Inapplicable` where nothing fits.

    Attributes:
      weight: how often it is drawn, relative to others.
      differentiable: whether it may stand in a program that is differentiated.
    """

    name: str
    fn: OperatorFn
    weight: int
    differentiable: bool


OPERATORS: list[Operator] = []


def operator(weight: int = 2, *, differentiable: bool = True) -> Callable[[OperatorFn], OperatorFn]:
    """Register an operator; returns it unchanged."""

    def register(fn: OperatorFn) -> OperatorFn:
        name = getattr(fn, "__name__", repr(fn))
        OPERATORS.append(Operator(name=name, fn=fn, weight=weight, differentiable=differentiable))
        return fn

    return register
