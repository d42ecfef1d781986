"""Plan files that earlier versions of jaxplan wrote: migrated, or refused with one error that says how to plan again.

`old_files/plan_N.json` was written by the last version with plans of schema version N, `plan_3_pooled.json` and
`plan_6.json` by the first of theirs; all are the plan ``data`` of `_step` on ``cpu:4``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.plans import _migrations
from tests.sampling import sampled

FOLDER = Path(__file__).parent / "old_files"
READ = ["plan_2", "plan_3_pooled", "plan_3", "plan_4", "plan_5", "plan_6"]


def _step(params: Any, x: Any, y: Any) -> Any:
    def loss_fn(params: Any) -> Any:
        h = jnp.tanh(x @ params["up"])
        return jnp.mean((h @ params["down"] - y) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params))


def _arguments() -> tuple[Any, Any, Any]:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(8, 16), (16, 4), (32, 8), (32, 4)]
    up, down, x, y = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    return {"up": up, "down": down}, x, y


@pytest.mark.parametrize("name", READ)
def test_an_old_plan_says_what_it_said(name: str) -> None:
    """Batch over 4 CPUs, gradients of 16 x 4 and 8 x 16 float32 reduced."""
    plan = jaxplan.load(FOLDER / f"{name}.json")
    assert isinstance(plan, jaxplan.Plan)
    in_words = "batch /4; state 1/1" if name < "plan_5" else "data 4"
    assert (plan.name, plan.summary, plan.memory_bytes) == ("data", in_words, 2944)
    assert [c.num_bytes for c in plan.prediction.collectives] == [256, 512]
    assert all(c.latency_share == 1.0 for c in plan.prediction.collectives)
    assert plan.in_specs["[1]"] == jax.sharding.PartitionSpec(("cpu0", "cpu1"), None)
    if name == "plan_6":
        assert plan.lowering.reshardings
        return
    with pytest.raises(jaxplan.PlanMismatchError, match="loaded without its program"):
        _ = plan.lowering


def test_an_old_plan_is_saved_in_the_present_schema(tmp_path: Path) -> None:
    plan = jaxplan.load(FOLDER / "plan_2.json")
    assert isinstance(plan, jaxplan.Plan)
    plan.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["version"] == _migrations.PLAN_VERSION
    again = jaxplan.load(tmp_path / "plan.json")
    assert isinstance(again, jaxplan.Plan) and again.to_json() == plan.to_json()


def _is_traced_as_it_was() -> bool:
    """Whether the step has the equations that it had when the files were written."""
    return "one_minus_square" not in str(jax.make_jaxpr(_step)(*_arguments()))


AS_IT_WAS = pytest.mark.skipif(
    not _is_traced_as_it_was(), reason="from JAX 0.12 on the derivative of tanh is `one_minus_square`: another program"
)


@AS_IT_WAS
@pytest.mark.parametrize("name", sampled(READ[:-4:-1]))
def test_an_old_plan_runs_where_the_groups_are_the_same(name: str) -> None:
    """From version 4 on the groups are those of today; before 6 the lowering is decided when the plan is bound."""
    arguments = _arguments()
    plan = jaxplan.load(FOLDER / f"{name}.json", _step, *arguments)
    assert isinstance(plan, jaxplan.Plan)
    for found, expected in zip(
        jax.tree.leaves(plan.jit(donate_argnums=())(*arguments)), jax.tree.leaves(_step(*arguments)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@AS_IT_WAS
def test_an_old_plan_of_other_groups_is_refused_with_its_step() -> None:
    with pytest.raises(jaxplan.PlanMismatchError, match=r"(?s)7 groups.*plan again with jaxplan.plan"):
        jaxplan.load(FOLDER / "plan_3.json", _step, *_arguments())


def test_plans_of_an_old_frontier_are_migrated() -> None:
    frontier = jaxplan.load(FOLDER / "frontier_2.json")
    assert isinstance(frontier, jaxplan.Frontier)
    assert len(frontier) == 1 and len(frontier.references) == 1


@pytest.mark.parametrize("version", [0, 1, _migrations.PLAN_VERSION + 1, "4", None, True])
def test_a_version_without_a_migration_is_refused(version: Any, tmp_path: Path) -> None:
    data = json.loads((FOLDER / "plan_1.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**data, "version": version}))
    with pytest.raises(jaxplan.PlanFileError, match=rf"(?s)version {version!r},.*fix: plan again with jaxplan.plan"):
        jaxplan.load(tmp_path / "plan.json")


def test_version_1_says_why_it_is_refused() -> None:
    with pytest.raises(jaxplan.PlanFileError, match="no dtypes and shapes of the arguments"):
        jaxplan.load(FOLDER / "plan_1.json")
