"""Steps that share state, planned together, run as on one device, and nothing that they share moves between calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.cli._main import main
from jaxplan.core._paths import keys
from jaxplan.plans._rows import leaf_rows
from tests import together_steps
from tests.sampling import sampled
from tests.together_steps import Together

ROUNDS = 2


@functools.cache
def planned(case: Callable[[], Together]) -> tuple[Together, Any]:
    """The case, and the leanest of its joint plans: these tiny arrays are split nowhere else."""
    together = case()
    return together, jaxplan.plan_together(together.steps, topology="cpu:8").leanest()


def run(together: Together, functions: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """All values by name after some rounds over the steps; each result replaces the value of its name."""
    values: dict[str, Any] = {}
    for name, (_, args) in together.steps.items():
        for key, value in zip(together.arguments[name], args, strict=True):
            if "." not in key:
                values.setdefault(key, jax.tree.map(jnp.copy, value))
    for name in list(together.steps) * ROUNDS:
        args = [functools.reduce(lambda tree, key: tree[key], of[1:], values[of[0]]) for of in (
            key.split(".") for key in together.arguments[name]
        )]  # fmt: skip
        found = functions[name](*args)
        keys = together.results[name]
        values.update(zip(keys, found if len(keys) > 1 else (found,), strict=True))
    return values


@pytest.mark.parametrize("case", sampled(together_steps.CASES, 3))
def test_steps_planned_together_run_as_on_one_device(case):
    together, joint = planned(case)
    alone = run(together, {name: jax.jit(step) for name, (step, _) in together.steps.items()})
    several = run(together, {name: plan.jit() for name, plan in joint.items()})
    assert any(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(several))
    for name in alone:
        for one, other in zip(jax.tree.leaves(alone[name]), jax.tree.leaves(several[name]), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("case", sampled(together_steps.CASES, 3))
def test_compiled_programs_take_shared_arrays_as_others_return_them(case):
    """Shardings of the compiled programs, at every path that two steps have in common."""
    together, joint = planned(case)
    at: dict[str, dict[str, Any]] = {}
    for name, (_, args) in together.steps.items():
        compiled = joint[name].jit().lower(*args).compile()
        paths = [row.path for row in leaf_rows(joint[name])]
        results = ["/".join(("result", *keys(path))) for path in joint[name].out_paths]
        inputs, outputs = compiled.input_shardings[0], compiled.output_shardings
        at[name] = {**dict(zip(paths, inputs, strict=True)), **dict(zip(results, outputs, strict=True))}
    assert joint.shared
    for shared in joint.shared:
        (first, path), *others = shared.items()
        rank = len(at[first][path].spec)
        for step, other in others:
            assert at[step][other].is_equivalent_to(at[first][path], rank), (shared, at[step][other])
    split = {path for of in joint.shared for step, path in of.items() if not at[step][path].is_fully_replicated}
    assert split


LIKE = (together_steps.accumulate_and_apply, together_steps.average, together_steps.two_networks)


@pytest.mark.parametrize("case", sampled(LIKE, 2))
def test_steps_decorated_like_the_first_keep_its_layout(case):
    """Shared arrays lie as in the first step, and results are as on one device."""
    together = case()
    (first, (step, _)), *others = together.steps.items()
    functions: dict[str, Any] = {first: jaxplan.auto(step, choose="leanest", topology="cpu:8", remat=False)}
    functions |= {name: jaxplan.auto(step, like=functions[first], remat=False) for name, (step, _) in others}
    alone = run(together, {name: jax.jit(step) for name, (step, _) in together.steps.items()})
    several = run(together, functions)
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(several), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    layouts = {
        name: dict(zip([row.path for row in leaf_rows(function.plan)], function.plan.input_shardings, strict=True))
        for name, function in functions.items()
    }
    split = 0
    for roots in together.shared:
        (step, root), *rest = sorted(roots, key=lambda of: of[0] != first)
        for path, layout in layouts[step].items():
            if path.startswith(f"{root}/"):
                split += any(layout.dims)
                for other, own in rest:
                    assert layouts[other][path.replace(root, own, 1)] == layout
    assert split
    assert all(function.counts.plans == 1 for function in functions.values())


def test_a_state_that_one_step_returns_is_not_copied_for_the_next():
    """The arrays that training returns are the ones that the average reads: placing them is the identity."""
    together, joint = planned(together_steps.average)
    _, args = together.steps["train"]
    params, _ = joint["train"].jit()(*jax.tree.map(jnp.copy, args))
    _, placed = joint["ema"].shard((together.steps["ema"][1][0], params))
    for given, taken in zip(jax.tree.leaves(params), jax.tree.leaves(placed), strict=True):
        assert pointers(given) == pointers(taken)


def test_each_plan_is_saved_and_runs_under_auto(tmp_path):
    together, joint = planned(together_steps.average)
    for name, (step, args) in together.steps.items():
        joint[name].save(tmp_path / f"{name}.json")
        decorated = jaxplan.auto(step, plan=tmp_path / f"{name}.json")
        decorated(*jax.tree.map(jnp.copy, args))
        assert decorated.plan.is_same_program(joint[name])


def test_a_joint_plan_is_saved_whole_and_runs_when_loaded(tmp_path):
    """The file alone gives the same table and specs; with the steps each of them runs, with the same results."""
    together, joint = planned(together_steps.train_and_evaluate)
    joint.save(tmp_path / "joint.json")
    again = jaxplan.load(tmp_path / "joint.json")
    assert again.to_json() == joint.to_json() and again.explain() == joint.explain()
    assert (again.time_seconds, again.memory_bytes) == (joint.time_seconds, joint.memory_bytes)
    traced = {name: jaxplan.trace(step, *args) for name, (step, args) in together.steps.items()}
    expected = run(together, {name: plan.jit() for name, plan in joint.items()})
    for steps in (together.steps, traced):
        bound = jaxplan.load(tmp_path / "joint.json", steps)
        assert list(bound) == list(joint)
        found = run(together, {name: plan.jit() for name, plan in bound.items()})
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_files_of_joint_plans_are_checked(tmp_path):
    together, joint = planned(together_steps.train_and_evaluate)
    path, one = tmp_path / "joint.json", tmp_path / "one.json"
    joint.save(path)
    joint["train"].save(one)
    step, args = together.steps["train"]
    with pytest.raises(jaxplan.PlanMismatchError, match="plans of several steps"):
        jaxplan.load(path, step, *args)
    with pytest.raises(jaxplan.PlanMismatchError, match="plans of several steps"):
        jaxplan.auto(step, plan=path)(*args)
    with pytest.raises(jaxplan.PlanMismatchError, match="plan of one step"):
        jaxplan.load(one, together.steps)
    with pytest.raises(jaxplan.PlanMismatchError, match="given:    test, train"):
        jaxplan.load(path, {"train": together.steps["train"], "test": together.steps["eval"]})
    with pytest.raises(jaxplan.PlanMismatchError, match="another program"):
        jaxplan.load(path, {"train": together.steps["eval"], "eval": together.steps["train"]})
    with pytest.raises(jaxplan.ArgumentError, match="given both"):
        jaxplan.load(path, together.steps, *args)
    data = joint.to_json()
    for broken in ({**data, "version": 99}, {**data, "steps": ["train"]}, {**data, "weights": {"train": "often"}}):
        with pytest.raises(jaxplan.PlanFileError):
            jaxplan.JointPlan.from_json(broken)


def test_the_command_line_shows_joint_plans(tmp_path, capsys):
    _, joint = planned(together_steps.train_and_evaluate)
    path = str(tmp_path / "joint.json")
    joint.save(path)
    for command, expected in (
        (["show", path], joint.explain()),
        (["show", path, "--choose", "eval"], jaxplan.load(path)["eval"].explain()),
        (["explain", path, "--choose", "train"], jaxplan.load(path)["train"].explain()),
    ):
        assert main(command) == 0
        assert capsys.readouterr().out.strip() == expected.strip()
    assert main(["explain", path]) == 2
    assert "--choose names one of them: train, eval" in capsys.readouterr().err


def pointers(array: jax.Array) -> list[int]:
    """Addresses of its pieces."""
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
