"""A program, or the body of a function in it, under construction: what can be drawn, read and written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.fuzz._program import Function, Shape, Statement, Value, names_in

MAX_ELEMENTS = 4096
MAX_BOUND = 200.0
RECENT = 4
"""An operand is one of so many latest candidates mostly, so that programs become deep."""
_MESH = jax.sharding.AbstractMesh((2, 4), ("d", "m"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
_EVALUATION = {
    "jax": jax,
    "jnp": jnp,
    "lax": lax,
    "np": np,
    "functools": functools,
    "NamedSharding": jax.sharding.NamedSharding,
    "P": jax.sharding.PartitionSpec,
    "MESH": _MESH,
}


class Inapplicable(Exception):
    """An operator finds no operands that fit it."""


@dataclass(slots=True, kw_only=True)
class Shared:
    """What all scopes of one program share.

    Attributes:
      integer: draws a number between two, both included.
      sizes: of dimensions; few, so that values fit together.
      dtypes: of float arguments.
      differentiable: only operators that have a gradient, because the program takes one.
    """

    integer: Callable[[int, int], int]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...]
    differentiable: bool
    arguments: list[Value] = field(default_factory=list)
    count: int = 0
    shapes: dict[Any, Any] = field(default_factory=dict)


class Scope:
    """Values that can be read, and the statements so far.

    Attributes:
      depth: of functions around it.
    """

    def __init__(self, shared: Shared, around: Sequence[Value] = (), depth: int = 0) -> None:
        self.shared, self.depth = shared, depth
        self.values: list[Value] = list(around)
        self.statements: list[Statement] = []

    def integer(self, low: int, high: int) -> int:
        return self.shared.integer(low, high)

    def flag(self, one_in: int = 2) -> bool:
        return self.integer(1, one_in) == one_in

    def one_of(self, items: Sequence[Any]) -> Any:
        if not items:
            raise Inapplicable
        return items[self.integer(0, len(items) - 1)]

    def size(self) -> int:
        return self.one_of(self.shared.sizes)

    def shape(self, low: int = 1, high: int = 3) -> Shape:
        return tuple(self.size() for _ in range(self.integer(low, high)))

    def pick(self, wanted: Callable[[Value], bool]) -> Value:
        """One of the values that are wanted, mostly a recent one."""
        found = [v for v in self.values if wanted(v)]
        return self.one_of(found[-RECENT:] if not self.flag(6) else found)

    def pick_float(self, min_rank: int = 1, max_bound: float = MAX_BOUND) -> Value:
        """A float value; one that is too large is brought down first."""
        value = self.pick(lambda v: v.is_float and v.rank >= min_rank)
        return value if value.bound <= max_bound else self.small(value)

    def small(self, value: Value, bound: float = 1.0) -> Value:
        """A value that is no larger than ``bound``."""
        if value.bound <= bound:
            return value
        if value.bound <= 4 * bound:
            return self.emit(f"{value.name} * {bound / value.bound:.3g}", bound=bound)
        return self.emit(f"{self.one_of(('jnp.sin', 'jnp.tanh'))}({value.name})", bound=1.0)

    def positive(self, value: Value, least: float = 0.5) -> Value:
        """Its magnitude, and at least ``least``."""
        form = self.one_of((f"jnp.abs({value.name}) + {least}", f"{value.name} * {value.name} + {least}"))
        return self.emit(form, bound=value.bound**2 + least)

    def matching(self, shape: Shape, dtype: str) -> Value:
        """A value of this shape and dtype: one that is there, or a new argument."""
        found = [v for v in self.values if v.shape == shape and v.dtype == dtype and v.bound <= MAX_BOUND]
        return self.one_of(found[-RECENT:]) if found and not self.flag(4) else self.argument(shape, dtype)

    def argument(self, shape: Shape, dtype: str, bound: float | None = None) -> Value:
        """A new argument of the program; a body reads it from around."""
        if _num_elements(shape) > MAX_ELEMENTS:
            raise Inapplicable
        name = f"a{len(self.shared.arguments)}"
        value = Value(name=name, shape=shape, dtype=dtype, bound=bound or (8.0 if dtype == "int32" else 1.0))
        self.shared.arguments.append(value)
        self.values.append(value)
        return value

    def new_name(self, letter: str) -> str:
        self.shared.count += 1
        return f"{letter}{self.shared.count}"

    def emit(self, text: str, bound: float | None = None) -> Value:
        """``v = text``."""
        return self.emit_all(text, bounds=None if bound is None else [bound])[0]

    def emit_all(
        self, text: str, *, bounds: Sequence[float] | None = None, functions: Sequence[Function] = ()
    ) -> tuple[Value, ...]:
        """``v, w = text``; shapes and dtypes are found by evaluating it on abstract values."""
        avals = self._abstract(text, functions)
        by_name = {v.name: v for v in self.values}
        largest = max((by_name[name].bound for name in names_in(text) if name in by_name), default=1.0)
        bounds = [largest] * len(avals) if bounds is None else bounds
        if any(_num_elements(aval.shape) > MAX_ELEMENTS or 0 in aval.shape for aval in avals):
            raise Inapplicable
        results = tuple(
            Value(name=self.new_name("v"), shape=aval.shape, dtype=str(aval.dtype), bound=bound)
            for aval, bound in zip(avals, bounds, strict=True)
        )
        self.statements.append(Statement(results=results, text=text, functions=tuple(functions)))
        self.values.extend(results)
        return results

    def _abstract(self, text: str, functions: Sequence[Function]) -> list[Any]:
        statement = Statement(results=(), text=text, functions=tuple(functions))
        by_name = {v.name: v for v in (*self.shared.arguments, *self.values)}
        names = sorted(statement.reads() & by_name.keys())
        definitions = [line for function in functions for line in function.lines()]
        source = "\n".join(
            [
                f"def evaluate({', '.join(names)}):",
                *(f"    {line}" for line in (*definitions, f"return {text}")),
            ]
        )
        namespace: dict[str, Any] = dict(_EVALUATION)
        exec(source, namespace)
        given = [jax.ShapeDtypeStruct(by_name[name].shape, jnp.dtype(by_name[name].dtype)) for name in names]
        try:
            found = jax.eval_shape(namespace["evaluate"], *given)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise Inapplicable(f"{text}: {error}") from error
        return jax.tree.leaves(found)

    def body(
        self, parameters: Sequence[Value], num_statements: int, fill: Callable[[Scope, int], None]
    ) -> Scope:
        """A scope for a function's body, filled with statements."""
        inner = Scope(self.shared, (*self.values, *parameters), self.depth + 1)
        fill(inner, num_statements)
        known = {v.name for v in self.values}  # arguments that the body asked for
        self.values.extend(v for v in inner.values if v.name.startswith("a") and v.name not in known)
        return inner

    def parameter(self, shape: Shape, dtype: str, bound: float = 1.0) -> Value:
        """A value that stands for a parameter of a function."""
        return Value(name=self.new_name("v"), shape=shape, dtype=dtype, bound=bound)

    def cast(self, value: Value, shape: Shape, dtype: str) -> str:
        """A text of this shape and dtype made of a value, as a carry has to be."""
        text = value.name
        if value.shape != shape:
            text = f"jnp.sum({text})" if value.rank else text
            text = f"jnp.broadcast_to({text}, {shape})"
        if dtype == "int32" and value.is_float:
            text = f"jnp.round({text} * 4)"
        elif dtype not in ("bool", "int32") and value.bound > 1:
            text = f"jnp.tanh({text})" if value.is_float else f"({text} % 3)"
        return f"({text}).astype({dtype!r})"


def _num_elements(shape: Shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
