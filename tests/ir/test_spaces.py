"""Spaces and named dimensions that equal layers share are those that each layer alone would have."""

from __future__ import annotations

from collections import defaultdict

import jax
import jax.numpy as jnp
import networkx as nx
import pytest

from jaxplan.cost._reads import find_reads
from jaxplan.ir import StepGraph, dimension_graph
from jaxplan.ir._groups import coarsen
from jaxplan.ir._space import SpaceFacts, group_space
from jaxplan.search._traced import analyse_step
from tests.small_steps import gpt_init, token_batch, train_step


@pytest.fixture(scope="module")
def gpt() -> StepGraph:
    state = jax.eval_shape(gpt_init(jnp.float32, num_layers=3, width=32))
    return analyse_step(train_step, (state, token_batch(8)), {}, donate_argnums=(0,), static_argnums=())


def test_a_shared_space_is_the_groups_own(gpt: StepGraph) -> None:
    program = gpt.program
    _, primal_of = coarsen(program, gpt.rules, gpt.values)
    alike = {**{program.outputs[o]: program.inputs[i] for o, i in program.aliases.items()}, **primal_of}
    facts = SpaceFacts(
        program=program, rules=gpt.rules, named=gpt.named, primal_of=alike, number=gpt.values.number
    )
    layers: dict[tuple, set[tuple[int, ...]]] = defaultdict(set)
    for group, space in zip(gpt.grouping.groups, gpt.spaces, strict=True):
        own = group_space(group, facts)
        assert space.classes == own.classes and space.operand_partial == own.operand_partial
        assert space.factor_class == own.factor_class and space.tensor_partial == own.tensor_partial
        assert own.tensor_dims.items() <= space.tensor_dims.items()  # outputs lie as the state that they replace
        structure = (group.kind, tuple(cls.sizes for cls in space.classes), len(group.equations))
        layers[structure].add(tuple(cls.named_dimension for cls in space.classes))
    assert any(len(names) == 3 for names in layers.values())  # of three layers, each has heads of its own


def test_a_gradient_in_the_place_of_its_bias_is_split_like_it() -> None:
    """Nothing is resharded inside of a group; from another one the gradient is brought to the layout of the bias."""

    def loss(bias: jax.Array, kernel: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(jnp.tanh(x @ kernel + bias)))

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((16,), (16, 16), (16,))]
    graph = analyse_step(jax.value_and_grad(loss), tuple(args), {}, donate_argnums=(), static_argnums=())
    (pair,), program, home = graph.program.pairs, graph.program, graph.grouping.tensor_group
    bias, gradient = program.inputs[pair.input], program.outputs[pair.output]
    if home[bias] == home[gradient]:  # the derivative of tanh is a sum, before JAX 0.12
        dims = graph.spaces[home[bias]].tensor_dims
        assert dims[bias] == dims[gradient]
    else:
        (read,) = [read for read in find_reads(graph) if read.tensor == gradient and read.is_output]
        assert read.consumer == home[bias]


def test_named_dimensions_are_the_connected_sets(gpt: StepGraph) -> None:
    program = gpt.program
    graph = dimension_graph(program, gpt.rules)
    graph.add_nodes_from((t, d) for t in program.inputs for d in range(len(program.tensors[t].shape)))
    sets = list(nx.connected_components(graph))
    assert len(sets) == len(gpt.named.dimensions) and sum(map(len, sets)) == len(gpt.named.of)
    for members in sets:
        (k,) = {gpt.named.of[node] for node in members}
        dimension = gpt.named.dimensions[k]
        assert dimension.size == max(program.tensors[t].shape[d] for t, d in members)
        assert dimension.num_elements == sum(program.tensors[t].num_elements for t in {t for t, _ in members})
    sizes = [dimension.num_elements for dimension in gpt.named.dimensions]
    assert sizes == sorted(sizes, reverse=True)
