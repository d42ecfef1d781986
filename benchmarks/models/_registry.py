"""The models by name, and how a name becomes a step with abstract arguments."""

import importlib
import pkgutil
from pathlib import Path
from typing import Any

from benchmarks.models._spec import ModelSpec, Step


def _collect(table: str) -> dict[str, ModelSpec]:
    """The tables of that name of the modules beside this one; raises `ValueError` where two have one name."""
    models: dict[str, ModelSpec] = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)], prefix=f"{__package__}."):
        configs = {} if module.name == __name__ else vars(importlib.import_module(module.name)).get(table, {})
        if twice := models.keys() & configs.keys():
            raise ValueError(f"{module.name} has names of models that another module has: {sorted(twice)}")
        models |= configs
    return models


MODELS = _collect("CONFIGS")
PAPER_MODELS = _collect("PAPER_CONFIGS")
"""Networks of published experiments: built by name like the others, and no part of sweeps over `MODELS`."""


def build(name: str, **overrides: Any) -> tuple[Step, tuple[Any, ...]]:
    """The step of model `name` and its abstract arguments, with config fields overridden.

    Raises `KeyError` for an unknown name and `TypeError` for an unknown field.
    """
    models = MODELS | PAPER_MODELS
    if name not in models:
        raise KeyError(f"unknown model {name!r}; expected one of {', '.join(models)}")
    spec = models[name].override(**overrides)
    return spec.make_step(spec.config), spec.abstract_args()
