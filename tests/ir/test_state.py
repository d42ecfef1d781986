"""State, judged on small steps with successors that are known by reading them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.flatten_util import ravel_pytree

import jaxplan
from benchmarks import state_forms, state_pairs
from benchmarks.lowering._optimizers import subject_of
from jaxplan.ir import Program, trace


def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


PARAMS = {"w": shape(4, 4), "b": shape(4)}
X = shape(8, 4)


def gradient(params: Any, x: jax.Array) -> Any:
    return jax.grad(lambda p: jnp.mean(jnp.sin(x @ p["w"] + p["b"]) ** 2))(params)


def sgd(params: Any, x: jax.Array) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient(params, x))


def average(ema: Any, params: Any) -> Any:
    return jax.tree.map(lambda e, p: 0.9 * e + 0.1 * p, ema, params)


def successors(program: Program) -> dict[str, str]:
    return {program.in_paths[pair.input]: program.out_paths[pair.output] for pair in program.pairs}


def donated(program: Program) -> set[str]:
    return {path[:3] for path, given in zip(program.in_paths, program.donated, strict=True) if given}


def place(source: str, target: str) -> dict[str, str]:
    """Leaves of a tree like `PARAMS`, by the prefixes of where it is passed and returned."""
    return {f"{source}['{name}']": f"{target}['{name}']" for name in PARAMS}


# order and structure


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_each_tree_is_paired_with_its_own_successor_in_any_order(order: tuple[int, ...]) -> None:
    """Parameters, their average and a momentum are trees of equal shapes."""

    def step(params: Any, ema: Any, momentum: Any, x: jax.Array) -> Any:
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient(params, x))
        params = jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum)
        results = params, average(ema, params), momentum
        return tuple(results[k] for k in order)

    program = trace(step, (PARAMS, PARAMS, PARAMS, X))
    expected: dict[str, str] = {}
    for target, source in enumerate(order):
        expected |= place(f"[{source}]", f"[{target}]")
    assert successors(program) == expected
    assert donated(program) == {"[0]", "[1]", "[2]"}


def test_two_networks_of_equal_shapes_are_told_apart() -> None:
    def step(first: Any, second: Any, x: jax.Array) -> Any:
        return sgd(second, x @ first["w"]), sgd(first, x @ second["w"])

    program = trace(step, (PARAMS, PARAMS, X))
    assert successors(program) == place("[0]", "[1]") | place("[1]", "[0]")


@pytest.mark.parametrize("donated_by_name", [0, 1])
def test_an_argument_donated_by_name_is_the_one_that_is_replaced(donated_by_name: int) -> None:
    """An average of two trees is as much the successor of one as of the other."""
    program = trace(average, (PARAMS, PARAMS), donate_argnums=(donated_by_name,))
    assert successors(program) == place(f"[{donated_by_name}]", "")
    assert donated(program) == {f"[{donated_by_name}]"}


@pytest.mark.parametrize("mean", [average, lambda policy, target: average(target, policy)])
def test_a_mean_of_two_trees_takes_neither_from_the_caller(mean: Any) -> None:
    """`optax.incremental_update(policy, target, 0.1)`: nothing in the step says which of the two is replaced."""
    program = trace(lambda policy, target: mean(policy, target), (PARAMS, PARAMS))
    assert successors(program) == place("[0]", "")
    assert donated(program) == set()


def test_a_mean_beside_the_other_tree_takes_both() -> None:
    """A policy that is trained and its target: the policy has a successor of its own."""

    def step(policy: Any, target: Any, x: jax.Array) -> Any:
        new = sgd(policy, x)
        return new, jax.tree.map(lambda p, t: 0.1 * p + 0.9 * t, policy, target)

    program = trace(step, (PARAMS, PARAMS, X))
    assert successors(program) == place("[0]", "[0]") | place("[1]", "[1]")
    assert donated(program) == {"[0]", "[1]"}


def test_updates_given_as_an_argument_do_not_keep_the_parameters() -> None:
    program = trace(lambda p, g: jax.tree.map(lambda p, g: p - 0.1 * (g + 0.01 * p), p, g), (PARAMS, PARAMS))
    assert successors(program) == place("[0]", "")
    assert donated(program) == {"[0]"}


def test_an_argument_may_be_returned_in_parts_and_under_other_keys() -> None:
    def step(state: Any, x: jax.Array) -> Any:
        return {"loss": jnp.sum(x), "new": sgd(state["params"], x), "count": state["count"] + 1}

    program = trace(step, ({"params": PARAMS, "count": shape(dtype=jnp.int32)}, X))
    assert successors(program) == place("[0]['params']", "['new']") | {"[0]['count']": "['count']"}
    assert donated(program) == {"[0]"}


def test_a_keyword_argument_has_its_name_as_a_key() -> None:
    def step(x: jax.Array, *, weights: jax.Array, scale: jax.Array) -> Any:
        return {"weights": weights - x.sum(0), "other": scale * 2}

    program = trace(step, (X,), {"weights": shape(4), "scale": shape(3)})
    assert successors(program) == {"['weights']": "['weights']", "['scale']": "['other']"}
    assert program.donated == (False, False, True)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_frozen_tree_among_trained_ones_of_its_shapes_moves_nothing(order: tuple[int, ...]) -> None:
    """Returned unchanged and in any order, it is no past value of another."""

    def step(state: Any, x: jax.Array) -> Any:
        params = sgd(state["params"], x + x @ state["frozen"]["w"])
        results = params, average(state["ema"], params), state["frozen"]
        return tuple(results[k] for k in order)

    program = trace(step, ({"params": PARAMS, "ema": PARAMS, "frozen": PARAMS}, X))
    expected: dict[str, str] = {}
    for target, source in enumerate(order):
        expected |= place(f"[0]['{('params', 'ema', 'frozen')[source]}']", f"[{target}]")
    assert successors(program) == expected
    assert donated(program) == {"[0]"}


# data flow


@pytest.mark.parametrize(
    "step",
    [
        lambda c, x: jax.lax.dynamic_update_slice(c, x[None], (2, 0)),
        lambda c, x: c.at[jnp.array([1, 3])].set(0.0),
        lambda c, x: jnp.concatenate([c[1:], x[None]]),
        lambda c, x: jnp.roll(c, 1, axis=0) + c,
        lambda c, x: jnp.where(x > 0, 0.0, c),
        lambda c, x: jax.lax.cond(x[0] > 0, lambda c: c, jnp.zeros_like, c),
        lambda c, x: jax.lax.fori_loop(0, 3, lambda _, c: c * x, c),
        lambda c, x: jax.lax.scan(lambda c, _: (jnp.tanh(c @ c.T @ c), None), c, None, length=2)[0],
        lambda c, x: jax.lax.scan(lambda s, row: (s, row + x), 0.0, c)[1],
        lambda c, x: jnp.fft.ifft(jnp.fft.fft(c, axis=0) * 2, axis=0).real,
        lambda c, x: (c.T * 2).T,
        lambda c, x: ravel_pytree({"a": c[:1] * 2, "b": c[1:] * 3})[0].reshape(c.shape),
        lambda c, x: jax.vmap(lambda row: row.at[0].add(1.0))(c),
        lambda c, x: c[jnp.argsort(c[:, 0])],
        lambda c, x: jax.checkpoint(jnp.sin)(c),
        lambda c, x: c,
    ],
)
def test_element_wise_results_succeed_an_array(step: Any) -> None:
    assert trace(step, (shape(6, 4), shape(4))).aliases == {0: 0}


@pytest.mark.parametrize(
    "step",
    [
        lambda c, w: c @ w,
        lambda c, w: c.T,
        lambda c, w: jnp.broadcast_to(c.sum(0), c.shape),
        lambda c, w: jnp.sin(w) + c.mean(),
        lambda c, w: jnp.zeros_like(c),
    ],
)
def test_results_across_elements_do_not_succeed_it(step: Any) -> None:
    assert 0 not in trace(step, (shape(4, 4), shape(4, 4))).aliases.values()


def test_ravelled_parameters_are_state() -> None:
    tx = optax.adam(1e-3)
    vector, unravel = ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape), PARAMS))
    opt = jax.eval_shape(tx.init, vector)

    def step(vector: jax.Array, opt: Any, x: jax.Array) -> Any:
        updates, opt = tx.update(ravel_pytree(gradient(unravel(vector), x))[0], opt, vector)
        return opt, optax.apply_updates(vector, updates)

    program = trace(step, (vector, opt, X))
    assert successors(program) == {
        "[0]": "[1]",
        "[1][0].count": "[0][0].count",
        "[1][0].mu": "[0][0].mu",
        "[1][0].nu": "[0][0].nu",
    }
    assert program.inputs[0] in program.state
    assert donated(program) == {"[1]"}  # the vector is a bare array


@pytest.mark.parametrize(
    "tx",
    [
        optax.apply_if_finite(optax.adam(1e-3), 3),
        optax.MultiSteps(optax.adam(1e-3), 4),
        optax.optimistic_gradient_descent(1e-2),  # keeps the last gradient, which no path leads to
    ],
    ids=["apply_if_finite", "MultiSteps", "optimistic_gradient_descent"],
)
def test_wrappers_of_optimizers_are_state_as_a_whole(tx: Any) -> None:
    def step(state: Any, x: jax.Array) -> Any:
        params, opt = state
        updates, opt = tx.update(gradient(params, x), opt, params)
        return jnp.sum(x), (optax.apply_updates(params, updates), opt)

    program = trace(step, ((PARAMS, jax.eval_shape(tx.init, PARAMS)), X))
    assert successors(program) == {path: "[1]" + path[3:] for path in program.in_paths if path != "[1]"}
    assert donated(program) == {"[0]"}


def test_many_steps_in_one_call() -> None:
    def step(params: Any, key: jax.Array, xs: jax.Array) -> Any:
        def body(carry: Any, x: jax.Array) -> Any:
            params, key = carry
            key, noise = jax.random.split(key)
            return (sgd(params, x + jax.random.normal(noise, x.shape)), key), x.sum()

        (params, key), losses = jax.lax.scan(body, (params, key), xs)
        return losses, (key, params)

    program = trace(step, (PARAMS, jax.eval_shape(lambda: jax.random.key(0)), shape(5, 8, 4)))
    assert successors(program) == place("[0]", "[1][1]") | {"[1]": "[1][0]"}


# values that move, and copies


def test_a_window_of_past_values_keeps_its_places() -> None:
    """One layout for all of them: each output is the argument that the next call has one place earlier."""
    tree = trace(
        lambda s: {"now": 2 * s["now"] - s["before"], "before": s["now"]},
        ({"before": shape(6), "now": shape(6)},),
    )
    assert successors(tree) == {"[0]['before']": "['before']", "[0]['now']": "['now']"}
    bare = trace(lambda before, now: (now, 2 * now - before), (shape(6), shape(6)))
    assert bare.aliases == {0: 0, 1: 1}
    listed = trace(lambda h: [*h[1:], h[-1] * 2], ([shape(6)] * 3,))
    assert listed.aliases == {0: 0, 1: 1, 2: 2}
    swapped = trace(lambda a, b: (b, a), (shape(6), shape(6)))
    assert swapped.aliases == {0: 0, 1: 1}
    assert not any(bare.donated) and not any(swapped.donated)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
def test_bare_past_values_are_told_by_distance(order: tuple[int, ...]) -> None:
    """The update succeeds the value that it is nearest to, and the copy of that value takes the oldest one's place."""
    names = [("now", "before", "average")[k] for k in order]

    def step(*args: Any) -> Any:
        old = dict(zip(names, args, strict=True))
        now = old["now"] + jnp.tanh(0.5 * (old["now"] - old["before"]))
        new = {"now": now, "before": old["now"], "average": 0.9 * old["average"] + 0.1 * now}
        return tuple(new[name] for name in ("before", "average", "now"))

    program = trace(step, tuple(shape(6) for _ in names))
    assert {names[i]: ("before", "average", "now")[o] for o, i in program.aliases.items()} == {n: n for n in names}


