"""Shardings that the step asks for itself, over a mesh of its own, and products of quantised numbers."""

from __future__ import annotations

import math

from tests.fuzz._operators import operator
from tests.fuzz._scope import Inapplicable, Scope

_AXES = {"d": 2, "m": 4}
"""The mesh that programs name (`tests.fuzz._program.HEADER`)."""


def _spec(s: Scope, shape: tuple[int, ...], *, open_dims: bool) -> str:
    """A PartitionSpec that divides a shape; ``open_dims``: some dimensions are left to the plan."""
    free, entries = list(_AXES), []
    for size in shape:
        wanted = [name for name in free if s.flag()]
        if math.prod(_AXES[name] for name in wanted) > 1 and size % math.prod(_AXES[n] for n in wanted) == 0:
            free = [name for name in free if name not in wanted]
            entries.append(f"({', '.join(map(repr, wanted))},)")
        else:
            entries.append("P.UNCONSTRAINED" if open_dims and s.flag(3) else "None")
    return f"P({', '.join(entries)})"


@operator(4)
def constrained(s: Scope) -> None:
    x = s.pick(lambda v: v.rank >= 1)
    spec = _spec(s, x.shape, open_dims=True)
    s.emit(f"lax.with_sharding_constraint({x.name}, NamedSharding(MESH, {spec}))", bound=x.bound)


@operator(3)
def by_hand(s: Scope) -> None:
    """A product of the devices' own parts, summed over the axes that split the contracted dimension."""
    x = s.pick(lambda v: v.rank == 2 and v.is_float and v.bound <= 5)
    rows, width = x.shape
    if width % 4 or rows % 2:
        raise Inapplicable
    w = s.matching((width, s.size()), x.dtype)
    body = s.one_of(("lax.psum(jnp.tanh(a) @ b, 'm')", "lax.psum(a @ b, 'm') * 0.5"))
    checked = s.one_of(("True", "False"))
    specs = "in_specs=(P('d', 'm'), P('m', None)), out_specs=P('d', None)"
    s.emit(
        f"jax.shard_map(lambda a, b: {body}, mesh=MESH, {specs}, check_vma={checked})({x.name}, {w.name})",
        bound=x.bound * w.bound * width,
    )


@operator(2, differentiable=False)
def quantised(s: Scope) -> None:
    """A product of 8-bit integers, summed in 32 bits."""
    x = s.small(s.pick_float())
    w = s.matching((x.shape[-1], s.size()), x.dtype)
    eighth = "jnp.clip(jnp.round({} * 16), -127, 127).astype('int8')"
    product = f"jnp.matmul({eighth.format(x.name)}, {eighth.format(w.name)}, preferred_element_type='int32')"
    s.emit(f"{product}.astype({x.dtype!r}) / 256", bound=x.shape[-1] * 1.0)
