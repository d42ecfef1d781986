"""jraph: graph networks with segment sums over edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import jraph

from benchmarks.compat._case import Case, stateless


def graphs(num_graphs: int, nodes: int, edges: int, width: int) -> Callable[[jax.Array], jraph.GraphsTuple]:
    """A maker of batched graphs of equal size: ``nodes`` and ``edges`` per graph, features of ``width``."""

    def make(key: jax.Array) -> jraph.GraphsTuple:
        first, second, third, fourth = jax.random.split(key, 4)
        offsets = jnp.repeat(jnp.arange(num_graphs) * nodes, edges, total_repeat_length=num_graphs * edges)
        ends = offsets + jax.random.randint(third, (2, num_graphs * edges), 0, nodes)
        return jraph.GraphsTuple(
            nodes=jax.random.normal(first, (num_graphs * nodes, width)),
            edges=jax.random.normal(second, (num_graphs * edges, width)),
            senders=ends[0],
            receivers=ends[1],
            globals=jax.random.normal(fourth, (num_graphs, width)),
            n_node=jnp.full((num_graphs,), nodes),
            n_edge=jnp.full((num_graphs,), edges),
        )

    return make


def _regression(forward: Callable[[jraph.GraphsTuple], jax.Array], batch: Any) -> Case:
    """Squared error of one number per graph, here the first of its global features."""
    net = hk.transform(forward)

    def loss(params: Any, graph: jraph.GraphsTuple, key: jax.Array) -> jax.Array:
        return jnp.mean((net.apply(params, key, graph) - graph.globals[:, 0]) ** 2)

    return stateless(lambda key: net.init(key, batch(key)), loss, batch)


def graph_network(small: bool) -> Case:
    """`jraph.GraphNetwork`: perceptrons on edges, nodes and globals, in three rounds."""
    width, batch = (16, graphs(4, 8, 16, 8)) if small else (512, graphs(512, 64, 256, 128))

    def update(*features: jax.Array) -> jax.Array:
        mlp = hk.nets.MLP([width, width], activate_final=True)
        return hk.LayerNorm(-1, True, True)(mlp(jnp.concatenate(features, axis=-1)))

    def forward(graph: jraph.GraphsTuple) -> jax.Array:
        for _ in range(3):
            graph = jraph.GraphNetwork(
                update_edge_fn=lambda edges, sent, received, shared: update(edges, sent, received, shared),
                update_node_fn=lambda nodes, sent, received, shared: update(nodes, sent, received, shared),
                update_global_fn=lambda nodes, edges, shared: update(nodes, edges, shared),
            )(graph)
        return hk.Linear(1)(graph.globals)[:, 0]

    return _regression(forward, batch)


def attention_network(small: bool) -> Case:
    """`jraph.GAT`: segment softmax over the edges that arrive at a node."""
    width, batch = (16, graphs(4, 8, 16, 8)) if small else (512, graphs(256, 64, 512, 512))
    num_graphs = batch(jax.random.key(0)).n_node.shape[0] if small else 256

    def forward(graph: jraph.GraphsTuple) -> jax.Array:
        graph = graph._replace(edges=None)
        for _ in range(2):
            graph = jraph.GAT(
                attention_query_fn=lambda nodes: hk.Linear(width)(nodes),
                attention_logit_fn=lambda sent, received, edges: hk.Linear(1)(
                    jax.nn.leaky_relu(jnp.concatenate([sent, received], axis=-1))
                ),
                node_update_fn=lambda nodes: jax.nn.elu(nodes),
            )(graph)
        owner = jnp.arange(graph.nodes.shape[0]) // (graph.nodes.shape[0] // num_graphs)
        return hk.Linear(1)(jraph.segment_mean(graph.nodes, owner, num_graphs))[:, 0]

    return _regression(forward, batch)
