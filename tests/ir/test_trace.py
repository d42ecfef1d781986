"""Capture: provenance, inlining, dead code, aliases, donation and phases, on steps to count by hand."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import jax
import jax.custom_batching
import jax.custom_derivatives
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.core._compat import bind_like
from jaxplan.ir import Program, trace

F32 = jnp.float32


def shape(*dims: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def names(program: Program) -> Counter[str]:
    return Counter(e.name for e in program.equations)


def evaluate(program: Program, *leaves: Any) -> list[Any]:
    """Run the equations one by one, as they stand."""
    env = dict(zip(program.inputs, leaves, strict=True))
    env.update({t.index: t.value for t in program.tensors if t.kind in ("literal", "constant")})
    for eqn in program.equations:
        operands = [env[t] for t in eqn.operands]
        env.update(
            zip(eqn.results, bind_like(eqn.origin, eqn.primitive, dict(eqn.params), operands, eqn.name_stack))
        )
    return [env[t] for t in program.outputs]


# provenance


def test_paths_are_those_of_the_users_arguments() -> None:
    def step(state: Any, flag: bool, x: jax.Array, *, scale: jax.Array) -> Any:
        assert flag is True
        return {"new": state["w"] * scale, "y": x}, [x]

    program = trace(step, ({"w": shape(3)}, True, shape(4)), {"scale": shape()}, static_argnums=(1,))
    assert program.in_paths == ("[0]['w']", "[2]", "['scale']")
    assert program.out_paths == ("[0]['new']", "[0]['y']", "[1][0]")
    assert program.static_argnums == (1,)
    assert [program.tensors[t].path for t in program.inputs] == list(program.in_paths)


def test_name_stacks_run_through_inlined_calls() -> None:
    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        with jax.named_scope("inside"):
            return jnp.sin(x)

    def step(x: jax.Array) -> jax.Array:
        with jax.named_scope("outside"):
            return inner(x)

    (eqn,) = trace(step, (shape(3),)).equations
    assert eqn.name == "sin"
    assert eqn.name_stack.startswith("outside/")
    assert eqn.name_stack.endswith("inside")


# inlining


@jax.custom_jvp
def _cube(x: jax.Array) -> jax.Array:
    return x * x * x


@_cube.defjvp
def _cube_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    return _cube(x), 3 * x * x * dx


@jax.custom_vjp
def _double(x: jax.Array) -> jax.Array:
    return x + x


_double.defvjp(lambda x: (x + x, None), lambda _, g: (2 * g,))


@pytest.mark.parametrize("fn", [_cube, _double, jax.jit(jnp.tanh), jax.nn.relu, jax.nn.gelu, jax.nn.softmax])
@pytest.mark.parametrize("differentiated", [False, True])
def test_calls_are_inlined_and_compute_the_same(fn: Any, differentiated: bool) -> None:
    def step(x: jax.Array) -> jax.Array:
        return fn(jnp.sin(x))

    whole = jax.grad(lambda x: jnp.sum(step(x))) if differentiated else step
    program = trace(whole, (shape(5),))
    calls = {"jit", "pjit", "custom_jvp_call", "custom_vjp_call", "closed_call", "custom_lin"}
    assert not calls & set(names(program))
    x = jnp.linspace(-1.0, 2.0, 5)
    np.testing.assert_allclose(evaluate(program, x)[0], whole(x), rtol=1e-6)


def test_a_rematerialised_region_is_computed_twice_behind_a_barrier() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x))

    program = trace(jax.grad(loss), (shape(4),))
    found = names(program)
    # Forward, the loss is not asked for, so its two sines are dead; backward, the inner one is recomputed.
    # One barrier, an equation each for its two operands: the argument and the cotangent.
    barriers = [e for e in program.equations if e.name == "optimization_barrier"]
    assert len(barriers) == 2 and len({id(e.origin) for e in barriers}) == 1
    assert found["cos"] == 2
    barrier = max(e.index for e in barriers)
    assert all(e.index > barrier for e in program.equations if e.name in ("sin", "cos"))
    x = jnp.linspace(-1.0, 2.0, 4)
    np.testing.assert_allclose(evaluate(program, x)[0], jax.grad(loss)(x), rtol=1e-6)


def test_a_loop_body_is_inlined_once_between_its_boundaries() -> None:
    def step(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.scan(lambda c, row: (jnp.sin(c * row), c), x, w)

    program = trace(step, (shape(4), shape(3, 4)))
    assert names(program) == {"region_in": 2, "mul": 1, "sin": 1, "region_out": 2}
    (region,) = program.regions
    assert (region.kind, region.trips, region.start, region.stop) == ("scan", 3, 0, 6)
    assert region.entries == ((0, 1),) and region.ranges == ((2, 4),) and region.exits == (4, 5)
    roles = [e.params["role"] for e in program.equations if "role" in e.params]
    assert roles == ["carry", "x", "carry", "y"]
    trips = {e.name: program.tensors[e.results[0]].trips for e in program.equations}
    assert trips == {"region_in": 3, "mul": 3, "sin": 3, "region_out": 1}


def test_a_carry_that_nobody_reads_is_dropped_and_one_that_the_body_reads_stays() -> None:
    def step(x: jax.Array) -> jax.Array:
        def body(carry: tuple, _: None) -> tuple:
            a, b, unread = carry
            return (a + b, jnp.sin(b), unread * 2.0), None

        return jax.lax.scan(body, (x, x, x), None, length=2)[0][0]

    found = names(trace(step, (shape(4),)))
    assert found == {"region_in": 2, "add": 1, "sin": 1, "region_out": 2}


def test_constants_are_tensors() -> None:
    table = np.arange(6.0, dtype=np.float32)
    program = trace(lambda x: x + table, (shape(6),))
    (constant,) = [t for t in program.tensors if t.kind == "constant"]
    assert constant.shape == (6,)
    np.testing.assert_array_equal(evaluate(program, jnp.zeros(6))[0], table)


# dead code


def test_unread_equations_are_dropped() -> None:
    def step(x: jax.Array) -> jax.Array:
        _ = jnp.exp(jnp.cos(x))
        return jnp.sin(x)

    program = trace(step, (shape(3),))
    assert names(program) == {"sin": 1}
    assert program.equations[0].index == 0


def test_effects_are_kept() -> None:
    def step(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda v: None, jnp.cos(x))
        return jnp.sin(x)

    found = names(trace(step, (shape(3),)))
    assert found["cos"] == 1
    assert sum(found.values()) == 3


# aliases and donation


def sgd(params: Any, x: jax.Array) -> Any:
    loss, grads = jax.value_and_grad(lambda p: jnp.sum(jnp.sin(x @ p["w"]) + p["b"]))(params)
    return jax.tree.map(lambda p, g: p - g, params, grads), loss


PARAMS = {"w": shape(4, 4), "b": shape(4)}


def test_state_is_aliased_with_its_successor_and_donated() -> None:
    program = trace(sgd, (PARAMS, shape(2, 4)))
    paired = {program.out_paths[o]: program.in_paths[i] for o, i in program.aliases.items()}
    assert paired == {"[0]['b']": "[0]['b']", "[0]['w']": "[0]['w']"}
    donated = dict(zip(program.in_paths, program.donated, strict=True))
    assert donated == {"[0]['b']": True, "[0]['w']": True, "[1]": False}


def test_state_of_equal_shapes_keeps_its_own_place() -> None:
    """By path, not by shape: the two leaves must not be swapped."""

    def swap_order(state: Any) -> Any:
        return {"z": state["z"] + 1, "a": state["a"] + 2}

    program = trace(swap_order, ({"a": shape(3), "z": shape(3)},))
    assert {program.out_paths[o]: program.in_paths[i] for o, i in program.aliases.items()} == {
        "['a']": "[0]['a']",
        "['z']": "[0]['z']",
    }


def test_an_argument_that_comes_back_in_part_is_not_donated() -> None:
    program = trace(lambda s: {"a": s["a"] + 1}, ({"a": shape(3), "b": shape(3)},))
    assert program.donated == (False, False)


@pytest.mark.parametrize(
    ("argnums", "donated"), [((), (False,) * 3), ((0,), (True, True, False)), ((-1,), (False, False, True))]
)
def test_donation_that_was_asked_for(argnums: tuple[int, ...], donated: tuple[bool, ...]) -> None:
    assert trace(sgd, (PARAMS, shape(2, 4)), donate_argnums=argnums).donated == donated


def test_a_bare_array_is_paired_and_donated_only_by_name() -> None:
    """Nothing tells ``x * 2`` from an update of ``x``: both are laid out alike, and the caller keeps ``x``."""
    bare = (lambda w, x: (w - x, jnp.sum(x)), (shape(3), shape(3)))
    asked = trace(*bare, donate_argnums=(0,))
    assert (asked.aliases, asked.donated) == ({0: 0}, (True, False))
    default = trace(*bare)
    assert (default.aliases, default.donated) == ({0: 0}, (False, False))
    assert not default.state and asked.state == {asked.inputs[0]: asked.outputs[0]}


# phases


def test_phases_are_forward_backward_update() -> None:
    program = trace(sgd, (PARAMS, shape(2, 4)))
    phases = {e.name: e.phase for e in program.equations if e.name in ("sin", "sub")}
    assert phases == {"sin": "forward", "sub": "update"}
    dots = [e.phase for e in program.equations if e.name == "dot_general"]
    assert dots == ["forward", "backward"]
    order = [e.phase for e in program.equations]
    assert order.index("backward") > max(i for i, p in enumerate(order) if p == "forward")


def test_a_program_without_gradients_is_all_forward() -> None:
    program = trace(lambda x, w: jnp.tanh(x @ w), (shape(2, 4), shape(4, 4)))
    assert {e.phase for e in program.equations} == {"forward"}


# fingerprint


def test_the_fingerprint_is_of_the_program_and_its_arguments() -> None:
    def fingerprint(step: Any, *args: Any) -> str:
        return trace(step, args).fingerprint

    x = shape(2, 4)
    assert fingerprint(sgd, PARAMS, x) == fingerprint(functools.partial(sgd), PARAMS, x)
    others = [
        fingerprint(lambda p, x: sgd(p, 2 * x), PARAMS, x),
        fingerprint(lambda p, x: sgd(p, 3 * x), PARAMS, x),
        fingerprint(sgd, PARAMS, shape(4, 4)),
        fingerprint(sgd, PARAMS, shape(2, 4, dtype=jnp.bfloat16)),
        fingerprint(lambda p, x: sgd({"w": p["v"], "b": p["b"]}, x), {"v": PARAMS["w"], "b": PARAMS["b"]}, x),
    ]
    assert len({fingerprint(sgd, PARAMS, x), *others}) == 6


def test_constants_count_by_shape_not_by_value() -> None:
    """A plan does not depend on the numbers in a table, only on its size."""

    def fingerprint(table: np.ndarray) -> str:
        return trace(lambda i: jnp.take(table, i, axis=0), (shape(3, dtype=jnp.int32),)).fingerprint

    assert fingerprint(np.zeros((5, 4))) == fingerprint(np.ones((5, 4)))
    assert fingerprint(np.zeros((5, 4))) != fingerprint(np.zeros((6, 4)))


@jax.custom_batching.custom_vmap
def _batched_cosine(x):
    return jnp.cos(x)


_batched_cosine.def_vmap(lambda size, batched, x: (jnp.cos(x), True))


@pytest.mark.parametrize(
    "step, left",
    [
        (lambda a: jax.lax.composite(jnp.sin, name="my.sin")(a), {"sin"}),
        (lambda a: _batched_cosine(a), {"cos"}),
        (
            lambda a: jax.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, t: r * t, 2.0, a),
            {"mul"},
        ),
        (lambda a: jnp.linalg.solve(a + 4 * jnp.eye(4), a), {"lu", "triangular_solve"}),
        (
            lambda a: jax.grad(lambda a: jnp.sum(jnp.linalg.solve(a + 4 * jnp.eye(4), a)))(a),
            {"triangular_solve"},
        ),
    ],
)
def test_other_calls_are_inlined_too(step, left) -> None:
    a = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    program = trace(step, (jax.ShapeDtypeStruct(a.shape, a.dtype),))
    found = set(names(program))
    assert left <= found
    assert not found & {"composite", "custom_vmap_call", "linear_call", "custom_linear_solve"}
    np.testing.assert_allclose(jaxplan.plan(step, a, topology="cpu:2").fastest().jit()(a), step(a), rtol=1e-4)
