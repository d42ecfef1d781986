"""Plans as plain JAX scripts: they run in a process that has no jaxplan, and give the results of one device."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

import jaxplan
from tests.sampling import sampled
from tests.small_steps import ADAM_EPSILON, SEQUENCE, VOCABULARY, SmallGPT

RUN = '''
import importlib, json, pickle, re, sys
sys.modules["jaxplan"] = None  # importing it raises an error
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 8)
sys.path.insert(0, ".")
found = {}
for name, (step, args) in pickle.load(open("cases.pkl", "rb")).items():
    script = importlib.import_module(name)
    text = script.run.lower(*script.SHAPES).compile().as_text()
    found[name] = jax.tree.map(np.asarray, getattr(script, step)(*args)), text
pickle.dump(found, open("found.pkl", "wb"))
'''
KINDS = ["all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"]


def collectives(text: str) -> dict[str, int]:
    return {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in KINDS}


def perceptron(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
    def loss_fn(params: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["up"] + params["bias"]) @ params["down"] - y) ** 2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def perceptron_args(key: Any) -> tuple[Any, ...]:
    up, down, x, y = (
        jax.random.normal(k, s) / 4
        for k, s in zip(jax.random.split(key, 4), [(16, 64), (64, 8), (32, 16), (32, 8)], strict=True)
    )
    return {"up": up, "bias": jnp.zeros(64), "down": down}, x, y


def scanned_stack(params: Any, x: Any) -> tuple[Any, Any]:
    def block(h: Any, layer: Any) -> tuple[Any, None]:
        return h + jax.nn.silu(h @ layer["up"]) @ layer["down"], None

    def loss_fn(params: Any) -> Any:
        h, _ = jax.lax.scan(jax.checkpoint(block), x, params)
        return jnp.mean(h**2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def stack_args(key: Any) -> tuple[Any, ...]:
    up, down, x = (
        jax.random.normal(k, s) / 8
        for k, s in zip(jax.random.split(key, 3), [(3, 16, 64), (3, 64, 16), (32, 16)], strict=True)
    )
    return {"up": up, "down": down}, x


def lstm(params: Any, x: Any) -> tuple[Any, Any]:
    """Tokens ``[T, B, D]`` through one layer of 16 units."""

    def loss_fn(params: Any) -> Any:
        def cell(carry: Any, x: Any) -> tuple[Any, Any]:
            h, c = carry
            i, f, g, o = jnp.split(x @ params["input"] + h @ params["state"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((x.shape[1], 16))
        _, hs = jax.lax.scan(cell, (start, start), x)
        return jnp.mean(hs**2)

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


def lstm_args(key: Any) -> tuple[Any, ...]:
    kernel, state, x = (
        jax.random.normal(k, s) / 4
        for k, s in zip(jax.random.split(key, 3), [(8, 64), (16, 64), (5, 16, 8)], strict=True)
    )
    return {"input": kernel, "state": state}, x


MODEL = SmallGPT(1, 32, 4, jnp.float32)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, eps=ADAM_EPSILON))


def gpt(params: Any, slots: Any, tokens: Any) -> tuple[Any, Any, Any]:
    def loss_fn(params: Any) -> Any:
        logits = MODEL.apply({"params": params}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, gradients = jax.value_and_grad(loss_fn)(params)
    updates, slots = OPTIMIZER.update(gradients, slots, params)
    return optax.apply_updates(params, updates), slots, loss


def gpt_args(key: Any) -> tuple[Any, ...]:
    tokens = jax.random.randint(key, (16, SEQUENCE + 1), 0, VOCABULARY)
    params = MODEL.init(key, tokens)["params"]
    return params, OPTIMIZER.init(params), tokens


CASES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], tuple[str, ...]]] = {
    "perceptron": (perceptron, perceptron_args, ("megatron", "leanest")),
    "scanned_stack": (scanned_stack, stack_args, ("knee",)),
    "lstm": (lstm, lstm_args, ("leanest", "data")),
    "gpt": (gpt, gpt_args, ("megatron",)),
}


_FIRST = [f"{case}_{points[0]}" for case, (_, _, points) in CASES.items()]
_OTHERS = [f"{case}_{point}" for case, (_, _, points) in CASES.items() for point in points[1:]]
NAMES = sampled([*_FIRST, *_OTHERS], 2)


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of every case and point that is asked for: results and compiled text of the script, of the plan, and results of
    one device."""
    parameters = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    wanted = {of.params["name"] for of in parameters if of is not None and "name" in of.params}
    folder, cases, ours = tmp_path_factory.mktemp("scripts"), {}, {}
    for case, (step, make, all_points) in CASES.items():
        points = [point for point in all_points if f"{case}_{point}" in wanted]
        if not points:
            continue
        args = make(jax.random.key(0))
        frontier, expected = jaxplan.plan(step, *args, topology="cpu:8"), jax.jit(step)(*args)
        for point in points:
            plan, name = frontier.choose(point), f"{case}_{point}"
            plan.export(folder / f"{name}.py")
            cases[name] = step.__name__, jax.tree.map(np.asarray, args)
            ours[name] = expected, plan.jit().lower(*args).compile().as_text()
    (folder / "cases.pkl").write_bytes(pickle.dumps(cases))
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = pickle.loads((folder / "found.pkl").read_bytes())
    return {name: (*found[name], *ours[name]) for name in cases}




