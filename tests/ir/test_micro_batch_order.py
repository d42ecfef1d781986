"""Micro-batches of a loop of Python run one after the other: their equations in turn, behind barriers."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.quality._forms import accumulated, accumulations
from benchmarks.quality.references import draw
from jaxplan.audit import compile_plan
from jaxplan.ir import CUT, Program, trace
from tests.sampling import sampled

NUMBER, PART = 4, 2
Params = dict[str, jax.Array]


def _loss(p: Params, x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.tanh(x @ p["up"]) @ p["down"])


def _scanned(p: Params, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda h, _: (jnp.tanh(h @ p["up"] @ p["down"]), None), x, None, length=3)[0].sum()


def gradients_listed(p: Params, x: jax.Array) -> Params:
    parts = [jax.grad(_loss)(p, x[i * PART : (i + 1) * PART]) for i in range(NUMBER)]
    return jax.tree.map(lambda *g: sum(g) / NUMBER, *parts)


def gradients_scaled(p: Params, x: jax.Array) -> Params:
    parts = [jax.grad(_loss)(p, part) for part in jnp.split(x, NUMBER)]
    return jax.tree.map(lambda *g: sum(h / NUMBER for h in g), *parts)


def gradient_of_the_sum(p: Params, x: jax.Array) -> Params:
    """All forward passes stand before all backward passes."""
    return jax.grad(lambda p: sum(_loss(p, part) for part in jnp.split(x, NUMBER)))(p)


def loops_inside(p: Params, x: jax.Array) -> Params:
    parts = [jax.grad(_scanned)(p, part) for part in jnp.split(x, NUMBER)]
    return jax.tree.map(lambda *g: sum(g), *parts)


def of_a_computed_batch(p: Params, x: jax.Array) -> Params:
    return gradients_listed(p, x * 2.0)


FORMS = (gradients_listed, gradients_scaled, gradient_of_the_sum, loops_inside, of_a_computed_batch)


def _traced(gradients: Callable[..., Params]) -> Program:
    def step(p: Params, x: jax.Array) -> Params:
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, gradients(p, x))

    p = {"up": np.ones((3, 5), np.float32), "down": np.ones((5, 3), np.float32)}
    return trace(step, (p, np.ones((NUMBER * PART, 3), np.float32)), {})


def _numbers(program: Program) -> list[frozenset[int]]:
    """Per equation the micro-batches that it is computed of; barriers and reads of micro-batches are left out."""
    stacks = {eqn.results[0] for eqn in program.equations if eqn.name == CUT}
    of: dict[int, frozenset[int]] = {}
    found: list[frozenset[int]] = []
    for eqn in program.equations:
        numbers = frozenset[int]().union(*(of.get(t, frozenset()) for t in eqn.operands))
        is_read = eqn.name == "slice" and eqn.operands[0] in stacks
        if is_read:
            numbers = frozenset([int(eqn.params["start_indices"][0])])
        of.update((t, numbers) for t in eqn.results)
        if numbers and not is_read and eqn.name != "optimization_barrier":
            found.append(numbers)
    return found


@pytest.mark.parametrize("gradients", FORMS, ids=lambda form: form.__name__)
def test_each_micro_batch_is_done_before_the_next_begins(gradients: Callable[..., Params]) -> None:
    numbers = _numbers(_traced(gradients))
    begun = list(dict.fromkeys(next(iter(found)) for found in numbers if len(found) == 1))
    assert set(begun) == set(range(NUMBER))
    ends = [max(i for i, found in enumerate(numbers) if found == {number}) for number in begun]
    starts = [numbers.index(frozenset([number])) for number in begun]
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))


@pytest.mark.parametrize("gradients", FORMS, ids=lambda form: form.__name__)
def test_a_barrier_holds_the_sums_before_each_but_the_first(gradients: Callable[..., Params]) -> None:
    program = _traced(gradients)
    barriers: dict[int, list[tuple[int, ...]]] = {}
    for eqn in program.equations:
        if eqn.name == "optimization_barrier":
            barriers.setdefault(id(eqn.origin), []).append(program.tensors[eqn.operands[0]].shape)
    assert len(barriers) == NUMBER - 1
    for shapes in barriers.values():
        assert shapes.count((3, 5)) == shapes.count((5, 3)) == 1  # one sum for each parameter, no gradient beside it
        waiting = (1, PART, 3) if gradients is of_a_computed_batch else (NUMBER * PART, 3)
        assert [shape for shape in shapes if shape not in ((3, 5), (5, 3), ())] == [waiting]


def test_loops_keep_their_equations() -> None:
    program = _traced(loops_inside)
    assert len(program.regions) == 2 * NUMBER  # forward and backward of each
    for region in program.regions:
        (first, stop), *others = region.ranges
        assert not others
        assert {eqn.index for eqn in program.equations if eqn.region == region.index} == set(range(first, stop))
        entries, boundary = {e for body in region.entries for e in body}, set(range(region.start, region.stop))
        assert boundary == {*entries, *range(first, stop), *region.exits}


def test_steps_without_micro_batches_are_left_alone() -> None:
    def step(p: Params, x: jax.Array) -> jax.Array:
        return (x[:4] @ p["up"]).sum() - (x[4:] @ p["up"]).sum()

    p = {"up": np.ones((3, 5), np.float32)}
    program = trace(step, (p, np.ones((NUMBER * PART, 3), np.float32)), {})
    assert not any(eqn.name in (CUT, "optimization_barrier") for eqn in program.equations)


@pytest.mark.slow
@pytest.mark.gpu_aot
@pytest.mark.parametrize("model", sampled(["perceptron", "convolutions"]))
def test_the_compiled_step_needs_the_memory_of_a_loop(model: str) -> None:
    """Without the order, eight micro-batches took 2.6 and 1.8 times as much."""
    loss, params, batch = accumulated()[model]
    forms = accumulations(loss, params, 8, batch)
    loop, python = (draw(forms[form], "h100:8", ("data",))["data"] for form in ("reshape", "Python"))
    compiled = compile_plan(python)
    assert compiled.memory_bytes <= 1.01 * compile_plan(loop).memory_bytes
    assert compiled.memory_bytes == pytest.approx(python.memory_bytes, rel=0.05)
    assert python.time_seconds == pytest.approx(loop.time_seconds, rel=0.05)
    text = compiled.hlo_text or ""
    sums = [line for line in text.splitlines() if " all-reduce(" in line or " all-reduce-start(" in line]
    assert 1 <= len(sums) <= 2, "gradients are summed over the devices once, behind the last micro-batch"
