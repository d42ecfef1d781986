"""Closed forms: operations, resident and saved bytes, peak memory and collectives of programs counted by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxplan.cost import CostModel, Predictor, build_cost_model, plan_transfers
from jaxplan.mesh import Topology, collective_seconds
from jaxplan.search._make_plan import Proof, make_plan
from jaxplan.search._traced import analyse_step
from jaxplan.strategies import apply_strategies, reference_solution
from jaxplan.xla._lifetimes import Lifetimes
from tests.cost.one_device import shape
from tests.versions import H100_DOT_SCRATCH

BATCH, WIDTH, HIDDEN = 64, 32, 128
PARAMS = {"in": (WIDTH, HIDDEN), "out": (HIDDEN, WIDTH)}


def sgd_step(params: Any, x: jax.Array) -> Any:
    def loss_fn(params: Any) -> jax.Array:
        return jnp.sum((jnp.tanh(x @ params["in"]) @ params["out"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def model_of(step: Any, *args: Any, topology: str = "cpu:8", donate: Any = None) -> CostModel:
    graph = analyse_step(step, args, {}, donate_argnums=donate, static_argnums=())
    return build_cost_model(graph, Topology.parse(topology))


@pytest.fixture(scope="module")
def model() -> CostModel:
    return model_of(sgd_step, {k: shape(*v) for k, v in PARAMS.items()}, shape(BATCH, WIDTH))


def replicated(model: CostModel) -> tuple[list[int], list[int]]:
    return [0] * len(model.configurations), [0] * len(model.problem.edges)


# operations


def test_flops_are_two_per_multiply_add(model: CostModel) -> None:
    prediction, _ = Predictor(model).predict(*replicated(model))
    # Forward and weight gradient of both layers, input gradient of the second.
    assert prediction.flops == 5 * 2 * BATCH * WIDTH * HIDDEN


def test_no_configuration_does_less_than_its_share(model: CostModel) -> None:
    for flops, configs in zip(model.flops, model.configurations, strict=True):
        splits = [8 ** (sum(map(len, config)) / 3) for config in configs]
        np.testing.assert_allclose(flops, flops[0] / np.array(splits), rtol=1e-12)


@pytest.mark.parametrize(("m", "k", "n"), [(4096, 4096, 4096), (1, 8192, 8192), (8192, 1, 8192)])
def test_a_matrix_product_is_bound_by_arithmetic_or_by_memory(m: int, k: int, n: int) -> None:
    bf16 = jnp.bfloat16
    model = model_of(jnp.matmul, shape(m, k, dtype=bf16), shape(k, n, dtype=bf16), topology="h100:1")
    chip = model.topology.chip
    arithmetic = 2 * m * k * n / dict(chip.flops_per_second)["bf16"]
    traffic = 2 * (m * k + k * n + m * n) / chip.memory_bytes_per_second
    seconds = sum(c[0] for c in model.compute)
    roof = max(arithmetic, traffic)
    assert roof < seconds < 2 * roof + 20e-6
    assert (arithmetic > traffic) == (min(m, k, n) > 1)


# memory


def test_resident_bytes_are_state_and_batch(model: CostModel) -> None:
    prediction, _ = Predictor(model).predict(*replicated(model))
    assert prediction.memory_parts["parameters"] == 4 * 2 * WIDTH * HIDDEN
    assert prediction.memory_parts["batch and other arguments"] == 4 * BATCH * WIDTH
    assert sum(prediction.memory_parts.values()) == prediction.memory_bytes


def test_what_is_saved_for_the_backward_pass(model: CostModel) -> None:
    """The hidden layer after its tanh (which gives its own derivative) and the output that is squared."""
    tensors = model.graph.program.tensors
    saved = sorted(tensors[t].shape for t in model.buffers.saved if tensors[t].shape)
    assert saved == sorted([(BATCH, HIDDEN), (BATCH, WIDTH)])


def test_a_rectifier_saves_what_it_read_and_not_its_mask() -> None:
    """The mask of its derivative is compared again from the dot; the next dot's gradient reads the result."""

    def step(params: Any, x: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            return jnp.sum((jax.nn.relu(x @ params["in"]) @ params["out"]) ** 2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params))

    model = model_of(step, {k: shape(*v) for k, v in PARAMS.items()}, shape(BATCH, WIDTH))
    saved = [model.graph.program.tensors[t] for t in model.buffers.saved]
    hidden = [t for t in saved if t.shape == (BATCH, HIDDEN)]
    assert [t.dtype for t in hidden] == [np.dtype(np.float32)] * 2


