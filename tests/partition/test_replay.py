"""Whatever configurations are chosen, the replayed program computes the same as the step.

Each step holds operators of one kind. Its configurations are drawn at random, mostly such that something is split, so
that every way of the backend is taken: constraints, islands, partial sums through views, chains of transfers.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxplan
from jaxplan.cost import REPEAT, CostModel, Predictor, build_cost_model, find_reads, plan_transfers
from jaxplan.cost._plan_shardings import PlanShardings
from jaxplan.mesh import COLLECTIVES, Topology
from jaxplan.partition._lowering import Resharding
from jaxplan.partition._sliced_reads import find_sliced_reads
from jaxplan.plans._plan import Plan
from jaxplan.search._make_plan import make_plan
from jaxplan.search._traced import analyse_step
from jaxplan.xla import Target, analyse_buffers
from tests.partition.edited_plans import with_lowering
from tests.sampling import sampled

NUM_DRAWS = 3
F32, I32 = jnp.float32, jnp.int32
Args = dict[str, tuple[tuple[int, ...], Any]]
CASES: dict[str, tuple[Callable[..., Any], Args]] = {}


def case(**args: tuple[tuple[int, ...], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a step and the shapes and dtypes of its arguments; integers are drawn from 0 to 15."""

    def register(step: Callable[..., Any]) -> Callable[..., Any]:
        CASES[step.__name__] = step, args
        return step

    return register


@case(x=((16, 8), F32), w=((8, 32), F32), v=((32, 8), F32))
def contractions_and_their_gradients(x: Any, w: Any, v: Any) -> Any:
    return jax.value_and_grad(lambda x, w, v: jnp.sum(jnp.sin(jnp.sin(x @ w) @ v)), (0, 1, 2))(x, w, v)


@case(x=((16, 4, 6), F32), w=((4, 2, 2), F32), v=((8, 4, 3), F32))
def grouped_and_strided_convolutions(x: Any, w: Any, v: Any) -> Any:
    """The kernel of an input gradient is reversed; in a grouped one the groups change sides as well."""

    def loss(x: Any, w: Any, v: Any) -> Any:
        dims = ("NCH", "OIH", "NCH")
        y = jax.lax.conv_general_dilated(x, w, (1,), "VALID", dimension_numbers=dims, feature_group_count=2)
        return jnp.sum(jnp.sin(jax.lax.conv_general_dilated(y, v, (2,), "SAME", dimension_numbers=dims)))

    return jax.grad(loss, (0, 1, 2))(x, w, v)


@case(x=((16, 8), I32), w=((8, 32), I32), xs=((4, 16, 8), I32))
def casts_of_contractions_to_integers(x: Any, w: Any, xs: Any) -> Any:
    """Halves are summed before they are cut off: a cast to integers is no view of a partial sum."""
    x, w, xs = x / 2, w / 1.0, xs / 2
    total, _ = jax.lax.scan(
        lambda c, x: (c + (x @ w).astype(I32), None), jnp.zeros((16, 32), I32), xs.astype(F32)
    )
    return (x @ w).astype(I32), total


@case(x=((16, 8), F32), y=((16, 8), F32))
def extreme_values(x: Any, y: Any) -> Any:
    return (
        jnp.max(x, 0),
        jnp.min(x * y, 1),
        jnp.max(y),
        jnp.prod(1 + x / 32, 0),
        jnp.argmax(x, 1),
        jnp.any(x > y, 1),
    )


@case(x=((16, 32), F32))
def softmax_of_the_split_dimension(x: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jax.nn.log_softmax(x) ** 2))(x)


@case(table=((16, 8), F32), ids=((8, 4), I32))
def embedding(table: Any, ids: Any) -> Any:
    """A gather, and in its gradient a scatter-add that several positions hit."""
    return jax.value_and_grad(lambda t: jnp.sum(jnp.sin(t[ids])))(table)


@case(logits=((8, 4, 16), F32), labels=((8, 4), I32))
def label_log_likelihood(logits: Any, labels: Any) -> Any:
    def loss(logits: Any) -> Any:
        picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

    return jax.value_and_grad(loss)(logits)


@case(logits=((8, 4, 128), F32), tokens=((8, 5), I32))
def next_token_log_likelihood(logits: Any, tokens: Any) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels
    return jax.value_and_grad(lambda logits: jnp.sum(losses(logits, tokens[:, 1:])))(logits)


