"""Every family of models computes, planned, the same as on one device: three points of each frontier."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxplan
from benchmarks.models import MODELS, ModelSpec
from jaxplan.search._traced import analyse_step

NUM_STEPS = 6
POINTS = ("fastest", "knee", "leanest")
TOLERANCE = {"bfloat16": 2e-2, "float32": 1e-4, "float64": 1e-9}  # relative, of losses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model of the registry with fields overridden; `dtype` of its computation."""

    model: str
    fields: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float32"
    num_steps: int = NUM_STEPS

    @property
    def spec(self) -> ModelSpec:
        spec = MODELS[self.model]
        names = {field.name for field in dataclasses.fields(spec.config)}
        dtypes = {"dtype": self.dtype}
        if "param_dtype" in names:
            dtypes["param_dtype"] = "float64" if self.dtype == "float64" else "float32"
        return spec.override(**{**dtypes, **dict(self.fields)})


def _case(
    model: str, dtype: str = "float32", num_steps: int = NUM_STEPS, slow: bool = False, **fields: Any
) -> Any:
    case = Case(model=model, fields=tuple(fields.items()), dtype=dtype, num_steps=num_steps)
    words = [model, *(f"{name}={value}" for name, value in fields.items()), dtype]
    return pytest.param(case, id=" ".join(words), marks=[pytest.mark.slow] if slow else [])


# Optimizers with many equations are tried on small models: compiling takes the time here.
MLP = {"num_layers": 2}
GPT = {"num_layers": 1, "sequence_length": 16, "vocab_size": 128, "optimizer": "sgd"}
RESNET = {"stage_sizes": (1, 1), "image_size": 16}

CASES = [
    _case("mlp-tiny", slow=True, **MLP, optimizer="momentum"),
    _case("mlp-tiny", "float64", **MLP, optimizer="masked-adamw", num_steps=20),
    _case("mlp-tiny", slow=True, **MLP, optimizer="adafactor"),
    _case("mlp-tiny", slow=True, **MLP, optimizer="multi-steps"),
    _case("mlp-tiny", **MLP, num_microbatches=4, optimizer="clipped-adamw"),
    _case("gpt-tiny-dropout", slow=True, **GPT, remat=True, tied=False),
    _case("gpt-tiny-scan", **{**GPT, "num_layers": 2}),
    _case("gpt-tiny-mixed", "bfloat16", slow=True, **GPT, loss_scale=1024.0),
    _case("gpt-tiny-nnx", slow=True, **{**GPT, "optimizer": "adamw"}),
    _case("gpt-tiny-eval", slow=True, **GPT),
    _case("gpt-tiny-inference", slow=True, **GPT),
    _case("vit-tiny", slow=True, num_layers=1, optimizer="sgd"),
    _case("resnet-tiny", "float64", slow=True, **RESNET),
    _case("resnet-tiny-eval", slow=True, **{**RESNET, "stage_sizes": (1,)}),
    _case("lstm-tiny", slow=True, optimizer="sgd"),
    _case("conformer-tiny", slow=True, optimizer="sgd"),
    _case("vgg-tiny", slow=True, optimizer="sgd"),
    _case("clip-tiny", slow=True, optimizer="sgd"),
    _case("densenet-tiny", "float64", slow=True),
    _case("deepseek-tiny", slow=True, optimizer="sgd"),
    _case("gemma-tiny", slow=True, optimizer="sgd"),
    _case("whisper-tiny", slow=True, optimizer="sgd"),
    _case("wav2vec2-tiny", slow=True, optimizer="sgd"),
    _case("neox-tiny", slow=True, optimizer="sgd"),
    _case("regnet-tiny", "float64", slow=True),
    _case("qwen-tiny", slow=True, optimizer="sgd"),
    _case("mae-tiny", slow=True, optimizer="sgd"),
    _case("olmo-tiny", slow=True, optimizer="sgd"),
    _case("mobilenet-tiny", "float64", slow=True),
    _case("efficientnet-tiny", "float64", slow=True),
    _case("dit-tiny", slow=True, num_layers=1, optimizer="sgd"),
    _case("swin-tiny", slow=True, depths=(2,), num_heads=(2,), image_size=32, optimizer="sgd"),
    _case("mamba-tiny", slow=True, optimizer="sgd"),
    _case("convnext-tiny", slow=True, stage_sizes=(1, 1), widths=(16, 32), image_size=16, optimizer="sgd"),
]


def _batches(case: Case) -> list[Any]:
    make = jax.jit(functools.partial(case.spec.make_batch, case.spec.config))
    return [jax.device_get(make(jax.random.key(i))) for i in range(case.num_steps)]


@functools.cache
def _initial(case: Case) -> tuple[list[Any], Any]:
    """The leaves and the tree of the state, made once: functions in it are compared by identity."""
    make = functools.partial(case.spec.make_state, case.spec.config)
    leaves, tree = jax.tree.flatten(make() if case.spec.updates == "in place" else jax.jit(make)())
    return [
        leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf) for leaf in leaves
    ], tree


def _state(case: Case) -> Any:
    """A state with buffers that may be donated."""
    leaves, tree = _initial(case)
    return jax.tree.unflatten(tree, [leaf.copy() for leaf in leaves])


