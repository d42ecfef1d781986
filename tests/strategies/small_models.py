"""Models whose every byte is counted by hand: no bias, no scale, f32, momentum; and the strategies on them."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import jaxplan
from jaxplan.cost import Predictor, build_cost_model
from jaxplan.mesh import Topology
from jaxplan.search._make_plan import make_plan
from jaxplan.search._traced import analyse_step
from jaxplan.strategies import References, apply_strategies, reference_solution

F32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a transformer: B sequences of T tokens, width D, H heads, hidden F, vocabulary V, E experts, L layers."""

    batch: int = 16
    tokens: int = 64
    width: int = 128
    heads: int = 8
    hidden: int = 512
    vocabulary: int = 1024
    experts: int = 0
    capacity: int = 16
    layers: int = 2

    @property
    def activation_bytes(self) -> int:
        return F32 * self.batch * self.tokens * self.width


def gpt_params(s: Sizes) -> dict[str, tuple[int, ...]]:
    """Shapes by name: untied embedding and head, per layer four of attention and two of the perceptron."""
    head = s.width // s.heads
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (s.vocabulary, s.width),
        "unembed": (s.width, s.vocabulary),
    }
    expert = (s.experts,) if s.experts else ()
    for i in range(s.layers):
        shapes |= {f"{i}{name}": (s.width, s.heads, head) for name in "qkv"}
        shapes[f"{i}o"] = (s.heads, head, s.width)
        shapes[f"{i}up"] = (*expert, s.width, s.hidden)
        shapes[f"{i}down"] = (*expert, s.hidden, s.width)
    return shapes


def norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(p: Mapping[str, jax.Array], i: int, x: jax.Array) -> jax.Array:
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[f"{i}{name}"]) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k) / k.shape[-1] ** 0.5)
    return jnp.einsum("bthk,hkd->btd", jnp.einsum("bhts,bshk->bthk", scores, v), p[f"{i}o"])


def _experts(p: Mapping[str, jax.Array], i: int, x: jax.Array, place: jax.Array) -> jax.Array:
    """Tokens go to the expert and slot that the batch says (`place`, [B, T, E, C], zeros and ones)."""
    taken = jnp.einsum("btec,btd->ebcd", place, x)
    h = jax.nn.relu(jnp.einsum("ebcd,edf->ebcf", taken, p[f"{i}up"]))
    return jnp.einsum("btec,ebcd->btd", place, jnp.einsum("ebcf,efd->ebcd", h, p[f"{i}down"]))


def gpt_logits(s: Sizes, p: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> jax.Array:
    x = p["embed"][batch["inputs"]]
    for i in range(s.layers):
        x = x + attention(p, i, norm(x))
        if s.experts:
            x = x + _experts(p, i, norm(x), batch["place"])
        else:
            x = x + jax.nn.relu(norm(x) @ p[f"{i}up"]) @ p[f"{i}down"]
    return norm(x) @ p["unembed"]


def gpt_loss(s: Sizes, p: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> jax.Array:
    logits = gpt_logits(s, p, batch)
    picked = jnp.sum(logits * batch["targets"], axis=-1)  # one-hot
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


CNN_PARAMS: dict[str, tuple[int, ...]] = {
    "c1": (3, 3, 8, 64), "c2": (3, 3, 64, 64), "d1": (1024, 1024), "d2": (1024, 256),
}  # fmt: skip
CNN_BATCH = 32


def cnn_loss(p: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]) -> jax.Array:
    """Two convolutions over [B, 32, 32, 8], the second with stride 8; two dense layers of 1024 and 256 outputs."""
    numbers = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(batch["x"], p["c1"], (1, 1), "SAME", dimension_numbers=numbers)
    x = jax.lax.conv_general_dilated(jax.nn.relu(x), p["c2"], (8, 8), "SAME", dimension_numbers=numbers)
    x = jax.nn.relu(x).reshape(x.shape[0], -1)
    x = jax.nn.relu(x @ p["d1"]) @ p["d2"]
    return jnp.mean((x - batch["y"]) ** 2)


def momentum_step(loss_fn: Callable[..., jax.Array]) -> Callable[..., Any]:
    def step(params: Any, slots: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, grads)
        return jax.tree.map(lambda p, m: p - 0.01 * m, params, slots), slots, loss

    return step


def _shapes(
    shapes: Mapping[str, tuple[int, ...]], dtype: Any = jnp.float32
) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}


def gpt_case(s: Sizes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step of a transformer, and its abstract arguments."""
    params = _shapes(gpt_params(s))
    batch = _shapes({"targets": (s.batch, s.tokens, s.vocabulary)})
    if s.experts:
        batch |= _shapes({"place": (s.batch, s.tokens, s.experts, s.capacity)})
    batch["inputs"] = jax.ShapeDtypeStruct((s.batch, s.tokens), jnp.int32)
    return momentum_step(functools.partial(gpt_loss, s)), (params, params, batch)


def cnn_case() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step of a convolutional network, and its abstract arguments."""
    params = _shapes(CNN_PARAMS)
    return momentum_step(cnn_loss), (
        params,
        params,
        _shapes({"x": (CNN_BATCH, 32, 32, 8), "y": (CNN_BATCH, 256)}),
    )


IMAGES, IMAGE_PARAMS = (4, 64, 64, 64), {"c1": (3, 3, 64, 128), "c2": (3, 3, 128, 64)}


def image_case() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step of two convolutions from images to images, and its abstract arguments."""

    def conv(x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((conv(jax.nn.relu(conv(batch["x"], params["c1"])), params["c2"]) - batch["y"]) ** 2)

    params = _shapes(IMAGE_PARAMS)
    return momentum_step(loss), (params, params, _shapes({"x": IMAGES, "y": IMAGES}))


def references_of(
    step: Callable[..., Any], args: tuple[Any, ...], topology: str
) -> tuple[dict[str, jaxplan.Plan], References]:
    """The plans of all strategies that apply, without a search."""
    graph = analyse_step(step, args, {}, donate_argnums=None, static_argnums=())
    machine = Topology.parse(topology)
    references = apply_strategies(graph, machine)
    model = build_cost_model(graph, machine, always=references.configurations())
    predictor = Predictor(model)
    plans = {
        name: make_plan(predictor, *reference_solution(model, strategy_plan), name=name)
        for name, strategy_plan in references.plans.items()
    }
    return plans, references


Communicated = dict[tuple[str, int], dict[int, int]]


def communicated(plan: jaxplan.Plan, least_bytes: int) -> Communicated:
    """(kind, devices of a group) -> bytes of one -> how many, of all that are at least so large."""
    found: Communicated = defaultdict(lambda: defaultdict(int))
    for c in plan.prediction.collectives:
        if c.num_bytes >= least_bytes:
            devices = 1
            for a in c.axes:
                devices *= plan.topology.axes[a].size
            found[c.kind, devices][c.num_bytes] += c.count
    return {key: dict(sizes) for key, sizes in found.items()}


def totals(plan: jaxplan.Plan, least_bytes: int) -> dict[tuple[str, int], int]:
    """(kind, devices of a group) -> bytes of all of them."""
    return {
        key: sum(size * n for size, n in sizes.items())
        for key, sizes in communicated(plan, least_bytes).items()
    }
