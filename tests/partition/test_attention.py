"""Attention over a split sequence equals one device: in a ring, with keys gathered, and with heads exchanged."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxplan
from jaxplan.core._progress import Progress
from jaxplan.frontend._options import Options
from jaxplan.ir import Remat, analyse, recomputable_blocks, rematerialise, trace
from jaxplan.ir.attention import FORMS, GATHER, RING, attention_graph, exchange_of
from jaxplan.mesh import collective_seconds, parse_topology
from jaxplan.plans._plan import Plan
from jaxplan.search._microbatches import in_microbatches
from jaxplan.search._planner import plan_graph
from tests.sampling import sampled

Array = jax.Array
LENGTH, WIDTH, HEADS = 64, 16, 4


def causal(q: Array, k: Array, v: Array, lengths: Array) -> Array:
    """A mask of positions, and one of data: keys beyond the end of a sequence."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool)) & (jnp.arange(LENGTH) < lengths[:, None])[:, None, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def biased(q: Array, k: Array, v: Array, lengths: Array) -> Array:
    """Shared heads of keys, and a bias by distance that hides the future."""
    q, k, v = q.reshape(2, LENGTH, 2, 2, 4), k[:, :, :2], v[:, :, :2]
    distance = jnp.arange(LENGTH)[:, None] - jnp.arange(LENGTH)
    bias = jnp.where(distance >= 0, -0.1 * distance, -jnp.inf)
    weights = jax.nn.softmax(jnp.einsum("bqhgd,bkhd->bhgqk", q, k) + bias, -1)
    return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v).reshape(2, LENGTH, HEADS, 4)


def make_step(attention: Callable[..., Array], *, scan: bool = False) -> Callable[..., Any]:
    def block(params: Any, x: Array, lengths: Array) -> Array:
        q, k, v = (jnp.einsum("btm,mhd->bthd", x, params[name]) for name in "qkv")
        return x + jnp.einsum("bthd,hdm->btm", attention(q, k, v, lengths), params["o"])

    def loss(params: Any, x: Array, lengths: Array) -> Array:
        if scan:
            again = jax.checkpoint(block, prevent_cse=False)
            y, _ = jax.lax.scan(lambda x, layer: (again(layer, x, lengths), None), x, params)
        else:
            y = block(params, x, lengths)
        return (y**2).mean()

    def step(params: Any, x: Array, lengths: Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, lengths)
        return jax.tree.map(lambda p, g: p - g, params, gradients), value

    return step


def arguments(layers: int = 0, dtype: Any = jnp.float32, scale: float = 0.3) -> tuple[Any, Array, Array]:
    draw, stack = np.random.default_rng(3), (layers,) if layers else ()
    params = {n: draw.normal(size=(*stack, WIDTH, HEADS, 4), scale=scale).astype(dtype) for n in "qkv"}
    params["o"] = draw.normal(size=(*stack, HEADS, 4, WIDTH), scale=scale).astype(dtype)
    x = draw.normal(size=(2, LENGTH, WIDTH)).astype(dtype)
    return params, jnp.asarray(x), jnp.asarray([LENGTH, 37])


def context_plan(
    step: Callable[..., Any],
    args: Any,
    form: str,
    *,
    num: int = 0,
    again: bool = False,
    topology: str = "cpu:8",
    overlap: bool = True,
) -> Plan:
    """The sequence over all eight devices; ``num`` micro-batches, and with ``again`` every block recomputed."""
    graph, machine = analyse(trace(step, args)), parse_topology(topology)
    graph = attention_graph(in_microbatches(graph, num) if num else graph, form)
    if again:
        blocks = recomputable_blocks(graph)
        graph = rematerialise(graph, Remat(num_all=len(blocks), of=len(blocks)), blocks).graph
    options = Options(topology=machine, overlap=overlap).on(machine)
    with Progress(False) as report:
        frontier = plan_graph(graph, topology=machine, options=options, report=report, name="step")
    return frontier.references["context"]


def largest_difference(found: Any, wanted: Any) -> float:
    pairs = zip(jax.tree.leaves(jax.device_get(found)), jax.tree.leaves(jax.device_get(wanted)), strict=True)
    wide = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in wide)


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("attention", sampled([biased, causal]))
def test_equals_one_device(attention: Callable[..., Array], form: str) -> None:
    step, args = make_step(attention), arguments()
    plan = context_plan(step, args, form)
    assert plan.sequences is not None
    assert (plan.sequences.form, plan.sequences.parts) == (form, 8)
    assert largest_difference(plan.jit()(*args), jax.jit(step)(*args)) < 1e-5




