"""Barriers of a program: each is one equation per tensor that it holds, in a row, of one origin."""

from __future__ import annotations

from jaxplan.ir._program import Program


def backward_barriers(program: Program) -> tuple[range, ...]:
    """The equations of each barrier of the backward pass, behind which a region is recomputed."""
    found: list[range] = []
    for eqn in program.equations:
        if eqn.name != "optimization_barrier" or eqn.phase != "backward":
            continue
        e = eqn.index
        if found and found[-1].stop == e and program.equations[e - 1].origin is eqn.origin:
            found[-1] = range(found[-1].start, e + 1)
        else:
            found.append(range(e, e + 1))
    return tuple(found)
