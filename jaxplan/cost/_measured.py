"""Compute seconds from a profile: matrix products by their local shape, passes over memory by their bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxplan.ir import WHOLE, GroupSpace, StepGraph
from jaxplan.mesh import ProfileTable


def dot_seconds(
    graph: StepGraph, space: GroupSpace, splits: np.ndarray, equation: int, profile: ProfileTable
) -> np.ndarray:
    """Seconds of a contraction or convolution on one device, shape (K,), its traffic included."""
    eqn = graph.program.equations[equation]
    dtype = graph.program.tensors[eqn.operands[0]].dtype.name
    return profile.matmuls.seconds(dtype, *dot_extents(graph, space, splits, equation))


def dot_extents(
    graph: StepGraph, space: GroupSpace, splits: np.ndarray, equation: int
) -> tuple[np.ndarray, ...]:
    """Local batch, m, k and n, each of shape (K,), of a contraction or of the dot that a convolution is."""
    return _EXTENTS[graph.rules[equation].family](graph, space, splits, equation)


def _contraction_extents(
    graph: StepGraph, space: GroupSpace, splits: np.ndarray, equation: int
) -> tuple[np.ndarray, ...]:
    """Local batch, m, k, n: products of the sizes of the factors in both operands, one of them, or no result."""
    rule = graph.rules[equation]
    left, right = ({f for dim in dims for f in dim} for dims in rule.operands[:2])
    result = {f for dim in rule.results[0] for f in dim}
    extents = [np.ones(len(splits)) for _ in range(4)]
    split_already: set[int] = set()
    for f, factor in enumerate(rule.factors):
        if f not in left and f not in right:  # how many rows each group has
            continue
        c = space.factor_class[equation][f]
        local = np.full(len(splits), float(factor.size))
        if c != WHOLE and c not in split_already:
            local = local / splits[:, c]
            split_already.add(c)
        place = 2 if f not in result else 0 if f in left and f in right else 1 if f in left else 3
        extents[place] = extents[place] * local
    return tuple(extents)


def _convolution_extents(
    graph: StepGraph, space: GroupSpace, splits: np.ndarray, equation: int
) -> tuple[np.ndarray, ...]:
    """A convolution as the dot that it is: positions by taps and input features by output features."""
    eqn, rule, tensors = graph.program.equations[equation], graph.rules[equation], graph.program.tensors
    spec = eqn.params["dimension_numbers"]
    kernel = tensors[eqn.operands[1]]
    features = kernel.shape[spec.rhs_spec[0]]
    classes = space.factor_class[equation]

    def parts(dims: tuple[tuple[int, ...], ...]) -> np.ndarray:
        found = sorted({classes[f] for dim in dims for f in dim if classes[f] != WHOLE})
        return splits[:, found].prod(axis=1) if found else np.ones(len(splits))

    of_features = parts((rule.results[0][spec.out_spec[1]],))
    positions = tensors[eqn.results[0]].num_elements / features / (parts(rule.results[0]) / of_features)
    taps = kernel.num_elements / features / (parts(rule.operands[1]) / of_features)
    return np.ones(len(splits)), positions, taps, features / of_features


_EXTENTS: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {
    "contraction": _contraction_extents,
    "convolution": _convolution_extents,
}