@case(x=((4, 8, 16), F32), wq=((16, 4, 8), F32), wk=((16, 4, 8), F32), wo=((4, 8, 16), F32))
def attention(x: Any, wq: Any, wk: Any, wo: Any) -> Any:
    def loss(wq: Any, wk: Any, wo: Any) -> Any:
        q, k = jnp.einsum("btd,dhk->bthk", x, wq), jnp.einsum("btd,dhk->bthk", x, wk)
        scores = jax.nn.softmax(jnp.where(jnp.tri(8, dtype=bool), jnp.einsum("bqhk,bshk->bhqs", q, k), -1e9))
        return jnp.sum(jnp.sin(jnp.einsum("bhqs,bshk,hkd->bqd", scores, k, wo)))

    return jax.grad(loss, (0, 1, 2))(wq, wk, wo)


@case(x=((3, 16), F32), w=((16, 5), F32), ids=((3, 2), I32))
def a_partial_sum_viewed_and_looked_up(x: Any, w: Any, ids: Any) -> Any:
    """The view hands it on; the look-up has it summed, to the layout that the view would have."""
    y = x @ w
    return y.reshape(15), jnp.sin(jnp.take_along_axis(y, ids % 5, 1, mode="fill", fill_value=0))


@case(x=((16, 8), F32), w=((8, 8), F32))
def a_widened_value_in_two_layouts(x: Any, w: Any) -> Any:
    wide = jnp.sort(x.astype(jnp.bfloat16), 1).astype(F32)
    return wide @ w, jnp.cumsum(wide, 1)


@case(x=((4, 8, 8, 8), F32), w=((3, 3, 8, 16), F32))
def convolution(x: Any, w: Any) -> Any:
    def loss(x: Any, w: Any) -> Any:
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.sum(jnp.sin(y))

    return jax.grad(loss, (0, 1))(x, w)


@case(x=((16, 8), F32), y=((16, 24), F32))
def shapes(x: Any, y: Any) -> Any:
    joined = jnp.concatenate([x, y], axis=1).reshape(4, 4, 32)
    padded = jnp.pad(joined.transpose(2, 0, 1), ((0, 0), (1, 1), (0, 0)))[:, 1:-1]
    return (
        padded + jnp.arange(4.0),
        jnp.split(joined, 2, axis=-1)[1].squeeze(),
        jnp.flip(x, 0),
        jnp.tile(x, 2),
    )


@case(x=((16, 8), F32), start=((), I32))
def ordered_dimensions(x: Any, start: Any) -> Any:
    return (
        jnp.cumsum(x, 0),
        jnp.sort(x, 1),
        jax.lax.top_k(x, 2)[0],
        jax.lax.dynamic_slice(x, (start, 0), (4, 8)),
    )


@case(x=((16,), F32), start=((), I32), w=((14, 16, 8), F32))
def slices_that_begin_too_late(x: Any, start: Any, w: Any) -> Any:
    """Their starts are clamped, and only then are they split."""
    spread = jax.lax.GatherDimensionNumbers((0,), (), (0,))
    gathered = jax.lax.gather(x, start[None], spread, (14,), mode="clip")
    return [jnp.einsum("a,acb->cb", v, w) for v in (jax.lax.dynamic_slice(x, (start,), (14,)), gathered)]


@case(x=((3, 5), F32))
def sums_of_random_bits(x: Any) -> Any:
    """They are drawn where they are read, split; the first reduction of them is whole on every device."""
    return jnp.tanh(x + jnp.sum(jax.random.uniform(jax.random.key(2), (3, 5, 8)), 2))


@case(params=((8, 16), F32), slots=((8, 16), F32), x=((16, 8), F32))
def optimizer_with_clipping(params: Any, slots: Any, x: Any) -> Any:
    loss, grad = jax.value_and_grad(lambda p: jnp.mean(jnp.tanh(x @ p) ** 2))(params)
    grad = grad * jnp.minimum(1.0, 0.1 / jnp.sqrt(jnp.sum(grad**2)))
    slots = 0.9 * slots + grad
    return params - 0.1 * slots, slots, loss