def test_peak_of_a_chain_of_dots() -> None:
    """x w1 w2 w3 w4 without gradients: all weights, and at each dot its operand and its result."""
    widths = [16, 512, 8, 1024, 64]
    weights = [shape(a, b) for a, b in itertools.pairwise(widths)]

    def chain(x: jax.Array, weights: Any) -> jax.Array:
        for w in weights:
            x = x @ w
        return x

    model = model_of(chain, shape(BATCH, widths[0]), weights, topology="cpu:1", donate=())
    prediction, _ = Predictor(model).predict(*replicated(model))
    inputs = 4 * (BATCH * widths[0] + sum(a * b for a, b in itertools.pairwise(widths)))
    made = [0, *(4 * BATCH * w for w in widths[1:])]  # the first operand is an input
    assert prediction.memory_bytes == inputs + max(a + b for a, b in itertools.pairwise(made))


def test_donated_state_is_not_counted_twice() -> None:
    def scale(state: jax.Array) -> jax.Array:
        return state * 0.5

    for donate, copies in (((0,), 1), ((), 2)):
        model = model_of(scale, shape(256, 256), topology="cpu:1", donate=donate)
        prediction, _ = Predictor(model).predict(*replicated(model))
        assert prediction.memory_bytes == copies * 4 * 256 * 256


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_of_a_liveness_curve_is_its_largest_moment(seed: int) -> None:
    rng = np.random.default_rng(seed)
    length, count = 12, int(rng.integers(0, 10))
    births = rng.integers(0, length, count)
    deaths = np.minimum(births + rng.integers(0, 6, count), length)
    sizes = rng.integers(1, 100, count)
    labels = [str(label) for label in rng.integers(0, 3, count)]
    moments = [
        sum(int(s) for b, d, s in zip(births, deaths, sizes) if b <= now <= d) for now in range(length + 1)
    ]
    lifetimes = Lifetimes(
        first=births,
        last=deaths,
        sizes=sizes.astype(float),
        labels=tuple(labels),
        resident={"state": 7.0},
        length=length,
        home={},
        copies={},
    )
    peak, parts = lifetimes.peak()
    assert peak == max(moments) + 7
    assert sum(parts.values()) == peak


# communication


def test_time_is_that_of_the_listed_collectives(model: CostModel) -> None:
    predictor = Predictor(model)
    for strategy_plan in apply_strategies(model.graph, model.topology).plans.values():
        prediction, _ = predictor.predict(*reference_solution(model, strategy_plan))
        listed = sum(
            c.count * float(collective_seconds(model.topology, c.kind, c.num_bytes, c.axes))
            for c in prediction.collectives
        )
        assert 0 < prediction.communication_seconds <= listed * (1 + 1e-12)
        assert prediction.time_seconds == prediction.compute_seconds + prediction.communication_seconds


@pytest.mark.parametrize(
    ("reduce", "kind", "gathered"),
    [(jnp.max, "all-reduce", 1), (jnp.min, "all-reduce", 1), (jnp.prod, "all-gather", 8)],
)
def test_an_extreme_over_a_split_dimension_communicates_where_it_is_taken(
    reduce: Any, kind: str, gathered: int
) -> None:
    """Unlike a sum, which may wait: 64 numbers of four bytes, from each of eight devices that hold 128 of 1,024."""
    model = model_of(lambda x: jnp.tanh(reduce(jnp.tanh(x), axis=1)), shape(64, 1024))
    (group,) = {
        model.graph.grouping.equation_group[e.index]
        for e in model.graph.program.equations
        if e.name.startswith("reduce")
    }
    sizes = [c.sizes for c in model.graph.spaces[group].classes]
    choice, choices = replicated(model)
    choice[group] = next(
        k
        for k, config in enumerate(model.configurations[group])
        if all(len(axes) == (3 if 1024 in of else 0) for axes, of in zip(config, sizes, strict=True))
    )
    prediction, _ = Predictor(model).predict(choice, choices)
    assert [(c.kind, c.num_bytes, c.count) for c in prediction.collectives if c.kind == kind] == [
        (kind, 64 * 4 * gathered, 1)
    ]


