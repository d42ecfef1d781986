"""Examples in docstrings give the results that they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import jaxplan
from jaxplan.mesh import Sharding, Topology
from jaxplan.simulate._simulator import Task
from jaxplan.solvers import Problem

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "jaxplan").rglob("*.py")
    if ">>> " in path.read_text()
)
NAMES = {"jaxplan": jaxplan, "Problem": Problem, "Sharding": Sharding, "Task": Task, "Topology": Topology}


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_the_results_that_they_show(name: str) -> None:
    module = importlib.import_module(name.removesuffix(".__init__"))
    assert not doctest.testmod(module, extraglobs={k: v for k, v in NAMES.items() if not hasattr(module, k)}).failed
