"""Primitives of other packages that stand for a program: the programs they are lowered to, to be inlined.

Equinox (and with it Lineax, Optimistix and Diffrax) marks values by primitives of its own: that a value may not be
batched, that a condition is one for a whole batch, or that a rule of differentiation is to be used. Each is lowered by
``mlir.lower_fun`` from the function that is also its implementation, so that this function, traced, is the program.
(https://github.com/patrick-kidger/equinox: ``_unvmap.py``, ``internal/_primitive.py``, ``internal/_nontraceable.py``,
``internal/_loop/common.py``; https://github.com/patrick-kidger/lineax: ``_solve.py``.)
"""

from __future__ import annotations

from typing import Any

import jax

from jaxplan.ir._builder import Builder, keep, register_inline

_PACKAGES = ("equinox", "lineax")
_NAMES = (
    *("unvmap_all", "unvmap_any", "unvmap_max"),
    *("nonbatchable", "nontraceable", "nondifferentiable_backward"),
    *("select_if_vmap", "vprim", "linear_solve"),
)


@register_inline(*_NAMES)
def _inline_implementation(builder: Builder, eqn: Any, operands: list[int], stack: str) -> list[int]:
    """The implementation, traced; somebody else's primitive of the same name is kept as it is."""
    implementation = eqn.primitive.impl
    if getattr(implementation, "__module__", "").partition(".")[0] not in _PACKAGES:
        return keep(builder, eqn, operands, stack)
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    closed = jax.make_jaxpr(lambda *values: implementation(*values, **eqn.params))(*avals)
    return builder.inline(closed.jaxpr, closed.consts, operands, stack)
