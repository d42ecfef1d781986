"""Groups and named dimensions of small steps, where a person can say what they should be."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import pytest

from jaxplan.ir import UNGROUPED, Group, StepGraph, analyse, dimension_graph, trace

BATCH, WIDTH, HIDDEN = 16, 32, 64


def shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def train(loss_fn: Any) -> Any:
    """A step of momentum descent: parameters and one slot of each."""

    def step(params: Any, slots: Any, x: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x)
        slots = jax.tree.map(lambda m, g: 0.9 * m + g, slots, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, slots), slots, loss

    return step


def graph_of(loss_fn: Any, params: Any, x: Any) -> StepGraph:
    return analyse(trace(train(loss_fn), (params, params, x)))


def groups_of(graph: StepGraph, primitive: str) -> list[int]:
    """The group of each equation of a primitive, in program order."""
    return [graph.grouping.equation_group[e.index] for e in graph.program.equations if e.name == primitive]


def two_layers(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"]) ** 2)


TWO_LAYERS = {"in": shape(WIDTH, HIDDEN), "out": shape(HIDDEN, WIDTH)}


@pytest.fixture(scope="module")
def perceptron() -> StepGraph:
    return graph_of(two_layers, TWO_LAYERS, shape(BATCH, WIDTH))


def input_group(graph: StepGraph, path: str) -> Group:
    t = graph.program.inputs[graph.program.in_paths.index(path)]
    return graph.grouping.groups[graph.grouping.tensor_group[t]]


# groups


def test_a_contraction_and_its_gradients_are_one_group(perceptron: StepGraph) -> None:
    dots = groups_of(perceptron, "dot_general")
    # Forward: in, out. Backward: two gradients of "out", one of "in" (nobody wants that of the batch).
    assert len(dots) == 5
    first, second = dots[:2]
    assert first != second
    assert sorted(dots[2:]) == sorted([first, second, second])
    assert {perceptron.grouping.groups[g].kind for g in dots} == {"contraction"}


def test_an_optimizer_update_is_apart_from_the_forward_use(perceptron: StepGraph) -> None:
    dots = set(groups_of(perceptron, "dot_general"))
    for name in ("in", "out"):
        parameter, slot = (input_group(perceptron, f"[{i}]['{name}']") for i in (0, 1))
        assert (parameter.kind, slot.kind) == ("parameter", "state")
        assert {parameter.index, slot.index}.isdisjoint(dots)
        assert not parameter.equations
        names = {perceptron.program.equations[e].name for e in slot.equations}
        assert names <= {"mul", "add", "sub", "add_any", "transpose"}
        assert {"mul", "sub"} <= names
    assert input_group(perceptron, "[0]['in']").index != input_group(perceptron, "[0]['out']").index


def test_an_update_without_slots_holds_its_parameter() -> None:
    """Nothing but the parameter could be split."""

    def step(params: Any, x: jax.Array) -> Any:
        grads = jax.grad(two_layers)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    graph = analyse(trace(step, (TWO_LAYERS, shape(BATCH, WIDTH))))
    group = input_group(graph, "[0]['in']")
    assert group.kind == "state"
    assert {graph.program.equations[e].name for e in group.equations} >= {"mul", "sub"}


def test_a_parameter_is_apart_from_its_master_and_slots_in_any_order() -> None:
    """The step reads a bf16 copy; the f32 master, both slots of Adam and an average lie where the update runs."""

    def step(slots: Any, params: Any, master: Any, x: jax.Array) -> Any:
        grads = jax.grad(two_layers)(params, x)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(jnp.float32), slots["first"], grads)
        second = jax.tree.map(lambda v, m: 0.99 * v + 0.01 * m * m, slots["second"], first)
        master = jax.tree.map(
            lambda p, m, v: p - 1e-3 * m / jnp.sqrt(v) - 1e-4 * p, master, first, second
        )
        average = jax.tree.map(lambda a, p: 0.999 * a + 0.001 * p, slots["average"], master)
        params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), master)
        return {"first": first, "second": second, "average": average}, params, master

    narrow = {name: shape(*leaf.shape, dtype=jnp.bfloat16) for name, leaf in TWO_LAYERS.items()}
    slots = dict.fromkeys(("first", "second", "average"), TWO_LAYERS)
    graph = analyse(trace(step, (slots, narrow, TWO_LAYERS, shape(BATCH, WIDTH, dtype=jnp.bfloat16))))
    for name in ("in", "out"):
        assert input_group(graph, f"[1]['{name}']").kind == "parameter"
        update = {f"[0]['{slot}']['{name}']" for slot in slots} | {f"[2]['{name}']"}
        assert len({input_group(graph, path).index for path in update}) == 1
        assert input_group(graph, f"[2]['{name}']").kind == "state"


def test_a_batch_input_is_a_group(perceptron: StepGraph) -> None:
    assert input_group(perceptron, "[2]").kind == "input"


def test_every_sized_equation_has_a_group_and_each_one_only(perceptron: StepGraph) -> None:
    seen: set[int] = set()
    for group in perceptron.grouping.groups:
        assert not seen & set(group.equations)
        seen.update(group.equations)
    for eqn in perceptron.program.equations:
        grouped = perceptron.grouping.equation_group[eqn.index] != UNGROUPED
        assert grouped == (eqn.index in seen)
        if any(perceptron.program.tensors[t].shape and not perceptron.values.free[t] for t in eqn.results):
            assert grouped


def test_forward_and_backward_of_an_activation_are_one_group(perceptron: StepGraph) -> None:
    (forward,) = groups_of(perceptron, "tanh")
    backward = [
        perceptron.grouping.equation_group[e.index]
        for e in perceptron.program.equations
        if e.name == "mul"
        and e.phase == "backward"
        and perceptron.program.tensors[e.results[0]].shape == (BATCH, HIDDEN)
    ]
    assert backward
    assert set(backward) == {forward}


def residual_layers(params: Any, x: jax.Array) -> jax.Array:
    for layer in params:
        x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
    return jnp.mean(x**2)


def test_a_residual_stream_is_one_group_and_its_layers_are_not_tied() -> None:
    layers = [{"up": shape(WIDTH, HIDDEN), "down": shape(HIDDEN, WIDTH)} for _ in range(3)]
    graph = graph_of(residual_layers, layers, shape(BATCH, WIDTH))
    stream = [
        graph.grouping.equation_group[e.index]
        for e in graph.program.equations
        if e.name == "add" and graph.program.tensors[e.results[0]].shape == (BATCH, WIDTH)
    ]
    assert len(stream) == 3
    assert len(set(stream)) == 1  # a residual can only be added where it is
    dots = [
        graph.grouping.equation_group[e.index]
        for e in graph.program.equations
        if e.name == "dot_general" and e.phase == "forward"
    ]
    assert len(set(dots)) == 6  # every contraction of every layer chooses for itself
    activations = groups_of(graph, "tanh")
    assert len(set(activations)) == 3
    assert not set(activations) & set(stream)


def test_labels_cut_from_the_tokens_leave_the_loss_its_sequence() -> None:
    """A slice of T + 1 tokens holds them whole; log-probabilities of T tokens and their gradient may still be split."""

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = params["embed"][tokens[:, :-1]] @ params["out"]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
        return -jnp.mean(picked)

    params = {"embed": shape(HIDDEN, WIDTH), "out": shape(WIDTH, HIDDEN)}
    graph = graph_of(loss, params, shape(BATCH, 25, dtype=jnp.int32))
    of_logits = [
        (graph.grouping.equation_group[e.index], t)
        for e in graph.program.equations
        for t in e.results
        if graph.program.tensors[t].shape == (BATCH, 24, HIDDEN) and not graph.values.free[t]
    ]
    assert {graph.program.equations[graph.values.producer[t]].phase for _, t in of_logits} >= {"forward", "backward"}
    for group, t in of_logits:
        assert graph.spaces[group].tensor_dims[t][1], graph.program.equations[graph.values.producer[t]]


def test_a_mask_that_all_layers_read_does_not_tie_them() -> None:
    """Which tokens are padding is a batch input; queries may be split although the mask is compared with itself."""

    def loss(params: Any, batch: Any) -> jax.Array:
        x, seen = batch
        mask = (seen[:, :, None] * seen[:, None, :])[:, None] > 0
        for p in params:
            q, k = (jnp.einsum("btd,dhk->bthk", x, p[name]) for name in "qk")
            scores = jnp.where(mask, jnp.einsum("bqhk,bshk->bhqs", q, k), -1e9)
            x = x + jnp.einsum("bhqs,bsd->bqd", jax.nn.softmax(scores), x)
        return jnp.mean(x**2)

    params = [{name: shape(WIDTH, 4, 8) for name in "qk"} for _ in range(2)]
    graph = graph_of(loss, params, (shape(BATCH, 24, WIDTH), shape(BATCH, 24)))
    softmax = groups_of(graph, "exp")
    assert len(set(softmax)) == 2
    for eqn in graph.program.equations:
        if eqn.name == "exp":
            queries, keys = graph.spaces[graph.grouping.equation_group[eqn.index]].tensor_dims[eqn.results[0]][2:]
            assert queries and keys and queries != keys


def test_a_square_weight_keeps_rows_and_columns_apart() -> None:
    """Its gradient comes out transposed, of the same shape: rows must not be tied to columns."""
    square = {"in": shape(WIDTH, WIDTH), "out": shape(WIDTH, WIDTH)}
    oblong = graph_of(two_layers, TWO_LAYERS, shape(BATCH, WIDTH))
    graph = graph_of(two_layers, square, shape(BATCH, WIDTH))
    assert [len(s.classes) for s in graph.spaces] == [len(s.classes) for s in oblong.spaces]
    for g in set(groups_of(graph, "dot_general")):
        assert len(graph.spaces[g].classes) == 3


# iteration spaces


def test_a_contraction_splits_batch_rows_and_columns(perceptron: StepGraph) -> None:
    first = groups_of(perceptron, "dot_general")[0]
    space = perceptron.spaces[first]
    assert sorted(c.sizes for c in space.classes) == [(BATCH,), (WIDTH,), (HIDDEN,)]
    by_size = {c.sizes[0]: k for k, c in enumerate(space.classes)}
    forward, backward = (
        e
        for e in perceptron.program.equations
        if perceptron.grouping.equation_group[e.index] == first and e.name == "dot_general"
    )
    # Forward sums over the width, the weight gradient over the batch.
    assert space.tensor_partial[forward.results[0]] == (by_size[WIDTH],)
    assert space.tensor_partial[backward.results[0]] == (by_size[BATCH],)
    assert space.tensor_dims[forward.results[0]] == ((by_size[BATCH],), (by_size[HIDDEN],))


def test_queries_and_keys_of_one_sequence_are_not_split() -> None:
    """Scores hold the sequence twice; splitting it would need the same devices for two dimensions of one tensor."""

    def attention(params: Any, x: jax.Array) -> jax.Array:
        q = jnp.einsum("btd,dhk->bthk", x, params["q"])
        k = jnp.einsum("btd,dhk->bthk", x, params["k"])
        weights = jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", q, k))
        return jnp.mean(weights**2)

    params = {name: shape(WIDTH, 4, 8) for name in "qk"}
    graph = graph_of(attention, params, shape(BATCH, 24, WIDTH))
    for eqn in graph.program.equations:
        group = graph.grouping.equation_group[eqn.index]
        for t in eqn.results:
            if graph.program.tensors[t].shape == (BATCH, 4, 24, 24) and group != UNGROUPED:
                queries, keys = graph.spaces[group].tensor_dims[t][2:]
                assert not (queries and queries == keys)


# named dimensions


def test_named_dimensions_are_those_of_the_model(perceptron: StepGraph) -> None:
    sizes = {d.name: d.size for d in perceptron.named.dimensions}
    assert sizes["batch"] == BATCH
    assert sorted(sizes.values()) == sorted([BATCH, WIDTH, HIDDEN, WIDTH])
    assert perceptron.named.dimensions[perceptron.named.front].name == "batch"
    name_of = {
        (path, d): perceptron.named.dimensions[perceptron.named.of[t, d]].name
        for path, t in zip(perceptron.program.in_paths, perceptron.program.inputs)
        for d in range(2)
    }
    # The hidden width is one dimension of the program: columns of the first weight, rows of the second.
    assert name_of["[0]['in']", 1] == name_of["[0]['out']", 0] == name_of["[1]['in']", 1]
    assert name_of["[0]['in']", 0] == name_of["[2]", 1]
    assert name_of["[0]['in']", 0] != name_of["[0]['out']", 1]


def test_the_dimension_graph_joins_dimensions_by_the_operator_that_carries_them() -> None:
    program = trace(lambda x, w: (x @ w).T, (shape(2, 3), shape(3, 5)))
    graph = analyse(program)
    dimensions = dimension_graph(program, graph.rules)
    x, w = program.inputs
    (dot,), (transposed,) = (e.results for e in program.equations)
    components = {frozenset(c) for c in nx.connected_components(dimensions)}
    assert components == {
        frozenset({(x, 0), (dot, 0), (transposed, 1)}),
        frozenset({(w, 1), (dot, 1), (transposed, 0)}),
        frozenset({(x, 1), (w, 0)}),
    }
    assert dimensions.edges[(x, 1), (w, 0)]["equation"] == 0


# values


def test_a_recomputed_value_has_the_number_of_its_original() -> None:
    program = trace(lambda x: (jnp.sin(x) * 2, jnp.sin(x) * 3), (shape(4),))
    values = analyse(program).values
    first, second = (e.results[0] for e in program.equations if e.name == "sin")
    assert values.number[first] == values.number[second]


def test_values_without_inputs_are_free() -> None:
    program = trace(lambda x: x + jnp.arange(4.0) * 2, (shape(4),))
    values = analyse(program).values
    by_name = {e.name: e.results[0] for e in program.equations}
    assert values.free[by_name["iota"]]
    assert values.free[by_name["mul"]]
    assert not values.free[by_name["add"]]
