"""Memory of a step on one device, predicted without a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxplan.cost import Predictor, build_cost_model
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step


def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def peak(step: Any, *args: Any, topology: str = "cpu:1", donate_argnums: Sequence[int] = ()) -> int:
    """Predicted bytes above the arguments."""
    graph = analyse_step(step, args, {}, donate_argnums=donate_argnums, static_argnums=())
    model = build_cost_model(graph, Topology.parse(topology))
    prediction, _ = Predictor(model).predict([0] * len(model.configurations), [0] * len(model.problem.edges))
    return prediction.memory_bytes - sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(args))
