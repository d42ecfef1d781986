"""What published searches ask of a step beside its additive problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxplan._chains import simulated_chains
from jaxplan._named_splits import named_splits
from jaxplan.cost import Predictor
from jaxplan.strategies import Sketch


def search_arguments(solver: str, predictor: Predictor, sketches: Mapping[str, Sketch]) -> dict[str, Any]:
    """The keyword arguments of `jaxplan.solvers.frontier` that a solver needs on a step."""
    if solver == "mcmc":
        return {"chains": simulated_chains(predictor, sketches)}
    if solver == "one_mesh":
        return {"meanings": named_splits(predictor.model)}
    return {}
