"""Masks that a loop reads: computed in its body, of iotas and comparisons, and not held as arrays outside.

The derivative of a `jax.lax.scan` computes before the loop whatever depends on no parameter and no trip, and compilers
do not move an operator that makes a larger array back into it. So a causal mask in the layers of a scanned Transformer
is an array of the shape of the scores, a byte for each pair of positions in each head of each example, held through
the loop. In the body its comparisons are fused with the operator that reads it.
"""

from __future__ import annotations

from jaxplan.ir import REGION_IN, Program, Values

_CHEAP = frozenset(
    {
        "iota", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "slice", "rev", "eq",
        "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "select_n", "add", "sub", "mul", "neg", "max",
        "min", "sign", "clamp", "convert_element_type",
    }
)
"""Primitives that a kernel computes in no more time than it takes to read their result."""


def masks_of_loops(program: Program, values: Values) -> dict[int, tuple[int, ...]]:
    """Equation that hands a mask to the body of a loop -> the equations that compute it, in order."""
    found: dict[int, tuple[int, ...]] = {}
    loops = (region for region in program.regions if region.kind in ("scan", "while"))
    for e in (e for region in loops for entries in region.entries for e in entries):
        eqn = program.equations[e]
        if eqn.name == REGION_IN and eqn.params["role"] == "const":
            equations = _equations_of(program, values, eqn.operands[0])
            if equations:
                found[e] = equations
    return found


def _equations_of(program: Program, values: Values, t: int) -> tuple[int, ...]:
    """The cheap equations, of constants and scalars, that end in a tensor."""
    found, stack = set[int](), [t]
    while stack:
        u = stack.pop()
        made = values.producer[u]
        if made < 0 or made in found or not values.free[u] or program.equations[made].name not in _CHEAP:
            continue
        found.add(made)
        stack += program.equations[made].operands
    return tuple(sorted(found))
