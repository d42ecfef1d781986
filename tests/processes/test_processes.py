"""Two processes of four devices run one plan; where they differ, both say so at once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import jaxplan
from tests.processes import pair, scenarios


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def both(folder) -> list[dict[str, Any]]:
    """The results of one pair of processes for all quick scenarios."""
    outcomes = pair.run_pair("training", "parts", "checkpoints", "halves", "uneven", "different", folder=folder)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.text[-5000:]
        for result in outcome.results.values():
            assert "traceback" not in result, result["traceback"]
    return [outcome.results for outcome in outcomes]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """The same training by `jax.jit` on one device."""
    state, losses, step = scenarios.make_state(), [], jax.jit(scenarios.train)
    for number in range(scenarios.STEPS):
        state, loss = step(state, scenarios.make_batch(number))
        losses.append(float(loss))
    return {"losses": losses, "up": state["params"]["up"][:4, ::16], "key": jax.random.key_data(state["key"])}


def errors(results: list[dict[str, Any]], scenario: str, name: str | None = None) -> Any:
    """The error of a scenario, which both processes raised with one text, and soon."""
    found = [result[scenario] if name is None else result[scenario][name] for result in results]
    assert all(error is not None for error in found), found
    assert found[0]["text"] == found[1]["text"] and found[0]["type"] == found[1]["type"]
    assert max(error["seconds"] for error in found) < 60
    return found[0]


def test_two_processes_train_as_one_device_does(both, alone) -> None:
    for found in (results["training"] for results in both):
        np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-5)
        np.testing.assert_allclose(found["up"], alone["up"], rtol=1e-4, atol=1e-6)
        assert found["key"] == alone["key"].tolist()
        assert found["topology"] == "cpu:2x4" and found["is_split"] and found["counts"] == [1, 1]


def test_both_have_the_plan_of_the_first(both) -> None:
    first, second = (results["training"] for results in both)
    assert first["plan"] == second["plan"] and first["points"] == second["points"] > 1


def test_parts_of_a_batch_make_the_batch(both, alone) -> None:
    """Where the plan splits the batch over processes, and where it does not."""
    for results in both:
        for losses in results["parts"].values():
            np.testing.assert_allclose(losses, alone["losses"], rtol=1e-5)


def test_one_process_restores_what_two_have_saved(both, folder) -> None:
    """And the two restore it under another plan."""
    shapes = jax.eval_shape(scenarios.make_state), scenarios.make_batch(0)
    plan = jaxplan.plan(scenarios.train, *shapes, topology="cpu:8", memory="1GiB").leanest()
    expected = scenarios.checksum(plan.restore(folder)["params"]["up"])
    for results in both:
        assert results["checkpoints"] == {"is_moved": True, "checksums": [expected, expected]}


def test_halves_passed_as_the_batch_are_refused_by_name(both) -> None:
    error = errors(both, "halves")
    assert error["type"] == "ProcessError" and "[1]['x']" in error["text"] and "plan.batch" in error["text"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("rows", "batch['x'] has shape (7, 32) in process 1"), ("batches", "process 1 end after 2"), ("whole", "['y']")],
)
def test_uneven_batches_are_an_error_in_both(both, name, text) -> None:
    assert text in errors(both, "uneven", name)["text"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("options", "option choose"), ("code", "program that the step"), ("steps", "planning of evaluate")],
)
def test_different_programs_are_an_error_in_both(both, name, text) -> None:
    assert text in errors(both, "different", name)["text"]


@pytest.mark.slow
def test_differences_that_only_the_compiled_program_shows() -> None:
    results = [outcome.results for outcome in pair.run_pair("different_inside")]
    expected = {"shapes": "[1]['x']", "constants": "lowered program", "plans": "lowered program"}
    expected |= {"initialisers": "lowered program", "infeasible": "no plan fits"}
    for name, text in expected.items():
        assert text in errors(results, "different_inside", name)["text"]
    assert errors(results, "different_inside", "infeasible")["type"] == "InfeasibleError"


@pytest.mark.slow
def test_a_process_that_does_not_come_is_named_in_both() -> None:
    results = [outcome.results for outcome in pair.run_pair("absent")]
    assert "process 1 did not come" in errors(results, "absent")["text"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_process_ends_the_other(victim) -> None:
    port = pair.free_port()
    processes = [pair.start(rank, 2, port, f"killed_{victim}") for rank in range(2)]
    assert pair.outcome(processes[victim], timeout=120).exit_code == -9
    other = pair.outcome(processes[1 - victim], timeout=60)
    assert other.exit_code not in (0, -9) and "STEP 3" in other.text
