"""First pass: how arrays lie in memory, by the effects of the rules on storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from jaxplan.ir import StepGraph
from jaxplan.xla._effects import GroupChannels, Hold, Innermost, PadMatrices, Tile
from jaxplan.xla._facts import Facts
from jaxplan.xla._found import Found, effects
from jaxplan.xla._storage import AS_DECLARED, MatrixDims, Storage
from jaxplan.xla.rules.gpu.padding import matrix_dims

_KEEP_DIMENSIONS = frozenset({"elementwise", "window"})


def with_storage(facts: Facts) -> tuple[Facts, Found]:
    """The facts with `Facts.is_tiled`, `Facts.inner` and `Facts.tokens`; and the effects on storage."""
    found = Found.of_effects(effects(facts, "storage"))
    innermost = found.of(Innermost)
    tokens = _spread(facts.graph, _first(e for e in innermost if e.default))
    inner = _spread(facts.graph, {**tokens, **_first(e for e in innermost if not e.default)})
    return replace(facts, is_tiled=found.has(Tile), inner=inner, tokens=frozenset(tokens)), found


def storage_of(facts: Facts, found: Found) -> dict[int, Storage]:
    """Tensors that do not lie in memory as the program has them."""
    storage: dict[int, Storage] = {t: Storage(inner=dims) for t, dims in facts.inner.items()}

    def change(t: int, **changes: object) -> None:
        storage[t] = replace(storage.get(t, AS_DECLARED), **changes)  # pyright: ignore[reportArgumentType]

    for hold in found.of(Hold):
        change(hold.tensor, itemsize=hold.itemsize, copies=hold.copies)
    for image in found.of(GroupChannels):
        change(image.tensor, groups=image.groups)
    for t, matrices in _padded(facts, found).items():
        change(t, matrices=matrices)
    return storage


def _padded(facts: Facts, found: Found) -> dict[int, MatrixDims]:
    """Operands that dots read padded; the copy is kept for the next dot that reads it, in the backward pass too."""
    padded: dict[int, MatrixDims] = {}
    for effect in found.of(PadMatrices):
        eqn = facts.equations[effect.equation]
        for side, t in enumerate(eqn.operands):
            padded.setdefault(t, matrix_dims(eqn, side, len(facts.tensors[t].shape)))
    return padded


def _first(found: Iterable[Innermost]) -> dict[int, tuple[int, int]]:
    """Of each tensor the dimensions by its first equation."""
    dims: dict[int, tuple[int, int]] = {}
    for effect in sorted(found, key=lambda effect: effect.equation):
        dims.setdefault(effect.tensor, effect.dims)
    return dims


def _spread(graph: StepGraph, found: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """The same with the results and sources of these tensors in which dimensions stay; arguments are not among them."""
    program, spread = graph.program, dict(found)
    for eqn in (*program.equations, *reversed(program.equations), *program.equations) if found else ():
        if graph.rules[eqn.index].family not in _KEEP_DIMENSIONS:
            continue
        ends = [*eqn.operands, *eqn.results]
        known = [t for t in ends if t in spread]
        for t in ends if known else ():
            if len(program.tensors[t].shape) == len(program.tensors[known[0]].shape):
                spread.setdefault(t, spread[known[0]])
    return {t: dims for t, dims in spread.items() if graph.values.producer[t] >= 0}
