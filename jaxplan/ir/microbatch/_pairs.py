"""The jaxpr of a step beside that of the same step on a fraction of the batch, equation by equation.

Dimensions whose sizes differ between the two carry the batch. The smaller jaxpr has the shapes and parameters that a
slice of the batch needs; the larger one has the numbers, such as the N of a mean, that hold for the whole batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxplan.core import _compat
from jaxplan.errors import UnsupportedError

CALLEE_PARAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call", "callee")
INLINED = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
)
"""Calls that only group equations."""

Atom = Any
"""The number of a value, or a `Literal`."""


class NotSeparableError(UnsupportedError):
    """The examples of a step are not independent in a form that a loop over slices of the batch could keep."""


def not_separable(reason: str, eqn: Any = None) -> NotSeparableError:
    """The error for a step that cannot be worked through in slices, with the line where that shows."""
    line = _compat.eqn_source_line(eqn) if eqn is not None else ""
    name = f" (operator {eqn.primitive.name}" + (f" at {line})" if line else ")") if eqn is not None else ""
    return NotSeparableError(
        f"the step cannot be worked through in micro-batches: {reason}{name}.\n"
        "  expected: examples that are independent of each other but for sums over the batch\n"
        "  fix: microbatches=False, or compute that part per micro-batch in the model"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value of both jaxprs.

    Attributes:
      aval: of the whole batch; ``small``: of a slice.
      dim: the dimension that carries the batch, None without.
      constant: what the step closes over, None where it is computed or an input.
    """

    aval: Any
    small: Any
    dim: int | None
    constant: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One equation of both jaxprs.

    Attributes:
      full, small: as they stand there.
      inputs: numbers of values, or literals of the full one; ``outputs``: numbers of values.
      stack: name stack of the calls around it.
    """

    full: Any
    small: Any
    inputs: tuple[Atom, ...]
    outputs: tuple[int, ...]
    stack: str

    @property
    def operands(self) -> tuple[int, ...]:
        """Numbers of the values that it reads."""
        return tuple(atom for atom in self.inputs if isinstance(atom, int))


def batch_dim(full: Any, small: Any, eqn: Any = None) -> int | None:
    """The dimension in which two avals differ, None where they are alike.

    Raises:
      NotSeparableError: they differ in several.
    """
    if len(full.shape) != len(small.shape):
        raise not_separable("the rank of a value depends on the size of the batch", eqn)
    dims = [d for d, (a, b) in enumerate(zip(full.shape, small.shape, strict=True)) if a != b]
    if len(dims) > 1:
        raise not_separable("a value relates examples to each other", eqn)
    return dims[0] if dims else None


@dataclass(slots=True, eq=False)
class Paired:
    """Two jaxprs side by side, calls inlined.

    Attributes:
      values: by number; the inputs come first.
      equations: in program order.
      outputs: atoms of the results.
    """

    values: list[Value]
    equations: list[Pair]
    outputs: tuple[Atom, ...]

    @classmethod
    def of(cls, full: Any, small: Any) -> Paired:
        """From two closed jaxprs.

        Raises:
          NotSeparableError: they are not the same but for shapes.
        """
        paired = cls(values=[], equations=[], outputs=())
        inputs = [
            paired.add(a.aval, b.aval) for a, b in zip(full.jaxpr.invars, small.jaxpr.invars, strict=True)
        ]
        paired.outputs = tuple(paired._inline(full.jaxpr, full.consts, small.jaxpr, small.consts, inputs, ""))
        return paired

    def add(self, full: Any, small: Any, constant: Any = None, eqn: Any = None) -> int:
        self.values.append(Value(aval=full, small=small, dim=batch_dim(full, small, eqn), constant=constant))
        return len(self.values) - 1

    def _inline(
        self,
        full: Any,
        full_consts: Sequence[Any],
        small: Any,
        small_consts: Sequence[Any],
        arguments: Sequence[Atom],
        prefix: str,
    ) -> list[Atom]:
        known: dict[Any, Atom] = dict(zip(full.invars, arguments, strict=True))
        for var, other, value in zip(full.constvars, small.constvars, full_consts, strict=True):
            known[var] = self.add(var.aval, other.aval, constant=value)
        if len(full.eqns) != len(small.eqns):
            raise not_separable("its operators depend on the size of the batch")
        for a, b in zip(full.eqns, small.eqns, strict=True):
            if a.primitive.name != b.primitive.name:
                raise not_separable("its operators depend on the size of the batch", a)
            inputs = [atom if isinstance(atom, _compat.Literal) else known[atom] for atom in a.invars]
            stack = "/".join(filter(None, (prefix, _compat.eqn_name_stack(a))))
            if a.primitive.name in INLINED:
                name = next(name for name in CALLEE_PARAMS if name in a.params)
                (callee, consts), (other, others) = (_compat.open_jaxpr(e.params[name]) for e in (a, b))
                results = self._inline(callee, consts, other, others, inputs, stack)
            else:
                results = [
                    self.add(v.aval, w.aval, eqn=a) for v, w in zip(a.outvars, b.outvars, strict=True)
                ]
                outputs = tuple(results)
                self.equations.append(Pair(full=a, small=b, inputs=tuple(inputs), outputs=outputs, stack=stack))
            known.update(zip(a.outvars, results, strict=True))
        return [atom if isinstance(atom, _compat.Literal) else known[atom] for atom in full.outvars]


def inner_jaxprs(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The jaxprs among parameters, with their names."""
    for name, value in params.items():
        for item in value if isinstance(value, tuple | list) else (value,):
            if hasattr(item, "eqns") or hasattr(getattr(item, "jaxpr", None), "eqns"):
                yield name, item


def small_params(full: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a slice, with the numbers of the whole batch in the jaxprs among them."""
    return {name: _with_numbers(full[name], value) for name, value in small.items()}


def _with_numbers(full: Any, small: Any) -> Any:
    """A parameter of a slice; in a jaxpr, literals and constants of the whole batch."""
    if type(small) is tuple:
        return tuple(itertools.starmap(_with_numbers, zip(full, small, strict=True)))
    if hasattr(getattr(small, "jaxpr", None), "eqns"):
        consts = [
            a if np.shape(a) == np.shape(b) else b for a, b in zip(full.consts, small.consts, strict=True)
        ]
        return small.replace(jaxpr=_jaxpr_with_numbers(full.jaxpr, small.jaxpr), consts=consts)
    return _jaxpr_with_numbers(full, small) if hasattr(small, "eqns") else small


def _jaxpr_with_numbers(full: Any, small: Any) -> Any:
    """The jaxpr of a slice with the literals of the whole batch."""
    eqns = []
    for a, b in zip(full.eqns, small.eqns, strict=True):
        invars = [
            x if isinstance(x, _compat.Literal) and isinstance(y, _compat.Literal) else y
            for x, y in zip(a.invars, b.invars, strict=True)
        ]
        has_inner = any(True for _ in inner_jaxprs(b.params))
        params = small_params(a.params, b.params) if has_inner else b.params
        eqns.append(b.replace(invars=invars, params=params))
    return small.replace(eqns=eqns)