def test_measurements_that_are_overwritten_are_state_and_a_batch_of_their_keys_is_not() -> None:
    def step(params: Any, measured: Any, x: Any, is_read: bool = False) -> Any:
        grads = gradient(params, x + measured["seen"]["norm"] if is_read else x)
        return sgd(params, x), {"seen": {"norm": optax.tree.norm(grads)}}

    args = (PARAMS, {"seen": {"norm": shape()}}, X)
    program = trace(step, args)
    assert successors(program) == place("[0]", "[0]") | {"[1]['seen']['norm']": "[1]['seen']['norm']"}
    assert donated(program) == {"[0]", "[1]"}
    assert donated(trace(lambda *args: step(*args, is_read=True), args)) == {"[0]"}


def test_a_frozen_network_returned_in_front_of_the_trained_one_is_its_own_successor() -> None:
    program = trace(lambda frozen, params, x: (sgd(params, x), frozen), (PARAMS, PARAMS, X))
    assert successors(program) == place("[0]", "[1]") | place("[1]", "[0]")
    assert donated(program) == {"[1]"}


def test_copies_of_state_take_the_place_of_their_structure() -> None:
    low = {name: shape(*leaf.shape, dtype=jnp.bfloat16) for name, leaf in PARAMS.items()}

    def step(low: Any, params: Any, target: Any, x: jax.Array) -> Any:
        grads = gradient(low, x.astype(jnp.bfloat16) + (x @ target["w"]).astype(jnp.bfloat16))
        params = jax.tree.map(lambda p, g: p - g.astype(p.dtype), params, grads)
        return jax.tree.map(lambda p: p.astype(jnp.bfloat16), params), params, params

    program = trace(step, (low, PARAMS, PARAMS, X))
    assert successors(program) == place("[0]", "[0]") | place("[1]", "[1]") | place("[2]", "[2]")
    assert donated(program) == {"[0]", "[1]", "[2]"}