@pytest.mark.parametrize("name", NAMES)
def test_a_script_computes_what_one_device_does(ran: dict[str, Any], name: str) -> None:
    results, _, expected, _ = ran[name]
    assert jax.tree.structure(results) == jax.tree.structure(expected)
    for found, wanted in zip(*map(jax.tree.leaves, (results, expected)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_has_the_collectives_of_the_plan(ran: dict[str, Any], name: str) -> None:
    _, text, _, ours = ran[name]
    assert collectives(text) == collectives(ours) and sum(collectives(text).values())


def exported(step: Any, *args: Any, folder: Path, names: Any = None, **options: Any) -> tuple[Any, str]:
    """The script of the fastest plan on two devices, imported, and its text."""
    path = folder / "planned.py"
    jaxplan.plan(step, *args, topology="cpu:2", **options).fastest().export(path, names=names)
    spec = importlib.util.spec_from_file_location("planned", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, path.read_text()


TABLE = np.random.default_rng(0).standard_normal((64, 4)).astype(jnp.bfloat16)


def every_kind_of_operator(x: Any, key: Any, ids: Any) -> Any:
    """Tables that the step holds, random bits, sorting, look-ups, convolutions, loops and branches."""
    table = jnp.asarray(TABLE)[ids].astype(jnp.float32)
    noise = jax.random.normal(key, x.shape) * jnp.float32(1e-3)
    y = jnp.sort(x + noise, axis=1) + jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1)
    y = jax.lax.conv_general_dilated(y[:, None, :], jnp.ones((1, 1, 3)), (1,), "SAME")[:, 0]
    y = jax.lax.while_loop(lambda c: jnp.max(jnp.abs(c)) > 1, lambda c: c * 0.5, y)
    y = jax.lax.cond(jnp.sum(y) > 0, jnp.sin, jnp.cos, y)
    largest = jax.ops.segment_max(y, ids // 14, num_segments=4)
    groups = jax.lax.ragged_dot(y, jnp.ones((2, 6, 3)), jnp.array([5, 3], jnp.int32))
    others = {"table": table, "top": jax.lax.top_k(y, 2), "mask": x > jnp.inf, "none": None}
    return {"y": jnp.cumsum(y, axis=1), "largest": largest, "groups": groups, **others}


@pytest.mark.sample(1)
@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_operators_arrays_and_structures(tmp_path: Path, make_key: Any) -> None:
    x, ids = np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32), np.arange(8, dtype=np.int32) * 7
    key = make_key(0)
    script, _ = exported(every_kind_of_operator, x, key, ids, folder=tmp_path)
    assert (tmp_path / "planned.npz").exists()
    found, expected = script.every_kind_of_operator(x, key, ids), every_kind_of_operator(x, key, ids)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a, "float32"), np.asarray(b, "float32"), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_results_of_classes(tmp_path: Path) -> None:
    """A train state that comes back updated, and slots of an optimizer that the step creates."""
    model = nn.Dense(8)
    params = model.init(jax.random.key(0), jnp.ones((4, 8)))["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    def step(state: Any, batch: Any, scale: float, kind: str) -> Any:
        assert kind == "squares"
        loss = lambda p: scale * jnp.mean(state.apply_fn({"params": p}, batch["x"]) ** 2)  # noqa: E731
        gradients = jax.grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), optax.adam(1e-3).init(gradients)

    batch = {"x": jax.random.normal(jax.random.key(1), (4, 8))}
    script, text = exported(step, state, batch, 2.0, "squares", folder=tmp_path, static_argnums=3)
    expected = step(state, batch, 2.0, "squares")
    found = script.step(state, batch, 2.0, "squares")
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert "'state/params/kernel': P(" in text


def test_names_of_axes(tmp_path: Path) -> None:
    """The coarsest that the program allows, or those that are given."""
    x = jax.ShapeDtypeStruct((64, 16), jnp.float32)
    plan = jaxplan.plan(lambda x: x * 2, x, topology="h100:2x8", pins={"x": P(("node", "gpu"), None)}).fastest()
    plan.export(tmp_path / "coarse.py")
    text = (tmp_path / "coarse.py").read_text()
    assert "'x': P(('node', 'gpu'), None)" in text and ".reshape((2, 8)), ('node', 'gpu'))" in text
    plan.export(tmp_path / "named.py", names={"data": 4, "model": 4})
    assert "'x': P(('data', 'model'), None)" in (tmp_path / "named.py").read_text()
    tensor = jaxplan.plan(lambda x: x * 2, x, topology="h100:8", pins={"x": P("gpu0", "gpu1")}).fastest()
    with pytest.raises(jaxplan.ArgumentError, match=r"apart from the rest of 'data', gpu0 gpu1"):
        tensor.export(tmp_path / "refused.py", names={"data": 4, "model": 2})
    assert not (tmp_path / "refused.py").exists()


def test_python_code_is_refused_by_name(tmp_path: Path) -> None:
    def step(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(jaxplan.UnsupportedError, match=r"pure_callback holds .*\n  given:    .*test_export.py"):
        exported(step, jnp.ones((4, 4)), folder=tmp_path)


def test_debug_prints_are_left_out_and_named(tmp_path: Path) -> None:
    def step(x: Any) -> Any:
        jax.debug.print("x {}", x[0, 0])
        return x + 1

    script, text = exported(step, np.ones((4, 4), np.float32), folder=tmp_path)
    assert "Left out: debug callbacks, test_export.py" in text
    np.testing.assert_array_equal(script.step(np.ones((4, 4), np.float32)), 2.0)
