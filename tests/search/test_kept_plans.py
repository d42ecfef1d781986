"""A search that was kept on disk is found again where nothing differs that it depends on, and only there."""

import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import jaxplan
from jaxplan.core import _log

WEIGHTS, BATCH = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((16, 64), jnp.float32)
TABLE = np.linspace(0.0, 1.0, 32, dtype=np.float32)


def make_step(rate: float = 0.1, table: np.ndarray = TABLE):
    def step(w, x):
        return w - rate * jax.grad(lambda w: jnp.mean((x @ w * table) ** 2))(w)

    return step


def plan(step, *args, cache: Path | bool, **options):
    return jaxplan.plan(
        step, *args, topology=options.pop("topology", "h100:8"), progress=False, plan_cache=cache, **options
    )


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.plans")}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    plan(make_step(), WEIGHTS, BATCH, cache=folder)
    assert len(entries(folder)) == 1
    return folder


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_):
        raise AssertionError("a search began")

    monkeypatch.setattr("jaxplan.search._planner.price", refuse)


def test_equal_plans_come_back_without_a_search(cache: Path, no_search):
    found = plan(make_step(), WEIGHTS, BATCH, cache=cache)
    assert found.search_seconds is not None
    assert found.fastest().lowering.homes  # decided when it is asked for
    with pytest.raises(AssertionError, match="a search began"):
        found.what_if(bandwidth=2.0)  # another machine


def test_plans_from_disk_are_those_of_the_search(cache: Path):
    searched = plan(make_step(), WEIGHTS, BATCH, cache=False)
    kept = plan(make_step(), WEIGHTS, BATCH, cache=cache)
    assert json.dumps(kept.to_json(), sort_keys=True) == json.dumps(searched.to_json(), sort_keys=True)


@pytest.mark.parametrize(
    "changed",
    [
        lambda cache: plan(make_step(rate=0.2), WEIGHTS, BATCH, cache=cache),
        lambda cache: plan(make_step(table=TABLE * 2), WEIGHTS, BATCH, cache=cache),
        lambda cache: plan(make_step(), WEIGHTS, BATCH, cache=cache, topology="h100:4"),
        lambda cache: plan(make_step(), WEIGHTS, BATCH, cache=cache, topology="a100:8"),
        lambda cache: plan(make_step(), WEIGHTS, BATCH, cache=cache, memory="1GiB"),
        lambda cache: plan(make_step(), WEIGHTS, BATCH, cache=cache, solver="pase"),
        lambda cache: plan(make_step(), WEIGHTS, BATCH, cache=cache, remat=False),
        lambda cache: plan(make_step(), WEIGHTS, BATCH, cache=cache, donate_argnums=()),
        lambda cache: plan(make_step(), WEIGHTS, BATCH, cache=cache, pins={"batch": jaxplan.Split(2)}),
        lambda cache: plan(
            make_step(), WEIGHTS, BATCH, cache=cache, references={"mine": {"x": PartitionSpec("n0")}}, axes={"n0": 8}
        ),
        lambda cache: plan(make_step(), WEIGHTS, jax.ShapeDtypeStruct((32, 64), jnp.float32), cache=cache),
        lambda cache: plan(make_step(), WEIGHTS, BATCH.update(dtype=jnp.bfloat16), cache=cache),
    ],
)
def test_whatever_a_search_depends_on_makes_another_entry(cache: Path, changed):
    before = entries(cache)
    changed(cache)
    assert len(entries(cache) - before) == 1


def test_a_rule_of_ones_own_makes_another_entry(cache: Path, monkeypatch):
    from jaxplan.ir import _registry
    from jaxplan.ir.rules._opaque import whole_rule

    before = entries(cache)
    monkeypatch.setitem(_registry._RULES, "dot_general", whole_rule)
    monkeypatch.setattr(_registry, "_MEMO", {})
    plan(make_step(), WEIGHTS, BATCH, cache=cache)
    assert len(entries(cache) - before) == 1