# arguments that stay the caller's


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x["x"] - x["x"].mean(),  # a batch, centred
        lambda x: {"x": jnp.tanh(x["x"] @ jnp.ones((4, 4)))},  # predictions under the batch's key
        lambda x: {"x": jnp.sin(x["x"])[:4], "y": x["y"]},
        lambda x: (x["y"] + 1, x),  # the batch itself
        lambda x: {"x": x["x"] + 1},  # in part
    ],
)
def test_a_batch_is_not_taken_away(step: Any) -> None:
    assert not any(trace(step, ({"x": X, "y": shape(8)},)).donated)


@pytest.mark.parametrize(
    "changed",
    [
        lambda x, key: x - x.mean(axis=0),  # normalised
        lambda x, key: x + jax.random.normal(key, x.shape),  # augmented
        lambda x, key: jax.random.permutation(key, x),
        lambda x, key: jnp.where(jnp.isnan(x), 0, x),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_a_batch_that_comes_back_changed_is_no_state(changed: Any, trains: bool) -> None:
    """It evolves with nothing but itself and random numbers, and is read together with parameters."""

    def step(params: Any, batch: Any, key: Any) -> Any:
        x = changed(batch["x"], key)
        new = sgd(params, x) if trains else {}
        return new, (x @ params["w"]).sum(), {"x": x}

    program = trace(step, (PARAMS, {"x": X}, jax.random.key(0)))
    assert program.donated[program.in_paths.index("[1]['x']")] is False
    assert program.inputs[program.in_paths.index("[1]['x']")] not in program.state


def _centred(state: Any) -> jax.Array:
    return state["x"] - state["x"].mean(axis=0)


@pytest.mark.parametrize(
    ("advance", "is_donated"),
    [
        (lambda s: {"x": _centred(s), "count": s["count"] + 1, "key": s["key"], "v": s["v"]}, True),
        (lambda s: {**s, "x": _centred(s), "key": jax.random.split(s["key"])[0]}, True),
        (lambda s: {**s, "x": s["x"] + 0.1 * s["v"], "v": s["v"] - 0.1 * s["x"]}, False),
    ],
    ids=["a count", "a random key", "two arrays that make each other"],
)
def test_a_simulation_beside_frozen_parameters_is_state(advance: Any, is_donated: bool) -> None:
    """Read by a policy and computed of itself alone; of coupled arrays alone, the caller may keep the old ones."""
    state = {"x": X, "v": X, "count": shape(dtype=jnp.int32), "key": jax.random.key(0)}

    def step(params: Any, state: Any) -> Any:
        return (state["x"] @ params["w"]).sum(), advance(state)

    program = trace(step, (PARAMS, state))
    place = program.in_paths.index("[1]['x']")
    assert program.inputs[place] in program.state
    assert program.donated[place] is is_donated


@pytest.mark.parametrize(
    "cell",
    [
        lambda p, h, x: jnp.tanh(h @ p["w"] + x @ p["u"]),
        lambda p, h, x: jnp.tanh(jnp.concatenate([h, x], axis=1) @ p["wu"] + p["b"]),
        lambda p, h, x: jax.nn.relu(jax.lax.dot(h, p["w"]) * (x @ p["u"])),
    ],
)
def test_a_hidden_state_is_paired_by_its_place(cell: Any) -> None:
    """No element of it leads to its successor element by element, yet it meets the next input on the way."""
    params = {"w": shape(4, 4), "u": shape(4, 4), "wu": shape(8, 4), "b": shape(4)}

    def step(params: Any, state: Any, x: Any) -> Any:
        h = cell(params, state["h"], x)
        return {"h": h}, h.sum()

    program = trace(step, (params, {"h": shape(8, 4)}, shape(8, 4)))
    assert successors(program) == {"[1]['h']": "[0]['h']"}
    assert not any(program.donated)


def test_predictions_with_a_bias_are_no_hidden_state() -> None:
    def step(params: Any, batch: Any) -> Any:
        return {"x": jnp.tanh(batch["x"] @ params["w"] + params["b"])}

    assert not successors(trace(step, ({"w": shape(4, 4), "b": shape(4)}, {"x": shape(8, 4)})))


def test_predictions_do_not_make_a_batch_state() -> None:
    def step(params: Any, batch: Any) -> Any:
        predicted = batch["x"] @ params["w"] + params["b"]
        return sgd(params, batch["x"]), {"x": predicted, "y": batch["y"]}

    program = trace(step, (PARAMS, {"x": X, "y": shape(8)}))
    assert "[1]['x']" not in successors(program)
    assert donated(program) == {"[0]"}


@pytest.mark.parametrize("name", ["optax.zero_nans", "optax.scale_by_amsgrad"])
def test_transformations_in_random_forms(name: str) -> None:
    subject, rng = subject_of(name), random.Random(5)
    case = state_pairs.case_of(subject.step, *subject.args)
    for form in rng.sample(sorted(state_forms.FORMS), 4):
        assert state_pairs.differences(case, form, rng) == []


def test_two_forms_have_one_frontier() -> None:
    expected = state_forms.find("averages", "flat", "cpu:4")
    assert state_forms.find("averages", "renamed", "cpu:4").differs(expected) == []
    assert len(expected.donated) == 9


def test_explain_lists_the_arguments_that_come_back() -> None:
    def step(params: Any, vector: jax.Array, frozen: Any, x: jax.Array) -> Any:
        return sgd(params, x + frozen["w"].sum()), {"v": vector * 2}, frozen

    plan = jaxplan.plan(step, PARAMS, shape(6), PARAMS, X, topology="cpu:2", progress=False).fastest()
    text = plan.explain()
    assert "params -> result[0], 2 leaves: donated\n" in text
    assert (
        "vector -> result[1]['v']: kept, nothing but shape and data flow says that it is state; donate_argnums" in text
    )
    assert "frozen -> result[2], 2 leaves: kept, it comes back unchanged\n" in text
    assert "not returned: x" in text
