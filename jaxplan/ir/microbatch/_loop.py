"""A step rewritten to work through its batch in slices: loops that add up sums, and what runs once around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxplan.core import _compat
from jaxplan.ir.microbatch._pairs import Atom, Pair, Paired, not_separable, small_params
from jaxplan.ir.microbatch._strata import Loop, Strata, batch_outer, strata_of


def split_batch(full: Any, small: Any, batch: Mapping[int, int], num: int) -> Any:
    """The closed jaxpr of the same step with its batch worked through in ``num`` slices.

    Sums over the batch are added up slice by slice, those of less than 32 bits in float32; everything that does not
    depend on single examples runs once. Results are equal up to the order of additions.

    Args:
      full: closed jaxpr of the step; ``small``: of the same step on a ``num``-th of the batch, at least two examples.
      batch: position of each input that holds examples -> the dimension along them.
      num: number of slices, at least 2.

    Raises:
      NotSeparableError: examples are not independent; names the line.
    """
    strata = sorted_strata(full, small, batch)

    def run(*inputs: Any) -> list[Any]:
        return _Run(strata, num, inputs).run()

    return jax.make_jaxpr(run)(*[jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in full.in_avals])


def sorted_strata(full: Any, small: Any, batch: Mapping[int, int]) -> Strata:
    """The equations of a step by the loop over slices of the batch that they run in; arguments as `split_batch`.

    Raises:
      NotSeparableError: examples are not independent; names the line.
    """
    paired = Paired.of(full, small)
    for position, value in enumerate(paired.values[: len(full.jaxpr.invars)]):
        if value.dim != batch.get(position):
            raise not_separable(f"input {position} does not hold the batch as the others do")
    strata = strata_of(paired, frozenset(batch))
    if not strata.loops:
        raise not_separable("nothing is computed of the batch")
    return strata


class _Run:
    """One execution of a step in slices."""

    def __init__(self, strata: Strata, num: int, inputs: Sequence[Any]) -> None:
        self.strata, self.num = strata, num
        values = strata.paired.values
        self.known: dict[int, Any] = dict(enumerate(inputs))
        self.known.update({t: v.constant for t, v in enumerate(values) if v.constant is not None})

    def run(self) -> list[Any]:
        whole = list(self.strata.whole)
        for stratum, loop in enumerate((*self.strata.loops, None)):
            self._once(self.strata.between[stratum], whole, is_first=stratum == 0)
            if loop is not None:
                self._loop(loop)
        return [read_atom(self.known, atom) for atom in self.strata.paired.outputs]

    def _once(self, equations: Sequence[Pair], whole: list[Pair], *, is_first: bool) -> None:
        """Equations that run once, in an order in which their operands are known; whole values as soon as they can."""
        waiting = sorted([*equations, *whole], key=lambda eqn: eqn.outputs)
        for eqn in waiting:
            if all(t in self.known for t in eqn.operands):
                if eqn in whole:
                    whole.remove(eqn)
                values = [read_atom(self.known, atom) for atom in eqn.inputs]
                params, stack = eqn.full.params, outside_of_passes(eqn.stack) if is_first else eqn.stack
                results = _compat.bind_like(eqn.full, eqn.full.primitive, params, values, stack)
                self.known.update(zip(eqn.outputs, results, strict=True))

    def _loop(self, loop: Loop) -> None:
        values = self.strata.paired.values
        place = {t: (values[t].dim or 0, batch_outer(self.strata, t)) for t in (*loop.sliced, *loop.stacked)}
        xs = [cut(self.known[t], *place[t], self.num) for t in loop.sliced]
        start = [jnp.zeros(values[t].aval.shape, sum_dtype(values[t].aval.dtype)) for t in loop.sums]

        def trip(carry: list[Any], slices: list[Any]) -> tuple[list[Any], Any]:
            inside = [placed(x, *place[t]) for t, x in zip(loop.sliced, slices, strict=True)]
            known = {**self.known, **dict(zip(loop.sliced, inside, strict=True))}
            for eqn in loop.equations:
                operands = [read_atom(known, atom) for atom in eqn.inputs]
                params = small_params(eqn.full.params, eqn.small.params)
                results = _compat.bind_like(eqn.full, eqn.small.primitive, params, operands, eqn.stack)
                known.update(zip(eqn.outputs, results, strict=True))
            added = [c + known[t].astype(c.dtype) for c, t in zip(carry, loop.sums, strict=True)]
            alike = [known[t] for t in loop.same]
            return added, ([fronted(known[t], *place[t]) for t in loop.stacked], alike)

        sums, (stacked, alike) = jax.lax.scan(trip, start, xs, length=self.num)
        for t, value in zip(loop.sums, sums, strict=True):
            self.known[t] = value.astype(values[t].aval.dtype)
        self.known.update((t, value[0]) for t, value in zip(loop.same, alike, strict=True))
        for t, value in zip(loop.stacked, stacked, strict=True):
            self.known[t] = joined(value, *place[t])


def outside_of_passes(stack: str) -> str:
    """The name stack of an equation that runs before the first slice: zeros that a gradient starts from, or the
    gradient of a weight decay, are no begin of a backward pass."""
    return stack.replace("transpose(", "(")


def read_atom(known: Mapping[int, Any], atom: Atom) -> Any:
    return known[atom] if isinstance(atom, int) else _literal(atom)


def _literal(atom: Any) -> Any:
    return atom.val


def sum_dtype(dtype: Any) -> Any:
    """Sums of short floats are added up in float32."""
    is_short = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if is_short else dtype


def cut(x: Any, dim: int, outer: int, num: int) -> Any:
    """Slices of a dimension, in front and apart: ``(..., outer * num * n, ...)`` to ``(num, n, outer, ...)``."""
    shape = x.shape
    batch = shape[dim] // outer
    if outer > 1:
        x = x.reshape(*shape[:dim], outer, batch, *shape[dim + 1 :])
        dim += 1
    front = jnp.moveaxis(x, dim, 0) if dim else x
    return front.reshape(num, batch // num, *front.shape[1:])


def placed(x: Any, dim: int, outer: int) -> Any:
    """One slice of `cut` with its batch where it was: ``(n, outer, ...)`` to ``(..., outer * n, ...)``."""
    if outer == 1:
        return jnp.moveaxis(x, 0, dim) if dim else x
    back = jnp.moveaxis(x, 0, dim + 1)
    return back.reshape(*back.shape[:dim], back.shape[dim] * back.shape[dim + 1], *back.shape[dim + 2 :])


def fronted(x: Any, dim: int, outer: int) -> Any:
    """The inverse of `placed`."""
    shape = x.shape
    if outer > 1:
        x = x.reshape(*shape[:dim], outer, shape[dim] // outer, *shape[dim + 1 :])
        dim += 1
    return jnp.moveaxis(x, dim, 0) if dim else x


def joined(x: Any, dim: int, outer: int) -> Any:
    """The inverse of `cut`: slices ``(num, n, outer, ...)`` as one dimension again."""
    return placed(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), dim, outer)
