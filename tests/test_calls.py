"""Calls between the folders of the package during one `jaxplan.plan()`: downwards, stages once and in order.

A folder is below another one where the other imports it, directly or through further folders; `tests/test_structure.py`
shows that this is an order. A call goes upwards only through a callable that was handed down: a function that is
defined inside of another one (a callback such as progress, a lambda, a generator), or an attribute of a protocol that
the lower folder declares for the values that it is given.
"""

from __future__ import annotations

import ast
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import jax
import jax.numpy as jnp
import pytest

import jaxplan

ROOT = Path(jaxplan.__file__).parent
STAGES = ("trace_step", "analyse_traced", "plan_graph", "price", "solve", "score", "assemble")
"""Of the pipeline, in `jaxplan.search`, in their order."""
SIMULATED, PREDICTED = ("simulate", "OverlappedPredictor.predict"), ("cost", "Predictor.predict")
IN_TURN = ("simulate", "OverlappedPredictor.predict_in_turn")
LOOPED = {("cost", "ModelBuilder.build"), SIMULATED, PREDICTED, ("solvers", "frontier"), ("solvers", "solve")}
"""The functions by which a step is priced, an assignment predicted, and a problem solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a function of the package, and the folder of the nearest caller that is of the package too."""

    source: str
    target: str
    function: str

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}: {self.function}"


@functools.cache
def folder_of(code: CodeType) -> str:
    """The folder, or the module at the top level, that code is of; empty for code of others."""
    path = Path(code.co_filename)
    return path.relative_to(ROOT).parts[0].removesuffix(".py") if path.is_relative_to(ROOT) else ""


def train_step(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


@pytest.fixture(scope="module")
def calls() -> tuple[Call, ...]:
    """All calls of one search, in order, Python functions alone."""
    found: list[Call] = []

    def record(frame: FrameType, event: str, _: object) -> None:
        target = folder_of(frame.f_code) if event == "call" else ""
        if target:
            caller = frame.f_back
            while caller is not None and not folder_of(caller.f_code):
                caller = caller.f_back
            source = folder_of(caller.f_code) if caller is not None else ""
            found.append(Call(source=source, target=target, function=frame.f_code.co_qualname))

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (256, 64))]
    plan = jaxplan.plan  # imported when it is first read
    before = sys.getprofile()
    sys.setprofile(record)
    try:
        plan(train_step, *args, topology="h100:8", progress=False)
    finally:
        sys.setprofile(before)
    return tuple(found)


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}


@functools.cache
def below(folder: str) -> frozenset[str]:
    """The folders that one imports, directly or through others."""
    found: set[str] = set()
    for path, tree in trees().items():
        if path.relative_to(ROOT).parts[0].removesuffix(".py") == folder:
            modules = (node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
            found |= {module.split(".")[1] for module in modules if module.startswith("jaxplan.")}
    direct = found - {folder}
    return frozenset(direct.union(*map(below, direct)))


@functools.cache
def protocol_attributes(folder: str) -> frozenset[str]:
    """Names that the protocols of a folder declare."""
    protocols = [
        node
        for path, tree in trees().items()
        if path.relative_to(ROOT).parts[0] == folder
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases)
    ]
    return frozenset(d.name for p in protocols for d in ast.walk(p) if isinstance(d, ast.FunctionDef))


def is_handed_down(call: Call) -> bool:
    return "<locals>" in call.function or call.function.rpartition(".")[2] in protocol_attributes(call.source)


def test_calls_follow_the_order_of_imports(calls: tuple[Call, ...]) -> None:
    between = {c for c in calls if c.source and c.source != c.target}
    upwards = {c for c in between if c.target not in below(c.source)}
    assert {("search", "cost"), ("search", "solvers"), ("cost", "xla")} <= {(c.source, c.target) for c in between}
    assert [str(c) for c in upwards if not is_handed_down(c)] == []


def test_each_stage_is_called_once_and_in_order(calls: tuple[Call, ...]) -> None:
    assert [c.function for c in calls if c.target == "search" and c.function in STAGES] == list(STAGES)


def test_only_the_search_loops_over_cost_and_solvers(calls: tuple[Call, ...]) -> None:
    """A prediction that may be simulated has one of the sum inside of it."""
    looped = [c for c in calls if (c.target, c.function) in LOOPED and c.source != c.target]
    inside = [c for c in looped if (c.target, c.function) == PREDICTED and c.source == SIMULATED[0]]
    assert {c.source for c in looped if c not in inside} == {"search"}
    assert len(inside) == sum((c.target, c.function) == IN_TURN for c in calls) > 1