def _run(step: Any, case: Case) -> list[Any]:
    """The results of the steps, apart from the state, one after the other."""
    state, found = _state(case), []
    for batch in _batches(case):
        result = step(*state, batch)
        if case.spec.updates == "returned":
            state, result = (result[0],), result[1]
        found.append(jax.device_get(result))
    return found


def _alone(case: Case) -> list[Any]:
    step = case.spec.make_step(case.spec.config)
    if case.spec.updates == "in place":
        from flax import nnx

        return _run(nnx.jit(step), case)
    return _run(jax.jit(step), case)


def _frontier(case: Case) -> jaxplan.Frontier:
    spec = case.spec
    return jaxplan.plan(
        spec.make_step(spec.config),
        *_state(case),
        _batches(case)[0],
        topology="cpu:8",
        memory="1GiB",
        donate_argnums=spec.donate_argnums,
    )


MUST_BE_SPLIT = ("mlp-tiny", "gpt-tiny", "vit-tiny", "resnet-tiny", "lstm-tiny")


@pytest.mark.parametrize("case", CASES)
def test_three_points_compute_what_one_device_does(case: Case) -> None:
    with jax.enable_x64(case.dtype == "float64"):
        frontier, expected = _frontier(case), _alone(case)
        plans = {plan.configurations: plan for plan in map(frontier.choose, POINTS)}
        if case.spec.updates != "none":
            assert np.std(expected) > 0  # the steps depend on each other
        if case.model.startswith(MUST_BE_SPLIT):
            assert any(_num_splits(plan) > 1 for plan in plans.values())
        for plan in plans.values():
            for found, wanted in zip(_run(plan.jit(), case), expected, strict=True):
                _assert_close(found, wanted, TOLERANCE[case.dtype], plan.summary)


def _num_splits(plan: jaxplan.Plan) -> int:
    """The most parts that an argument or a contraction is split into."""
    return max(
        math.prod(plan.topology.axes[a].size for axes in config for a in axes)
        for config in plan.configurations
    )


def _assert_close(found: Any, wanted: Any, tolerance: float, message: str) -> None:
    for leaf, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        atol = tolerance * np.abs(expected).max()  # of one number: relative
        np.testing.assert_allclose(leaf, expected, rtol=0, atol=atol, err_msg=message)


def test_dropout_draws_the_same_bits_wherever_they_are_split() -> None:
    """The masks themselves, of a layer with batch and features split."""
    dropout = nn.Dropout(0.5, deterministic=False)

    def step(w: jax.Array, x: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = x @ w
        kept = dropout.apply({}, jnp.ones_like(hidden), rngs={"dropout": key})
        return kept, (hidden * kept) @ w.T  # pyright: ignore

    rng = np.random.default_rng(0)
    w, x = (rng.normal(size=shape).astype(np.float32) for shape in ((64, 256), (64, 64)))
    key = jax.random.key(3)
    expected, _ = jax.jit(step)(w, x, key)
    frontier = jaxplan.plan(step, w, x, key, topology="cpu:8", memory="1GiB", donate_argnums=())
    plans = {plan.configurations: plan for plan in (*frontier.points, *frontier.references.values())}
    split = [
        plan
        for plan in plans.values()
        if any(plan.output_shardings[0].num_splits(plan.topology.axes)[d] > 1 for d in (0, 1))
    ]
    assert split
    for plan in split[:4]:
        found, _ = plan.jit()(w, x, key)
        np.testing.assert_array_equal(found, expected)
    assert 0.4 < np.mean(np.asarray(expected) > 0) < 0.6


@pytest.mark.slow
def test_an_overflowing_step_is_skipped_and_the_scale_halved() -> None:
    """Dynamic loss scaling: planned, the state after an overflow is the state before it, at half the scale."""
    spec = MODELS["gpt-tiny-mixed"].override(**GPT, dtype="float16")
    (state,) = jax.jit(functools.partial(spec.make_state, spec.config))()
    state = state.replace(dynamic_scale=state.dynamic_scale.replace(scale=jnp.float32(2.0**100)))
    before = jax.device_get(state.params)
    step = jaxplan.auto(spec.make_step(spec.config), memory="1GiB", donate_argnums=(0,))
    new, loss = step(state, spec.make_batch(spec.config, jax.random.key(0)))
    assert np.isfinite(loss)
    assert float(new.dynamic_scale.scale) == 2.0**99
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(new.params), before)


@pytest.mark.parametrize("model", ["gpt-tiny-inference", "resnet-tiny-eval"])
def test_the_batch_of_a_step_that_only_reads_is_that_of_its_data(model: str) -> None:
    """And no dimension of a parameter, though none is replaced."""
    spec = MODELS[model]
    graph = analyse_step(
        spec.make_step(spec.config), spec.abstract_args(), {}, donate_argnums=(), static_argnums=()
    )
    named = {
        path: [
            graph.named.dimensions[graph.named.of[t, d]].name
            for d in range(len(graph.program.tensors[t].shape))
        ]
        for path, t in zip(graph.program.in_paths, graph.program.inputs, strict=True)
    }
    with_batch = {path for path, names in named.items() if "batch" in names}
    assert with_batch == {path for path in named if path.startswith("[1]")}
