"""One model in Linen, NNX, Equinox and Haiku is one plan: the same layouts, and time and memory within 1 %."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxplan
from tests.versions import missed_from_0_12

WIDTHS = (1024, 4096, 4096, 1024)
X = jax.ShapeDtypeStruct((4096, WIDTHS[0]), jnp.float32)
KEY = jax.random.key(0)
Update = Callable[[Any, Any], Any]


def sgd(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def trained(apply: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def step(params: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda p: jnp.mean(apply(p, x) ** 2))(params)
        return sgd(params, gradients), loss

    return step


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in WIDTHS[1:]:
            x = jnp.tanh(nn.Dense(width)(x))
        return x


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(n, m, rngs=rngs) for n, m in itertools.pairwise(WIDTHS)])

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


class Equinox(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


def linen() -> tuple[Any, Any]:
    return trained(Linen().apply), jax.eval_shape(Linen().init, KEY, X)


def nnx_model() -> tuple[Any, Any]:
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Nnx(nnx.Rngs(0))))
    return trained(lambda state, x: nnx.merge(graphdef, state)(x)), state


def equinox_model() -> tuple[Any, Any]:
    layers = [eqx.nn.Linear(n, m, key=KEY) for n, m in itertools.pairwise(WIDTHS)]
    params = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), Equinox(layers))
    return trained(lambda model, x: jax.vmap(model)(x)), params


def haiku_model() -> tuple[Any, Any]:
    def forward(x: Any) -> Any:
        for width in WIDTHS[1:]:
            x = jnp.tanh(hk.Linear(width)(x))
        return x

    model = hk.without_apply_rng(hk.transform(forward))
    return trained(model.apply), jax.eval_shape(model.init, KEY, X)


MODELS = {"linen": linen, "nnx": nnx_model, "equinox": equinox_model, "haiku": haiku_model}


@pytest.fixture(scope="module")
def frontiers() -> dict[str, jaxplan.Frontier]:
    return {
        name: jaxplan.plan(*make(), X, topology="h100:8", donate_argnums=(0,), progress=False)
        for name, make in MODELS.items()
    }


def layouts(plan: jaxplan.Plan, is_transposed: bool) -> list[Any]:
    """Shape and splits of every parameter, kernels as (in, out), in the order of the layers."""
    program = plan.require_program().program
    found = []
    for t, sharding, role in zip(program.inputs, plan.input_shardings, plan.in_roles, strict=True):
        shape, dims = program.tensors[t].shape, sharding.dims
        if role == "parameter":
            flip = slice(None, None, -1 if is_transposed and len(shape) == 2 else 1)
            found.append((shape[flip], dims[flip]))
    return sorted(found)


POINTS = ["fastest", "knee", "leanest", "megatron", "fsdp"]
# Compiled programs of Linen and of Equinox by `plan.audit()`: 200.0 and 200.0 MiB under `megatron`, 150.0 and 208.1
# under `fsdp`, with the same layouts of parameters: under `fsdp` the programs differ, under `megatron` predictions.
_TRANSPOSES = "dots of vmapped layers are priced with their transposes"
KNOWN_MISSES = [
    *(("equinox", point, _TRANSPOSES) for point in POINTS if point not in ("fsdp", "megatron")),
    ("equinox", "fsdp", "the compiled programs differ by 39 % in memory"),
    ("haiku", "fsdp", "gradients of biases pay a latency less, 1.2 % of the step"),
]


def cases() -> list[Any]:
    missed = {(name, point): pytest.mark.xfail(reason=why, strict=True) for name, point, why in KNOWN_MISSES}
    missed["equinox", "megatron"] = missed_from_0_12("the time of a step differs by 4 %")
    pairs = [(name, point) for name in ("nnx", "equinox", "haiku") for point in POINTS]
    return [pytest.param(*pair, marks=missed.get(pair, ())) for pair in pairs]


@pytest.mark.parametrize(("name", "point"), cases())
def test_a_point_is_the_same(frontiers: dict[str, jaxplan.Frontier], name: str, point: str) -> None:
    ours, linen = frontiers[name].choose(point), frontiers["linen"].choose(point)
    np.testing.assert_allclose(ours.time_seconds, linen.time_seconds, rtol=0.01)
    np.testing.assert_allclose(ours.memory_bytes, linen.memory_bytes, rtol=0.01)
    assert layouts(ours, name == "equinox") == layouts(linen, is_transposed=False)
