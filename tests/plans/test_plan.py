"""Plans and frontiers on disk: the same bytes everywhere; malformed files are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan import PlanFileError, PlanMismatchError

WIDTH, BATCH = 32, 16
PARAMS = {name: jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32) for name in ("a", "b")}
X = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)


def step(params: Any, x: jax.Array) -> Any:
    def loss_fn(params: Any) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def _other_step(params: Any, x: jax.Array) -> Any:
    new, loss = step(params, x)
    return new, 2 * loss


@pytest.fixture(scope="module")
def frontier() -> jaxplan.Frontier:
    return jaxplan.plan(step, PARAMS, X, topology="cpu:8", memory="1GiB")


@pytest.fixture(scope="module")
def plan(frontier: jaxplan.Frontier) -> jaxplan.Plan:
    return frontier.leanest()


@pytest.fixture
def path(tmp_path: Path, plan: jaxplan.Plan) -> Path:
    plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def _values() -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), (PARAMS, X))


# round trips


def test_a_plan_comes_back_byte_for_byte(path: Path, plan: jaxplan.Plan, tmp_path: Path) -> None:
    loaded = jaxplan.load(path)
    assert isinstance(loaded, jaxplan.Plan)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert loaded.topology == plan.topology
    assert loaded.prediction == plan.prediction
    assert loaded.configurations == plan.configurations
    assert loaded.repeated == plan.repeated


def test_a_plan_without_its_step_says_everything_but_runs_nothing(path: Path, plan: jaxplan.Plan) -> None:
    loaded = jaxplan.load(path)
    assert isinstance(loaded, jaxplan.Plan)
    assert loaded.in_specs == {
        "[0]['a']": plan.in_specs[0]["a"],
        "[0]['b']": plan.in_specs[0]["b"],
        "[1]": plan.in_specs[1],
    }
    assert loaded.mesh().size == 8
    assert plan.summary in loaded.explain()
    for call in (loaded.jit, loaded.audit, lambda: loaded.shard(_values())):
        with pytest.raises(PlanMismatchError, match=r"without its program(.|\n)*jaxplan\.load\(path, step"):
            call()


def test_a_loaded_plan_runs_with_its_step(path: Path) -> None:
    loaded = jaxplan.load(path, step, PARAMS, X)
    assert isinstance(loaded, jaxplan.Plan)
    new, loss = loaded.jit()(*_values())
    expected, expected_loss = jax.jit(step)(*_values())
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(new["a"], expected["a"], rtol=1e-4, atol=1e-6)


def test_a_decorated_step_that_ran_needs_no_arguments(tmp_path: Path) -> None:
    decorated = jaxplan.auto(step, memory="1GiB", donate_argnums=())
    decorated(*_values())
    decorated.plan.save(tmp_path / "p.json")
    loaded = jaxplan.load(tmp_path / "p.json", decorated)
    assert isinstance(loaded, jaxplan.Plan)
    assert loaded.graph is decorated.graph


def test_a_frontier_comes_back(frontier: jaxplan.Frontier, tmp_path: Path) -> None:
    frontier.save(tmp_path / "f.json")
    loaded = jaxplan.load(tmp_path / "f.json")
    assert isinstance(loaded, jaxplan.Frontier)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "f.json").read_bytes()
    assert loaded.table().splitlines()[:4] == frontier.table().splitlines()[:4]
    assert set(loaded.references) == set(frontier.references) >= {"data", "fsdp"}
    assert dict(loaded.absent) == dict(frontier.absent)
    bound = jaxplan.load(tmp_path / "f.json", step, PARAMS, X)
    assert isinstance(bound, jaxplan.Frontier)
    _, loss = bound.knee().jit()(*_values())
    np.testing.assert_allclose(loss, jax.jit(step)(*_values())[1], rtol=1e-5)


@pytest.mark.slow
def test_files_are_the_same_in_every_process(tmp_path: Path) -> None:
    program = (
        "import sys, jaxplan; from tests.plans.test_plan import PARAMS, X, step\n"
        "jaxplan.plan(step, PARAMS, X, topology='h100:2x4').save(sys.argv[1])"
    )
    texts = []
    for seed in ("1", "2"):
        out = tmp_path / f"{seed}.json"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        root = Path(__file__).parents[2]
        subprocess.run(
            [sys.executable, "-c", program, str(out)], env=environment, cwd=root, check=True, timeout=300
        )
        texts.append(out.read_bytes())
    assert texts[0] == texts[1]
    assert str(Path.cwd()).encode() not in texts[0]


# the wrong step


@pytest.mark.parametrize(
    ("other", "arguments", "differs"),
    [
        (_other_step, (PARAMS, X), "the arguments are the same; the step's own code"),
        (
            step,
            (PARAMS, jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16)),
            r"x is bfloat16\[16,32\], and float32",
        ),
        (step, ({**PARAMS, "c": X}, X), r"only in the plan: none; only in the step: params/c"),
    ],
    ids=["code", "dtype", "structure"],
)
def test_another_program_is_refused(path: Path, other: Any, arguments: Any, differs: str) -> None:
    with pytest.raises(PlanMismatchError, match=rf"made for another program(.|\n)*{differs}"):
        jaxplan.load(path, other, *arguments)


def test_a_plan_made_with_donation_by_name_is_found_again(tmp_path: Path) -> None:
    for donate in ((), (0,), None):
        frontier = jaxplan.plan(step, PARAMS, X, topology="cpu:8", memory="1GiB", donate_argnums=donate)
        frontier.save(tmp_path / "f.json")
        loaded = jaxplan.load(tmp_path / "f.json", step, PARAMS, X)
        assert isinstance(loaded, jaxplan.Frontier)
        fastest = loaded.fastest()
        assert fastest.donate_argnums == donate
        assert (
            fastest.require_program().program.donated == frontier.fastest().require_program().program.donated
        )


def test_a_frontier_is_bound_by_one_trace(frontier: jaxplan.Frontier, tmp_path: Path) -> None:
    traces = 0

    def counted(params: Any, x: jax.Array) -> Any:
        nonlocal traces
        traces += 1
        return step(params, x)

    frontier.save(tmp_path / "f.json")
    loaded = jaxplan.load(tmp_path / "f.json", counted, PARAMS, X)
    assert isinstance(loaded, jaxplan.Frontier)
    assert len(loaded) + len(loaded.references) > 1
    assert traces == 1


def test_a_step_without_arguments_is_refused(path: Path) -> None:
    with pytest.raises(PlanMismatchError, match="no arguments to trace it with"):
        jaxplan.load(path, step)


# malformed files

Edit = Callable[[dict[str, Any]], object]


def _set(*keys: Any) -> Edit:
    """Set a field, given as keys and then its new value."""

    def edit(data: Any) -> None:
        for key in keys[:-2]:
            data = data[key]
        data[keys[-2]] = keys[-1]

    return edit


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (_set("schema", "other"), "has schema 'other'; expected 'jaxplan.plan'"),
        (_set("version", 99), "schema version 99.*plan again"),
        (lambda data: data.pop("version"), "schema version None"),
        (lambda data: data.pop("fingerprint"), "missing or malformed field: field 'fingerprint' is missing"),
        (_set("configurations", 3), "malformed"),
        (_set("configurations", 0, [[True]]), "configurations.0..0..0. is True; expected a whole number"),
        (_set("configurations", 0, [[99]]), "99.*with 3 atomic axes"),
        (_set("inputs", 0, "layout", [[-1], []]), "layout.* is -1; expected a whole number"),
        (_set("inputs", 0, "layout", [[0], [0]]), "malformed"),
        (_set("inputs", None), "malformed"),
        (_set("prediction", "memory_bytes", float("inf")), "malformed"),
        (_set("prediction", "compute_seconds", float("nan")), "malformed.*expected a number from 0"),
        (_set("lower_bound_seconds", -1.0), "malformed.*expected a number from 0"),
        (_set("donate_argnums", "0"), "malformed"),
        (_set("inputs", 0, {"path": "[0]['a']", "layout": [[], []]}), "lacks aval"),
        (_set("prediction", "collectives", {"a": 1}), "malformed"),
        (_set("prediction", []), "malformed"),
        (_set("topology", "levels", 0, "size", -8), "malformed"),
        (_set("topology", "chip", "no such chip"), "malformed"),
    ],
)
def test_an_edited_file_is_refused(edit: Edit, match: str, path: Path) -> None:
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))
    with pytest.raises(PlanFileError, match=match):
        jaxplan.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"x"',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"schema": "jaxplan.plan"}',
        b"null",
        b"9" * 5000,
        b"cos\nsystem\n(S'echo'\ntR.",
    ],
    ids=["empty", "cut", "list", "number", "text", "binary", "deep", "bare", "null", "long", "pickle"],
)
def test_what_is_no_plan_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(PlanFileError):
        jaxplan.load(tmp_path / "p.json")
    with pytest.raises(PlanFileError, match="cannot read"):
        jaxplan.load(tmp_path / "missing.json")


def test_an_enormous_file_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "p.json", "wb") as file:
        file.truncate(1 << 33)  # sparse
    with pytest.raises(PlanFileError, match="it has more than 268435456 bytes"):
        jaxplan.load(tmp_path / "p.json")


@pytest.mark.parametrize(
    "edit",
    [
        _set("points", []),
        _set("points", 3),
        _set("points", [1]),
        _set("references", [1]),
        lambda data: data.pop("points"),
        lambda data: data["points"].reverse(),
        _set("version", 2),
    ],
)
def test_an_edited_frontier_is_refused(edit: Edit, frontier: jaxplan.Frontier, tmp_path: Path) -> None:
    data = frontier.to_json()
    edit(data)
    (tmp_path / "f.json").write_text(json.dumps(data))
    with pytest.raises(PlanFileError):
        jaxplan.load(tmp_path / "f.json")


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: data["configurations"].pop(),
        _set("configurations", 0, []),
        lambda data: data["inputs"].pop(),
        lambda data: data["configurations"].reverse(),
    ],
)
def test_a_plan_that_does_not_fit_its_program_is_refused(edit: Edit, path: Path) -> None:
    """Right fingerprint, wrong contents: as another version of the analysis would have written it."""
    data = {**json.loads(path.read_text()), "lowering": None}
    edit(data)
    path.write_text(json.dumps(data))
    with pytest.raises(PlanMismatchError, match="plan again"):
        jaxplan.load(path, step, PARAMS, X)


def test_explain_names_the_rule_of_each_large_buffer() -> None:
    """A value that one dot makes and another reads is in memory because both are kernels of their own."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return (x @ w) @ w

    shapes = [jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((512, 64), jnp.float32)]
    text = jaxplan.plan(step, *shapes, topology="h100:1", progress=False).fastest().explain()
    assert "1 x 0.125 MiB float32[512,64] of dot_general (forward): kernels-read-and-write-memory" in text


@pytest.mark.parametrize(("old", "new"), [("in_layouts", "input_shardings"), ("out_layouts", "output_shardings")])
def test_shardings_have_their_old_names_for_a_version(plan: jaxplan.Plan, old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"now Plan.{new}"):
        assert getattr(plan, old) == getattr(plan, new) != ()
