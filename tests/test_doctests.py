"""Examples in docstrings give the results that they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from unittest import mock

import pytest

import jaxplan
import jaxplan.errors
from jaxplan.ir import _count_registry, _registry
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
    """Rules and counts that an example registers are gone afterwards."""
    module = importlib.import_module(name.removesuffix(".__init__"))
    names = {k: v for k, v in NAMES.items() if not hasattr(module, k)}
    with mock.patch.dict(_registry._RULES), mock.patch.dict(_count_registry._COUNTS):
        assert not doctest.testmod(module, extraglobs=names).failed


@pytest.mark.parametrize("name", jaxplan.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    public = getattr(jaxplan, name)
    runs = doctest.DocTestFinder(recurse=False).find(public, name, globs={})
    assert any(not example.options.get(doctest.SKIP) for test in runs for example in test.examples)
    assert {public.__module__, f"{public.__module__}.__init__"} & set(MODULES)


def test_all_names_every_public_name() -> None:
    values = vars(jaxplan.errors).values()
    errors = {value.__name__ for value in values if isinstance(value, type) and issubclass(value, Exception)}
    assert set(jaxplan.__all__) == {*jaxplan._HOMES, *errors} and sorted(jaxplan.__all__) == jaxplan.__all__
