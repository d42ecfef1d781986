"""Which width of attention scores TPU programs keep; expectations are those of compiled ones."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import jaxplan
from jaxplan.ir import analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Target, analyse_buffers
from jaxplan.xla.rules.tpu.dot_results import GRADIENTS_OF_WIDENED

B, H, T, D = 2, 3, 16, 8
SCORES = (B, H, T, T)
Scores = Callable[[jax.Array, jax.Array], jax.Array]


def _wide(s: jax.Array, bias: jax.Array) -> jax.Array:
    return s.astype(jnp.float32)


def _biased(s: jax.Array, bias: jax.Array) -> jax.Array:
    return s.astype(jnp.float32) + bias


def _scaled(s: jax.Array, bias: jax.Array) -> jax.Array:
    return s.astype(jnp.float32) * 0.125


def _masked(s: jax.Array, bias: jax.Array) -> jax.Array:
    s = (s * jnp.bfloat16(0.125)).astype(jnp.float32)
    return jnp.where(jnp.tril(jnp.ones((T, T), bool)), s, -1e9)


def _capped(s: jax.Array, bias: jax.Array) -> jax.Array:
    return jnp.where(jnp.tril(jnp.ones((T, T), bool)), 30 * jnp.tanh(s.astype(jnp.float32) / 30), -1e9)


def _narrow(s: jax.Array, bias: jax.Array) -> jax.Array:
    return s + bias.astype(s.dtype)


def _saved_scores(scores: Scores, topology: str, *, attends: bool = True) -> list[str]:
    def step(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> tuple[jax.Array, ...]:
        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            s = scores(jnp.einsum("bqhd,bkhd->bhqk", q, k), bias)
            if not attends:
                return -jax.nn.log_softmax(s)[..., 0].astype(jnp.float32).sum()
            h = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s).astype(v.dtype), v)
            return jnp.square(h.astype(jnp.float32)).sum()

        return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)

    narrow = jax.ShapeDtypeStruct((B, T, H, D), jnp.bfloat16)
    arguments = [narrow] * 3 + [jax.ShapeDtypeStruct((H, T, T), jnp.float32)]
    graph = analyse(trace(step, arguments, {}))
    buffers = analyse_buffers(graph, Target.of(Topology.parse(topology).chip))
    tensors = graph.program.tensors
    return sorted(str(tensors[t].dtype) for t in buffers.saved if tensors[t].num_elements == B * H * T * T)


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        (_wide, ["bfloat16"]),
        (_biased, ["float32"]),
        (_scaled, ["float32"]),
        (_masked, ["float32"]),
        (_narrow, ["bfloat16"]),
    ],
)
def test_scores_that_are_widened_and_changed_are_kept_wide(scores: Scores, kept: list[str]) -> None:
    assert _saved_scores(scores, "v5e:2x4") == kept
    assert "float32" not in _saved_scores(scores, "h100:8")


def test_scores_that_a_tanh_caps_are_kept_beside_what_is_made_of_them() -> None:
    """Every compiled plan of a Gemma held both: the tanh is recomputed of the scores."""
    assert _saved_scores(_capped, "v5e:2x4") == ["bfloat16", "float32"]


def test_logits_are_kept_as_dots_make_them() -> None:
    assert _saved_scores(_biased, "v5e:2x4", attends=False) == ["bfloat16"]


def test_scores_that_are_shown_are_kept_as_they_are_shown() -> None:
    def step(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        s = jnp.einsum("bqd,bkd->bqk", q, k)
        return s, jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(s.astype(jnp.float32) * 2).astype(v.dtype), v)

    graph = analyse(trace(step, [jax.ShapeDtypeStruct((4, 16, 8), jnp.bfloat16)] * 3, {}))
    buffers = analyse_buffers(graph, Target.of(Topology.parse("v5e:2x4").chip))
    assert buffers.materialised[graph.program.outputs[0]]


@pytest.mark.parametrize("groups", [1, 4])
def test_weights_of_wide_scores_are_not_written_for_groups_of_queries(groups: int) -> None:
    """Rows of the weights are queries of every group; they are computed as the dot reads them."""

    def step(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        s = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(jnp.float32) * 0.125
        return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(s).astype(v.dtype), v)

    query, key = (B, T, H, groups, D), (B, T, H, D)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in (query, key, key)]
    graph = analyse(trace(step, arguments, {}))
    buffers = analyse_buffers(graph, Target.of(Topology.parse("v5e:2x4").chip))
    tensors = graph.program.tensors
    large = [t for t in tensors if t.num_elements == B * H * groups * T * T and buffers.materialised[t.index]]
    assert [str(t.dtype) for t in large] == ["float32"]
    assert not buffers.batched


@pytest.mark.parametrize(("topology", "gradients"), [("v5e:2x4", 1), ("h100:8", 2)])
def test_the_gradient_in_front_of_a_gelu_is_what_its_dot_writes(topology: str, gradients: int) -> None:
    """A compiled Mixer held one array of hidden size beside those that its forward pass saved, GPUs two."""
    hidden = (B, T, 4 * D)

    def step(x: jax.Array, up: jax.Array, down: jax.Array) -> tuple[jax.Array, ...]:
        def loss(up: jax.Array, down: jax.Array) -> jax.Array:
            return jnp.square((jax.nn.gelu(x @ up) @ down).astype(jnp.float32)).sum()

        return jax.grad(loss, argnums=(0, 1))(up, down)

    shapes = ((B, T, D), (D, 4 * D), (4 * D, D))
    graph = analyse(trace(step, [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes], {}))
    buffers = analyse_buffers(graph, Target.of(Topology.parse(topology).chip))
    program, producer = graph.program, graph.values.producer
    made = [t for t in program.tensors if buffers.materialised[t.index] and t.shape == hidden]
    assert sum(program.equations[producer[t.index]].phase == "backward" for t in made) == gradients


@pytest.mark.parametrize("rematerialised", [False, True])
def test_scores_of_groups_are_wide_when_computed_again_and_their_gradient_is_written(rematerialised: bool) -> None:
    """Buffers of a compiled Llama where its attention's gradient is made: scores in float32, the gradients of the
    weights and of the scores in bfloat16."""
    groups = 4

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        s = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(jnp.float32) * 0.125
        return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(s).astype(v.dtype), v)

    def step(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, ...]:
        fn = jax.checkpoint(attention) if rematerialised else attention
        return jax.grad(lambda *x: jnp.square(fn(*x).astype(jnp.float32)).sum(), argnums=(0, 1, 2))(q, k, v)

    narrow = jax.ShapeDtypeStruct((B, T, H, D), jnp.bfloat16)
    queries = jax.ShapeDtypeStruct((B, T, H, groups, D), jnp.bfloat16)
    graph = analyse(trace(step, [queries, narrow, narrow], {}))
    buffers = analyse_buffers(graph, Target.of(Topology.parse("v5e:2x4").chip))
    equations, producer = graph.program.equations, graph.values.producer
    large = [t for t in graph.program.tensors if t.num_elements == B * H * groups * T * T]
    held = [t for t in large if buffers.materialised[t.index] and producer[t.index] >= 0]
    late = sorted(str(t.dtype) for t in held if equations[producer[t.index]].phase == "backward")
    early = sorted(str(t.dtype) for t in held if equations[producer[t.index]].phase != "backward")
    again = ["float32"] if rematerialised else []
    assert late == ["bfloat16", "bfloat16", *again]
    assert early == ["float32"]


@pytest.mark.parametrize(
    ("scores", "topology", "written"),
    [(_biased, "v5e:2x4", 1), (_masked, "v5e:2x4", 1), (_narrow, "v5e:2x4", 0), (_biased, "h100:8", None)],
)
def test_gradients_of_scores_that_are_kept_wide_are_written(scores: Scores, topology: str, written: int | None) -> None:
    def step(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array) -> tuple[jax.Array, ...]:
        def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            s = scores(jnp.einsum("bqhd,bkhd->bhqk", q, k), bias)
            h = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s).astype(v.dtype), v)
            return jnp.square(h.astype(jnp.float32)).sum()

        return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)

    arguments = [jax.ShapeDtypeStruct((B, T, H, D), jnp.bfloat16)] * 3 + [jax.ShapeDtypeStruct((H, T, T), jnp.float32)]
    graph = analyse(trace(step, arguments, {}))
    chip = Target.of(Topology.parse(topology).chip)
    buffers = analyse_buffers(graph, chip)
    found = {t for t, name in enumerate(buffers.decided_by) if name == GRADIENTS_OF_WIDENED.name}
    if written is None:
        assert not found
        return
    dots = [e for e in graph.program.equations if e.phase == "backward" and e.name == "dot_general"]
    assert len(found) == written
    for t in found:
        assert graph.program.tensors[t].dtype == jnp.bfloat16
        assert sum(t in e.operands for e in dots) == 2
        assert buffers.materialised[t]


def test_prints_of_gradients_plan_on_tpu():
    """An equation without results, such as a print in the backward pass, is no dot."""

    def step(params, x):
        loss, gradients = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2))(params)
        jax.debug.print("gradient {}", gradients["a"][0, 0])
        return jax.tree.map(lambda p, g: p - g, params, gradients), loss

    params = {"a": jnp.ones((16, 32)), "b": jnp.ones((32, 8))}
    assert len(jaxplan.plan(step, params, jnp.ones((16, 16)), topology="v5e:2x2", progress=False)) > 0
