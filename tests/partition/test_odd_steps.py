"""Steps that are unlike others: scalars only, empty arrays, arrays too large, reductions by hand, absent GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan import ArgumentError, TraceError
from jaxplan.cli import _main as _cli
from jaxplan.core import _compat
from jaxplan.mesh import Topology

F32 = jnp.float32


def shape(*dims: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


# scalars and empty arrays


@pytest.mark.parametrize(
    ("step", "args"),
    [
        (lambda a, b: a * b + 1, (2.0, jnp.float32(3.0))),
        (lambda a: (jnp.sin(a), {"twice": a + a}), (jnp.float32(0.5),)),
        (lambda w, x: w - 0.1 * jax.grad(lambda w: (w * x - 1) ** 2)(w), (jnp.float32(1), jnp.float32(2))),
        (lambda count: count + 1, (3,)),
        (lambda c: jax.lax.while_loop(lambda c: c < 10, lambda c: c * 2, c), (jnp.int32(1),)),
        (lambda a: a + 1, (jnp.zeros((0, 4)),)),
        (lambda a, b: a @ b, (jnp.zeros((0, 4)), jnp.ones((4, 3)))),
    ],
    ids=["product", "tree", "grad", "int", "loop", "empty", "empty-product"],
)
def test_scalars_and_empty_arrays_run_replicated(step: Callable[..., Any], args: tuple[Any, ...]) -> None:
    planned = jaxplan.auto(step, donate_argnums=())
    result, wanted = planned(*args), jax.jit(step)(*args)
    assert jax.tree.structure(result) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.sharding.is_fully_replicated
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.sample(4)
@pytest.mark.parametrize("backend", ["jit", "shard_map"])
@pytest.mark.parametrize(
    "step",
    [
        lambda w, x: jnp.zeros((0, 4)) @ x,
        lambda w, x: x[:, :0].T @ x @ w,
        lambda w, x: jnp.concatenate([x, jnp.zeros((0, 4)) @ x]) @ w,
        lambda w, x: (x @ w, jnp.sort(x[:0], axis=1)),
    ],
    ids=["product", "no-columns", "joined", "sorted"],
)
def test_empty_results_can_be_read_under_every_plan(step: Callable[..., Any], backend: Any) -> None:
    w, x = jnp.full((8, 8), 0.5), jnp.arange(32.0).reshape(4, 8)
    frontier = jaxplan.plan(step, w, x, topology="cpu:8", donate_argnums=())
    for plan in (*frontier, *frontier.references.values()):
        found, wanted = plan.jit(backend=backend)(w, x), step(w, x)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6)
            assert a.size or a.sharding.is_fully_replicated


def test_an_empty_value_inside_a_step_leaves_its_batch_splittable() -> None:
    """Prefix sums join an empty half with a whole one: the batch of both is split all the same."""

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        joined = jnp.concatenate([x[:, :0], x @ w], axis=1)
        return jnp.sum(joined @ w.T, axis=1)

    frontier = jaxplan.plan(step, shape(64, 64), shape(512, 64), topology="cpu:8", donate_argnums=())
    (batch,) = (s for path, s in zip(frontier[0].in_paths, frontier.references["data"].input_shardings) if "1" in path)
    assert batch.dims[0], batch


def test_a_step_on_scalars_is_planned_saved_and_shown(tmp_path: Path) -> None:
    def step(a: Any, b: Any) -> Any:
        return a * b + 1

    args = (jnp.float32(2), jnp.float32(3))
    frontier = jaxplan.plan(step, *args, topology="h100:2x2")
    assert len(frontier) == 1
    assert frontier.fastest().memory_bytes == 3 * 4  # two arguments and the result
    assert frontier.fastest().time_seconds > 0
    assert "replicated" in frontier.table() and frontier.fastest().explain()
    frontier.save(tmp_path / "f.json")
    loaded = jaxplan.load(tmp_path / "f.json", step, *args)
    assert isinstance(loaded, jaxplan.Frontier) and loaded.knee().memory_bytes == 12
    plan = jaxplan.plan(step, *args, topology="cpu:8").fastest()
    assert plan.jit()(*args) == 7
    assert int(jaxplan.min_devices(step, *args, topology="h100:4")) == 1


def test_steps_that_do_nothing_are_refused_still() -> None:
    with pytest.raises(ArgumentError, match="nothing to plan"):
        jaxplan.plan(lambda x: x, jnp.float32(2), topology="cpu:8")


# sizes


@pytest.mark.parametrize(
    "argument", [shape(2**62, 8), shape(2**40, 2**40, dtype=jnp.int8), shape(2**62), shape(2**31, 2**31)]
)
def test_arguments_that_no_machine_holds_are_named(argument: Any) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)argument b/x is .*1 PiB.*likely cause.*fix"):
        jaxplan.plan(lambda a, b: a + b["x"].sum(), shape(4), {"x": argument}, topology="h100:8")


def test_results_that_no_machine_holds_are_named_by_their_line() -> None:
    with pytest.raises(ArgumentError, match=r"result of 'dot_general' at .*test_odd_steps\.py:\d+"):
        jaxplan.plan(lambda x: (x @ x.T).sum(), shape(2**40, 8), topology="h100:8")


def test_large_arrays_that_machines_hold_are_planned() -> None:
    frontier = jaxplan.plan(lambda x: 2 * x, shape(2**20, 2**20), topology="v5e:16x16", memory="64GiB")
    assert frontier.leanest().memory_bytes <= 64 << 30


# reductions by hand


@pytest.mark.parametrize(
    "reduce",
    [
        lambda g: jax.lax.pmean(g, "batch"),
        lambda g: jax.lax.psum(g, ("data", "model")),
        lambda g: jax.lax.all_gather(g, "i"),
        lambda g: g * jax.lax.axis_index("i"),
    ],
)
def test_reductions_over_axes_of_no_mesh_are_to_be_dropped(reduce: Callable[[Any], Any]) -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - reduce(jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w))

    with pytest.raises(TraceError, match=r"(?s)by hand over the axis.*fix: drop it, since the planner"):
        jaxplan.plan(step, shape(8, 8), shape(16, 8), topology="cpu:8")


# GPUs that are not present


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    def loss(q: jax.Array) -> jax.Array:
        out = jax.nn.dot_product_attention(q, k, v, implementation="cudnn", is_causal=True)
        return out.astype(F32).sum()

    return jax.grad(loss)(q)


QUERY = shape(4, 128, 4, 64, dtype=jnp.bfloat16)


@pytest.fixture
def no_cudnn() -> None:
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("there is a GPU")


def test_cudnn_attention_is_planned_without_a_gpu(no_cudnn: None, tmp_path: Path) -> None:
    from jax._src.cudnn import fused_attention_stablehlo as fused

    before = fused.check_cudnn_version
    frontier = jaxplan.plan(attention, QUERY, QUERY, QUERY, topology="h100:8")
    frontier.save(tmp_path / "f.json")
    loaded = jaxplan.load(tmp_path / "f.json", attention, QUERY, QUERY, QUERY)
    assert isinstance(loaded, jaxplan.Frontier) and loaded.fastest().graph is not None
    assert fused.check_cudnn_version is before
    jaxplan.min_devices(attention, QUERY, QUERY, QUERY, topology="a100:8")


@pytest.mark.parametrize("topology", ["cpu:8", "v5e:2x4"])
def test_cudnn_is_asked_for_elsewhere(topology: str, no_cudnn: None) -> None:
    with pytest.raises(TraceError, match="cuDNN"):
        jaxplan.plan(attention, QUERY, QUERY, QUERY, topology=topology)


def test_what_the_chip_cannot_do_is_an_error_as_on_the_chip(no_cudnn: None) -> None:
    """Heads of 256 need a Hopper."""
    wide = shape(4, 128, 4, 256, dtype=jnp.bfloat16)
    jaxplan.plan(attention, wide, wide, wide, topology="h100:4")
    with pytest.raises(TraceError, match="head dim must be <= 128"):
        jaxplan.plan(attention, wide, wide, wide, topology="a100:4")


def test_an_error_leaves_the_checks_as_they_were(no_cudnn: None) -> None:
    from jax._src.cudnn import fused_attention_stablehlo as fused

    before = fused.check_cudnn_version
    with pytest.raises(ZeroDivisionError), _compat.cudnn_assumed((9, 0)):
        assert fused.check_cudnn_version() >= 90000
        assert fused.check_compute_capability("8.0") and not fused.check_compute_capability("10.0")
        raise ZeroDivisionError
    assert fused.check_cudnn_version is before
    assert Topology.parse("h100:8").chip.is_gpu


# the command's --args


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("fails", "failed when it was called: RuntimeError: no data here"),
        ("takes_one", "failed when it was called: TypeError"),
        ("nothing", "returned None"),
        ("VALUE", "is not a function: its type is int"),
        ("missing", "there is no 'missing'; expected one of"),
        ("one_short", "y missing"),
    ],
)
def test_functions_that_make_no_arguments(
    args: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd_args.py"
    path.write_text(
        "import jax, jax.numpy as jnp\n"
        "def step(x, y): return x @ y\n"
        "def fails(): raise RuntimeError('no data here')\n"
        "def takes_one(size): return ()\n"
        "def nothing(): pass\n"
        "def one_short(): return jnp.ones(3)\n"
        "VALUE = 3\n"
    )
    assert _cli.main(["plan", f"{path}:step", "--args", f"{path}:{args}", "--topology", "cpu:8"]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error and error.count("\n") == 1