@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "form, num, again",
    sampled(
        [
            (RING, 2, True),
            (GATHER, 0, True),
            *((form, 2, True) for form in FORMS if form != RING),
            *((form, 2, False) for form in (RING, GATHER)),
            (RING, 0, True),
        ],
        2,
    ),
)
def test_micro_batches_and_recomputed_blocks_equal_one_device(form: str, num: int, again: bool) -> None:
    """Positions of the mask are made outside of the loop over micro-batches, and read in it."""

    def step(params: Any, x: Array, lengths: Array) -> Any:
        def loss(params: Any) -> Array:
            y = x
            for of in params:
                q, k, v = (jnp.einsum("btm,mhd->bthd", y, of[name]) for name in "qkv")
                y = y + jnp.einsum("bthd,hdm->btm", causal(q, k, v, lengths), of["o"])
            return (y**2).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - g, params, gradients), value

    with jax.enable_x64(True):
        params, x, _ = arguments(3, jnp.float64)
        layers = [{name: w[layer] for name, w in params.items()} for layer in range(3)]
        args = layers, jnp.concatenate([x, x[::-1] / 2]), jnp.asarray([LENGTH, 37, 5, 50])
        wanted = jax.jit(step)(*args)
        plan = context_plan(step, args, form, num=num, again=again)
        assert plan.sequences is not None and plan.sequences.parts == 8 and bool(plan.remat) == again
        assert (plan.microbatches is None) == (num == 0)
        found = plan.jit(donate_argnums=())(*plan.shard(args))
    assert largest_difference(found, wanted) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("form", sampled(FORMS))
def test_float64_agrees_also_where_float32_is_ill_conditioned(form: str) -> None:
    """Weights of size 1 in two layers: rounding grows by 1e5, in float64 too."""
    with jax.enable_x64(True):
        step, args = make_step(causal, scan=True), arguments(layers=2, dtype=np.float64, scale=1.0)
        assert largest_difference(context_plan(step, args, form).jit()(*args), jax.jit(step)(*args)) < 1e-9


@pytest.mark.parametrize("form", sampled(FORMS))
def test_bfloat16_agrees_to_its_rounding(form: str) -> None:
    step, args = make_step(causal), arguments(dtype=jnp.bfloat16)
    assert largest_difference(context_plan(step, args, form).jit()(*args), jax.jit(step)(*args)) < 2.0**-6


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sampled([jnp.bfloat16, jnp.float32]))
def test_a_script_of_it_runs(dtype: Any, tmp_path: Path) -> None:
    step, args = make_step(causal), arguments(dtype=dtype)
    context_plan(step, args, "ring").export(tmp_path / "planned.py")
    wanted = jax.jit(step)(*args)
    found = runpy.run_path(str(tmp_path / "planned.py"), run_name="planned")["step"](*args)
    assert largest_difference(found, wanted) < (1e-5 if dtype == jnp.float32 else 2.0**-6)


def test_checkpointed_blocks_in_a_loop() -> None:
    step, args = make_step(causal, scan=True), arguments(layers=2)
    plan = context_plan(step, args, "ring")
    assert plan.sequences is not None
    assert plan.sequences.parts == 8
    wanted = jax.jit(step)(*args)
    assert largest_difference(plan.jit()(*args), wanted) < 1e-5
    assert largest_difference(plan.jit(backend="shard_map")(*args), wanted) < 1e-5


@pytest.mark.slow
def test_compiled_ring_moves_what_was_predicted() -> None:
    """Of n devices, n - 1 passes of keys and of values in each pass, and n of their gradients."""
    audit = context_plan(make_step(causal), arguments(), "ring").audit()
    row = next(row for row in audit.rows if row.kind == "collective-permute")
    assert row.predicted_count == 2 * 7 + 2 * 7 + 2 * 8
    assert row.predicted_bytes == row.compiled_bytes
    assert audit.predicted_flops == audit.compiled_flops


@pytest.mark.slow
def test_compiled_exchange_moves_what_was_predicted() -> None:
    """Four heads of keys are exchanged among 4 of 8 GPUs: an all-to-all of queries, keys, values, the result and its
    row sums; back of the first three, the cotangent, two numbers for each row and three gradients. From the other half
    keys and values are gathered twice, and their gradients are summed. CPUs keep the arrays of the forward pass."""
    plan = context_plan(make_step(causal), arguments(), "heads", topology="h100:8")
    assert plan.sequences is not None
    assert plan.sequences.exchanged == 4
    rows = {row.kind: row for row in plan.audit().rows}
    assert rows["all-to-all"].predicted_count == rows["all-to-all"].compiled_count == 5 + 4 + 2 + 3
    for kind in ("all-to-all", "all-gather", "reduce-scatter"):
        assert rows[kind].predicted_bytes == rows[kind].compiled_bytes