def test_one_device_communicates_nothing() -> None:
    model = model_of(
        sgd_step, {k: shape(*v) for k, v in PARAMS.items()}, shape(BATCH, WIDTH), topology="h100:1"
    )
    assert all(len(configs) == 1 for configs in model.configurations)
    prediction, transfers = Predictor(model).predict(*replicated(model))
    assert not transfers
    assert prediction.communication_seconds == 0


def test_a_kept_copy_is_made_once_and_a_repeated_one_twice(model: CostModel) -> None:
    assignment, choices = reference_solution(model, apply_strategies(model.graph, model.topology).plans["fsdp"])
    out = model.graph.program.inputs[model.graph.program.in_paths.index("[0]['out']")]
    chosen = model.chosen(assignment)
    turning = model.buffers.turning_point
    for picks, repeated in ((choices, True), ([0] * len(choices), False)):
        repeats = model.repeated(picks)
        transfers = plan_transfers(model.graph, model.topology, model.reads, chosen, repeats, model.buffers)
        (gather,) = [t for t in transfers if t.tensor == out]
        assert [s.kind for s in gather.path.steps] == ["all-gather"]
        assert gather.repeated == repeated
        assert len(gather.spans) == 1 + repeated
        assert gather.spans[0].first < turning
        assert gather.spans[-1].last >= turning


_TOKENS = "eij,jk->eik", (128, 16)
_EXPERTS = "eij,ejk->eik", (8, 128, 16)


@pytest.mark.parametrize(
    ("einsum", "dim", "times"),
    [(_TOKENS, 0, 1), (_TOKENS, 1, 2), (_TOKENS, 2, 1), (_EXPERTS, 0, 1), (_EXPERTS, 1, 2), (_EXPERTS, 2, 2)],
)
def test_what_is_gathered_between_dimensions_is_transposed_for_a_dot(einsum: Any, dim: int, times: int) -> None:
    """Pieces lie one after the other: in order where rows are split, a transposed matrix where columns are. A dot over
    experts reads these first, so their gathered columns are transposed as well."""
    dims, (subscripts, other) = (8, 64, 128), einsum
    model = model_of(lambda x, w: jnp.einsum(subscripts, x, w), shape(*dims), shape(*other), topology="h100:8")
    assignment, choices = replicated(model)
    x = model.graph.program.inputs[0]
    group = model.graph.grouping.tensor_group[x]
    (split,) = model.graph.spaces[group].tensor_dims[x][dim]
    whole = [k for k, config in enumerate(model.configurations[group]) if len(config[split]) == 3]
    assignment[group] = whole[0]
    prediction, (gather,) = Predictor(model).predict(assignment, choices)
    assert [step.kind for step in gather.path.steps] == ["all-gather"]
    assert prediction.memory_parts["resharded copies"] == times * 4 * math.prod(dims)


@pytest.mark.parametrize("einsum", [_TOKENS, _EXPERTS])
def test_a_gathered_matrix_is_transposed_in_front_of_its_dot(einsum: Any) -> None:
    """The dot, which has scratch memory, reads the transposed copy alone: the gathered one is gone."""
    dims, (subscripts, other) = (8, 64, 128), einsum
    step = lambda x, w: jnp.einsum(subscripts, x, jnp.tanh(w))  # noqa: E731
    model = model_of(step, shape(*dims), shape(*other), topology="h100:8")
    assignment, choices = replicated(model)
    group = model.graph.grouping.tensor_group[model.graph.program.inputs[0]]
    (split,) = model.graph.spaces[group].tensor_dims[model.graph.program.inputs[0]][1]
    assignment[group] = next(k for k, config in enumerate(model.configurations[group]) if len(config[split]) == 3)
    prediction, _ = Predictor(model).predict(assignment, choices)
    assert prediction.memory_parts["workspace"] == H100_DOT_SCRATCH
    assert prediction.memory_parts["resharded copies"] == 4 * math.prod(dims)