@case(params=((8, 16), F32), slots=((8, 16), F32), x=((16, 8), F32))
def half_precision_update_with_clipping(params: Any, slots: Any, x: Any) -> Any:
    """Of another dtype, no result succeeds an argument, and the update is in no group with one."""
    return [y.astype(jnp.bfloat16) for y in optimizer_with_clipping(params, slots, x)]


@case(x=((8, 16), F32), w=((16, 8), F32))
def gradients_under_a_mesh_of_the_step(x: Any, w: Any) -> Any:
    """A function that is mapped over a constrained value is traced under the mesh of the constraint."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("d", "m"))

    def loss(w: Any) -> Any:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, ("d", "m")))
        y = jax.lax.with_sharding_constraint(jnp.sin(x @ w), sharding)
        return jnp.sum(jnp.sin(jax.vmap(lambda row: jnp.max(y, 1) * 2)(x)))

    return jax.grad(loss)(w)


@case(x=((2, 6), F32), w=((2, 2), F32))
def what_is_cut_and_spread(x: Any, w: Any) -> Any:
    """The compiler failed where it split such a dimension for the sake of a reader that splits it."""
    cut = jax.lax.pad(w @ x, jnp.float32(1), ((0, -1, 0), (0, 0, 0)))
    spread = jax.lax.pad(x, jnp.float32(1), ((0, 0, 0), (-1, 0, 1)))
    return jnp.sum(jnp.sin(cut)), jnp.sin(cut), spread @ spread.T


@case(x=((6, 16, 8), F32), w=((8, 16), F32), u=((16, 16), F32))
def recurrence(x: Any, w: Any, u: Any) -> Any:
    """A loop with a gradient that accumulates over the trips, and one that consumes the stack of another."""

    def loss(x: Any, w: Any, u: Any) -> Any:
        def cell(h: Any, row: Any) -> Any:
            h = jnp.tanh(row @ w + h @ u)
            return h, h * 2

        h, outputs = jax.lax.scan(cell, jnp.zeros((16, 16)), x)
        return jnp.sum(jnp.sin(h)) + jnp.mean(outputs**2)

    return jax.value_and_grad(loss, (0, 1, 2))(x, w, u)


@case(x=((3, 16, 8), F32), w=((8, 32), F32), b=((32,), F32))
def gates(x: Any, w: Any, b: Any) -> Any:
    """Gradients that are taken apart before they are added up over the trips."""

    def loss(w: Any, b: Any) -> Any:
        ws, bs = jnp.split(w, 2, 1), jnp.split(b, 2)

        def cell(h: Any, row: Any) -> Any:
            forget, update = jnp.split(row @ jnp.concatenate(ws, 1) + jnp.concatenate(bs), 2, 1)
            return h * jax.nn.sigmoid(forget) + jnp.tanh(update), None

        return jnp.sum(jax.lax.scan(cell, jnp.ones((16, 16)), x)[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))(w, b)


@case(x=((8, 16), F32), w=((3, 16, 32), F32), v=((3, 32, 16), F32))
def scanned_layers_with_remat(x: Any, w: Any, v: Any) -> Any:
    def loss(w: Any, v: Any) -> Any:
        layer = jax.checkpoint(lambda h, p: (h + jnp.tanh(h @ p[0]) @ p[1], None))
        return jnp.mean(jax.lax.scan(layer, x, (w, v))[0] ** 2)

    return jax.value_and_grad(loss, (0, 1))(w, v)


@case(x=((16, 8), F32), w=((8, 8), F32))
def gradient_accumulation(x: Any, w: Any) -> Any:
    def micro(total: Any, rows: Any) -> Any:
        loss, grad = jax.value_and_grad(lambda w: jnp.sum(jnp.tanh(rows @ w) ** 2))(w)
        return (total[0] + loss, total[1] + grad), None

    return jax.lax.scan(micro, (0.0, jnp.zeros_like(w)), x.reshape(2, 8, 8))[0]


@case(x=((16, 8), F32), w=((8, 8), F32), count=((), I32))
def loops_in_loops_and_branches(x: Any, w: Any, count: Any) -> Any:
    def twice(h: Any, row: Any) -> Any:
        return jax.lax.fori_loop(0, 2, lambda i, h: jnp.sin(h @ w) + i, h) + row, jnp.sum(row)

    h, sums = jax.lax.scan(twice, x, x.reshape(2, 8, 8).repeat(2, 1), reverse=True)
    h = jax.lax.while_loop(lambda s: s[0] < count % 3, lambda s: (s[0] + 1, jnp.cos(s[1] @ w)), (0, h))[1]
    return jax.lax.cond(count % 2 == 0, lambda h: h @ w, lambda h: h - jnp.max(h, 0), h), sums


@functools.cache
def _model(name: str) -> CostModel:
    step, args = CASES[name]
    abstract = [jax.ShapeDtypeStruct(*spec) for spec in args.values()]
    graph = analyse_step(step, abstract, {}, donate_argnums=(), static_argnums=())
    assert not graph.unknown
    return build_cost_model(graph, Topology.parse("cpu:8"))


def _draw(name: str, seed: int) -> Plan:
    model = _model(name)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    most_split = rng.random() < 0.5  # all over everything, or anything
    assignment = _draw_assignment(model, rng, most_split)
    while not _is_feasible(model, assignment):
        assignment = _draw_assignment(model, rng, False)
    choices = []
    for edge in model.problem.edges:
        times = edge.time[assignment[edge.source], assignment[edge.target]]
        may_repeat = times.ndim and np.isfinite(times[REPEAT])
        choices.append(int(rng.integers(2)) if may_repeat else 0)
    return make_plan(Predictor(model), assignment, choices, name="drawn")


def _draw_assignment(model: CostModel, rng: np.random.Generator, most_split: bool) -> list[int]:
    assignment = []
    for configs in model.configurations:
        most = max(sum(map(len, c)) for c in configs)
        wanted = [k for k, c in enumerate(configs) if not most_split or sum(map(len, c)) == most]
        assignment.append(int(rng.choice(wanted)))
    return assignment


def _is_feasible(model: CostModel, assignment: list[int]) -> bool:
    """A whole value is never read as a partial sum: such pairs of configurations cost infinitely much."""
    return all(
        np.isfinite(np.min(edge.time[assignment[edge.source], assignment[edge.target]]))
        for edge in model.problem.edges
    )


@functools.cache
def _expected(name: str) -> tuple[list[np.ndarray], Any]:
    step, args = CASES[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = [
        rng.integers(0, 16, shape).astype(dtype)
        if dtype == I32
        else (rng.normal(size=shape) / 4).astype(dtype)
        for shape, dtype in args.values()
    ]
    return values, jax.device_get(jax.jit(step)(*values))


@pytest.mark.parametrize("seed", sampled(range(NUM_DRAWS)))
@pytest.mark.parametrize("name", CASES)
def test_a_drawn_plan_computes_the_same(name: str, seed: int) -> None:
    values, expected = _expected(name)
    plan = _draw(name, seed)
    found = plan.jit()(*values)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        assert a.dtype == b.dtype


@pytest.mark.slow
def test_gradients_of_convolutions_are_there_before_the_peak() -> None:
    """Six convolutions of short signals come before those of long ones in the backward pass, where memory is highest;
    of these one of the first input gradients waits. Numbers are the same."""

    def step(kernels: Any, x: Any) -> Any:
        def loss(kernels: Any) -> Any:
            h, dims = x, ("NCH", "OIH", "NCH")
            for number, kernel in enumerate(kernels):
                stride = (16,) if number == 3 else (1,)
                h = jnp.sin(jax.lax.conv_general_dilated(h, kernel, stride, "SAME", dimension_numbers=dims))
            return jnp.sum(h)

        return jax.tree.map(lambda k, g: k - 0.1 * g, kernels, jax.grad(loss)(kernels))

    rng = np.random.default_rng(0)
    kernels = [rng.normal(size=(8, 8, 3)).astype(F32) / 4 for _ in range(10)]
    x = rng.normal(size=(8, 8, 96)).astype(F32)
    plan = jaxplan.plan(step, kernels, x, topology="cpu:8", progress=False).references["fsdp"]
    program = plan.require_program().program
    settled = {barrier.equation for barrier in plan.lowering.schedule.barriers}
    backward = [e for e in program.equations if e.name == "conv_general_dilated" and e.phase == "backward"]
    inputs = [e for e in backward if program.tensors[e.results[0]].shape in (x.shape, (8, 8, 6))]
    long = [e.index for e in inputs if program.tensors[e.results[0]].shape == x.shape]
    assert len(backward) == 19 and len(inputs) == 9 and len(long) == 3
    assert settled & set(long[:2]) and len(settled) < len(inputs) / 2
    run = plan.jit()
    made_by: dict[str, str] = {}
    read: list[str | None] = []
    for line in run.lower(kernels, x).as_text().splitlines():  # names are used again from region to region
        read += [made_by.get(kernel) for kernel in re.findall(r"convolution\(%[\w#]+, (%\w+)\)", line)]
        made_by.update(re.findall(r'(%\w+)(?::\d+)? = "?([\w.]+)', line))
    assert read.count("stablehlo.reverse") == len(inputs)  # or no library sees an input gradient in them
    for found, expected in zip(run(kernels, x), step(kernels, x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_widened_value_travels_as_it_was() -> None:
    """A gather of a value that was cast from bfloat16 is one of 16 bits, in the plan and in the program."""
    name = "a_widened_value_in_two_layouts"
    values, _ = _expected(name)

    def carried(plan: Plan) -> list[Resharding]:
        return [r for r in plan.lowering.reshardings if r.carried != r.tensor]

    drawn = [(plan, carried(plan)) for plan in (_draw(name, seed) for seed in range(20))]
    plan, gathers = next(
        (plan, found)
        for plan, found in drawn
        if [s.kind for r in found for s in r.steps if s.kind in COLLECTIVES] == ["all-gather"]
    )
    assert [r.dtype for r in gathers] == ["bfloat16"]
    text = plan.jit().lower(*values).as_text()
    assert re.findall(r"stablehlo.all_gather.*-> tensor<[\dx]*x(\w+)>", text).count("bf16") == 1


@pytest.mark.parametrize(
    ("name", "seed", "whole"),
    [("label_log_likelihood", 9, "8,4,1"), ("half_precision_update_with_clipping", 39, "8,16")],
)
def test_what_is_read_in_slices_is_computed_in_slices(
    name: str, seed: int, whole: str
) -> None:
    """No device of the compiled program makes the whole; left as it is made, every one of them does."""
    values, _ = _expected(name)
    plan = _draw(name, seed)

    def times_made(plan: Plan) -> int:
        text = plan.jit().lower(*values).compile().as_text()
        return len(re.findall(rf"= \w+\[{whole}\]\S* (?!parameter)[\w-]+\(", text))

    assert times_made(plan) == 0
    crossing = {read.tensor for read in find_reads(plan.require_program())}
    assert times_made(with_lowering(plan, pinned=plan.lowering.pinned | crossing)) > 0


def test_labels_are_cut_out_of_tokens_whole_and_compared_in_slices() -> None:
    """Tokens are in no layout of their own, and so a slice of values computed from them was of the whole."""
    name, seed = "next_token_log_likelihood", 323
    (values, expected), plan = _expected(name), _draw(name, seed)
    graph = plan.require_program()
    tensors, reads = graph.program.tensors, find_reads(graph)
    buffers = analyse_buffers(graph, Target.of(plan.topology.chip))
    transfers = plan_transfers(graph, plan.topology, reads, plan.configurations, frozenset(plan.repeated), buffers)
    found = find_sliced_reads(PlanShardings(graph, plan.topology, plan.configurations, transfers))
    assert {tensors[t].shape for t in found.whole} == {(8, 4), (8, 4, 1)}
    assert any(tensors[t].shape == (8, 4, 128) for t in found.tensors - plan.lowering.pinned)
    assert found.whole <= plan.lowering.pinned
    results = plan.jit()(*values)
    for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_step_that_calls_back_does_so_once() -> None:
    """The printed value is the whole one, as on one device, and not once per device."""
    seen: list[np.ndarray] = []

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        gradient = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        jax.debug.callback(seen.append, gradient)
        return w - gradient

    key = jax.random.key(0)
    args = jax.random.normal(key, (32, 16)), jax.random.normal(key, (64, 32))
    run = jaxplan.plan(step, *args, topology="cpu:8", progress=False, donate_argnums=()).fastest().jit()
    planned, alone = run(*args), jax.jit(step)(*args)
    jax.effects_barrier()
    assert len(seen) == 2
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(planned, alone, rtol=1e-5, atol=1e-7)