def test_an_exchange_receives_fewer_bytes_than_a_gather_where_heads_are_many() -> None:
    """Of n devices with Q bytes of queries and r times as many of keys each, an exchange receives (n - 1)/n of
    2 (1 + r) Q in the forward pass, and gathering (n - 1) 2 r Q: more where r is 1, less where r is 1/8 and n is 2."""
    equal, shared = (attention_of(num_keys) for num_keys in (16, 2))
    assert exchange_of(*equal, (2, 2, 2)) is not None
    assert exchange_of(*equal, (2, 2, 2)).num_axes == 3
    assert exchange_of(*shared, (2,)) is None


def attention_of(num_keys: int) -> tuple[Any, list[tuple[int, ...]]]:
    """An attention of 16 heads on so many heads of keys, and shapes on a device with 64 positions."""
    q = jax.ShapeDtypeStruct((1, 64, num_keys, 16 // num_keys, 8), jnp.float32)
    k = jax.ShapeDtypeStruct((1, 64, num_keys, 8), jnp.float32)

    def attend(q: Array, k: Array, v: Array) -> Array:
        return jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(jnp.einsum("bqhgd,bkhd->bhgqk", q, k), -1), v)

    program = attention_graph(analyse(trace(attend, (q, k, k))), "heads").program
    (eqn,) = (eqn for eqn in program.equations if "attention" in eqn.params)
    return eqn.params["attention"], [program.tensors[t].shape for t in eqn.operands]


@pytest.mark.parametrize("length", [8192, 64])
def test_passes_of_a_ring_run_beside_its_blocks(length: int) -> None:
    """Blocks that take longer than a pass hide all passes of keys and values, n - 1 of each in both directions; the
    sums, which are passed on behind a block, are seen. Shorter blocks hide no more than the seconds that they take.
    Beside other compute nothing is hidden here (``overlap=False``)."""
    num, itemsize, width = 8, 4, 4

    def step(w: Array, x: Array) -> Array:
        def loss(w: Array) -> Array:
            q, k, v = (jnp.einsum("btm,mhd->bthd", x, w[i]) for i in range(3))
            weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
            return (jnp.einsum("bhqk,bkhd->bqhd", weights, v) ** 2).sum()

        return w - jax.grad(loss)(w)

    args = (
        jax.ShapeDtypeStruct((3, 4, HEADS, width), jnp.float32),
        jax.ShapeDtypeStruct((1, length, 4), jnp.float32),
    )
    ring, gathered = (
        context_plan(step, args, form, topology="h100:8", overlap=False) for form in (RING, GATHER)
    )
    local = length // num * HEADS * width * itemsize
    each = float(collective_seconds(ring.topology, "collective-permute", local, (0, 1, 2)))
    passes = 2 * 2 * (num - 1) * each
    assert gathered.hidden_seconds == 0.0
    if length == 8192:
        assert ring.hidden_seconds == pytest.approx(passes)
    else:
        assert 0.0 < ring.hidden_seconds < min(passes, ring.compute_seconds)
    seconds = ring.compute_seconds + ring.communication_seconds - ring.hidden_seconds
    assert ring.time_seconds == pytest.approx(seconds)
    assert ring.simulate().time_seconds <= seconds * (1 + 1e-9)  # no schedule is longer than all in turn


def test_search_finds_it_where_scores_are_long(tmp_path: Any) -> None:
    """Scores of all pairs take 128 KiB, which no device has; the frontier, saved and read, has attention in blocks."""
    step, args = make_step(causal), arguments()
    frontier = jaxplan.plan(step, *args, topology="cpu:8", memory=200_000, progress=False)
    leanest = frontier.points[0]
    assert leanest.sequences is not None
    assert "attention in" in leanest.summary
    frontier.save(tmp_path / "frontier.json")
    loaded = jaxplan.load(tmp_path / "frontier.json", step, *args)
    assert isinstance(loaded, jaxplan.Frontier)
    again = loaded.points[0]
    assert again.sequences == leanest.sequences
    assert largest_difference(again.jit()(*args), jax.jit(step)(*args)) < 1e-5


def test_short_sequences_are_not_looked_at() -> None:
    frontier = jaxplan.plan(make_step(causal), *arguments(), topology="cpu:8", memory="1GiB", progress=False)
    assert all(plan.sequences is None for plan in frontier.points)