def test_a_slice_of_a_value_that_its_reader_computes_is_no_buffer() -> None:
    """Rows of a masked value, computed whole, are added to a dot that is split by rows: the sum's kernel computes the
    rows of its device alone."""
    rows, columns = 32768, 4096  # 64 MiB of a device, more than the scratch memory of the dot

    def step(x: jax.Array, w: jax.Array, ends: jax.Array, scores: jax.Array) -> jax.Array:
        masked = jnp.where(ends[:, None] > jnp.arange(columns), scores[:, None], 0)
        return jnp.sum(jnp.maximum(x @ w, 0) + masked, axis=1)

    args = shape(rows, 64), shape(64, columns), shape(rows, dtype=jnp.int32), shape(rows)
    model = model_of(step, *args, topology="h100:8")
    program, grouping = model.graph.program, model.graph.grouping
    assignment, choices = replicated(model)
    for eqn in program.equations:
        if eqn.name in ("dot_general", "max"):
            group = grouping.equation_group[eqn.index]
            (split,) = model.graph.spaces[group].tensor_dims[eqn.results[0]][0]
            whole = (k for k, config in enumerate(model.configurations[group]) if len(config[split]) == 3)
            assignment[group] = next(whole)
    prediction, transfers = Predictor(model).predict(assignment, choices)
    (masked,) = (t for t in transfers if program.tensors[t.tensor].shape == (rows, columns))
    assert not masked.collectives and not model.buffers.materialised[masked.tensor]
    shared = 4 * rows * columns // 8
    assert prediction.memory_parts.get("resharded copies", 0) < shared


def test_a_kept_copy_costs_memory_and_a_repeated_one_time(model: CostModel) -> None:
    predictor = Predictor(model)
    assignment, again = reference_solution(model, apply_strategies(model.graph, model.topology).plans["fsdp"])
    repeat, _ = predictor.predict(assignment, again)
    keep, _ = predictor.predict(assignment, [0] * len(again))
    assert keep.communication_seconds < repeat.communication_seconds
    assert keep.memory_bytes >= repeat.memory_bytes


def test_equal_layers_share_their_tables() -> None:
    """So that building the problem costs a layer, and solvers can fold the rest."""

    def step(params: Any, x: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            h = x
            for w in params:
                h = h + jnp.tanh(h @ w["up"]) @ w["down"]
            return jnp.sum(h**2)

        return jax.tree.map(lambda p, g: p - g, params, jax.grad(loss_fn)(params))

    def distinct(num_layers: int) -> int:
        layers = [{"up": shape(WIDTH, HIDDEN), "down": shape(HIDDEN, WIDTH)}] * num_layers
        model = model_of(step, layers, shape(BATCH, WIDTH))
        return len({id(t) for t in model.problem.time}) + len({id(e.time) for e in model.problem.edges})

    assert distinct(6) == distinct(4)


def test_make_plan_says_what_the_predictor_says(model: CostModel) -> None:
    predictor = Predictor(model)
    assignment, choices = reference_solution(model, apply_strategies(model.graph, model.topology).plans["data"])
    plan = make_plan(predictor, assignment, choices, name="data", proof=Proof(lower_bound_seconds=1e9))
    assert plan.prediction == predictor.predict(assignment, choices)[0]
    assert plan.lower_bound_seconds <= plan.time_seconds


def test_what_is_remembered_of_other_plans_changes_no_prediction() -> None:
    """Three equal layers; assignments one after the other, each against a predictor that has seen no other."""

    def step(params: Any, x: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            hidden = x
            for weight in params:
                hidden = jnp.tanh(hidden @ weight)
            return jnp.sum(hidden**2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_fn)(params))

    model = model_of(step, [shape(WIDTH, WIDTH)] * 3, shape(BATCH, WIDTH), topology="h100:2x2")
    rng, used = np.random.default_rng(0), Predictor(model)
    for _ in range(12):
        assignment = [int(rng.integers(len(configs))) for configs in model.configurations]
        choices = [int(rng.integers(edge.time.shape[2])) if edge.time.ndim == 3 else 0 for edge in model.problem.edges]
        found = used.predict(assignment, choices)
        assert found == Predictor(model).predict(assignment, choices)
        chosen, repeated = model.chosen(assignment), model.repeated(choices)
        transfers = plan_transfers(model.graph, model.topology, model.reads, chosen, repeated, model.buffers)
        assert found[1] == transfers
        assert used.predict(assignment, choices) == found