def test_shardings_are_told_apart_by_mesh_and_spec():
    from jaxplan.search._kept_plans import UnkeyedError, _text

    wide, tall = AbstractMesh((8, 1), ("a", "b")), AbstractMesh((4, 2), ("a", "b"))
    of = [NamedSharding(mesh, spec) for mesh in (wide, tall) for spec in (PartitionSpec("a"), PartitionSpec("b"))]
    of += [of[0].with_memory_kind("pinned_host")]
    assert len({_text((sharding, None)) for sharding in of}) == 5
    assert _text({"x": [1, 2.0]}) != _text({"x": (1, 2.0)})
    with pytest.raises(UnkeyedError):
        _text({"x": object()})


@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 500])
def test_a_torn_entry_is_a_warning_a_search_and_an_entry_again(tmp_path: Path, caplog, content):
    _log.forget()
    plan(make_step(), WEIGHTS, BATCH, cache=tmp_path)
    (name,) = entries(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:100] + content)
    with caplog.at_level(logging.WARNING, "jaxplan"):
        plan(make_step(), WEIGHTS, BATCH, cache=tmp_path)
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "damaged" in caplog.text
    assert (tmp_path / name).read_bytes() == whole


def test_another_process_finds_the_plans_and_a_decorated_step_runs(tmp_path: Path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import os, sys, jax, jax.numpy as jnp, jaxplan
        jax.config.update("jax_platforms", "cpu"); jax.config.update("jax_num_cpu_devices", 4)
        if sys.argv[1] == "second":
            import jaxplan.search._planner as planner
            def refuse(*_): raise AssertionError("a search began")
            planner.price = refuse
        from flax.training.train_state import TrainState
        import optax
        padding = [object() for _ in range(100 if sys.argv[1] == "second" else 1)]  # other addresses
        @jaxplan.auto(topology="cpu:4")
        def step(state, x):
            return state.apply_gradients(grads=jax.grad(lambda p: jnp.mean(state.apply_fn(p, x) ** 2))(state.params))
        params = {"w": jnp.ones((64, 32))}
        state = TrainState.create(apply_fn=lambda p, x: x @ p["w"], params=params, tx=optax.adam(1e-3))
        print(float(step(state, jnp.ones((16, 64))).params["w"].sum()), step.plan.summary)
        """)
    )
    said = []
    for which in ("first", "second"):
        run = subprocess.run(
            [sys.executable, str(tmp_path / "train.py"), which],
            env={**os.environ, "JAXPLAN_CACHE_DIR": str(tmp_path / "plans")},
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        said.append(run.stdout)
    assert said[0] == said[1]


def test_no_folder_keeps_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("JAXPLAN_CACHE_DIR", str(tmp_path))
    jaxplan.plan(make_step(), WEIGHTS, BATCH, topology="h100:8", progress=False, plan_cache=False)
    assert not entries(tmp_path)
    jaxplan.plan(make_step(), WEIGHTS, BATCH, topology="h100:8", progress=False)
    assert len(entries(tmp_path)) == 1


def test_a_search_cut_short_is_not_kept(tmp_path: Path, caplog):
    with caplog.at_level(logging.WARNING, "jaxplan"):
        found = plan(make_step(), WEIGHTS, BATCH, cache=tmp_path, time_limit=1e-9)
    assert not entries(tmp_path)
    assert any("time_limit ended the search" in note for note in found.notes) and "time_limit" in caplog.text
    assert len(found) and set(found.references) >= {"data"}


def test_a_long_time_limit_changes_no_plan(cache: Path):
    limited = plan(make_step(), WEIGHTS, BATCH, cache=cache, time_limit=1000)
    free = plan(make_step(), WEIGHTS, BATCH, cache=cache)
    assert limited.to_json() == free.to_json()


@pytest.mark.parametrize("option", [{"time_limit": 0}, {"time_limit": "3"}, {"plan_cache": True}, {"plan_cache": 3}])
def test_bad_values_are_refused(option):
    with pytest.raises(jaxplan.errors.ArgumentError, match=next(iter(option))):
        jaxplan.plan(make_step(), WEIGHTS, BATCH, topology="h100:8", **option)
