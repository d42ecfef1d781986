"""Into how many parts a configuration cuts classes, tensors and equations."""

from __future__ import annotations

import math

import numpy as np

from jaxplan.ir import WHOLE, Configuration, GroupSpace, StepGraph
from jaxplan.mesh import Topology


def split_counts(configs: tuple[Configuration, ...], topology: Topology) -> np.ndarray:
    """Number of parts of each class under each configuration, shape (K, C)."""
    sizes = [axis.size for axis in topology.axes]
    counts = [[math.prod(sizes[a] for a in axes) for axes in config] for config in configs]
    return np.asarray(counts, dtype=np.float64).reshape(len(configs), -1)


def tensor_splits(space: GroupSpace, splits: np.ndarray, t: int) -> np.ndarray:
    """Into how many parts a tensor of the group is split, shape (K,)."""
    classes = [c for dim in space.tensor_dims.get(t, ()) for c in dim]
    return splits[:, classes].prod(axis=1) if classes else np.ones(len(splits))


def equation_splits(space: GroupSpace, splits: np.ndarray, equation: int) -> np.ndarray:
    """Into how many parts the work of an equation is split, shape (K,)."""
    classes = sorted({c for c in space.factor_class[equation] if c != WHOLE})
    return splits[:, classes].prod(axis=1) if classes else np.ones(len(splits))


def trips_of(graph: StepGraph, equation: int) -> int:
    """How often an equation runs in one step."""
    eqn = graph.program.equations[equation]
    return graph.program.tensors[eqn.results[0]].trips if eqn.results else 1
