"""Flax NNX modules: a Kolmogorov-Arnold network of jaxKAN, graph attention of JraphX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.compat._case import Case


def _from_module(make: Callable[[], Any], loss: Callable[[Any, Any], jax.Array], batch: Any) -> Case:
    """A case of an NNX module: its parameters are trained, its other variables carried."""
    skeleton = nnx.graphdef(nnx.eval_shape(make))

    def init(key: jax.Array) -> tuple[Any, Any]:
        _, params, others = nnx.split(make(), nnx.Param, ...)
        return nnx.to_pure_dict(params), others

    def of_params(params: Any, carried: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        model = nnx.merge(skeleton, nnx.State(jax.tree.map(nnx.Param, params)), carried)
        return loss(model, batch), carried

    return Case(init=init, loss=of_params, batch=batch)


def kan(small: bool) -> Case:
    """`jaxkan.models.KAN` with Chebyshev polynomials on every edge."""
    from jaxkan.models.KAN import KAN

    dims, count = ([4, 16, 8], 64) if small else ([256, 1024, 1024, 64], 8192)

    def make() -> Any:
        return KAN(layer_dims=dims, layer_type="chebyshev", required_parameters={"D": 5}, seed=0)

    def batch(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return {
            "x": jax.random.uniform(first, (count, dims[0])),
            "y": jax.random.normal(second, (count, dims[-1])),
        }

    return _from_module(make, lambda model, batch: jnp.mean((model(batch["x"]) - batch["y"]) ** 2), batch)


def graph_attention(small: bool) -> Case:
    """`jraphx.nn.models.GAT`: eight heads, softmax over the edges that arrive at a node."""
    from jraphx.nn.models import GAT

    width, hidden, nodes, edges = (8, 4, 64, 256) if small else (256, 64, 65536, 524288)

    def make() -> Any:
        return GAT(
            in_features=width,
            hidden_features=8 * hidden,
            num_layers=2,
            out_features=width,
            heads=8,
            rngs=nnx.Rngs(0),
        )

    def batch(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return {
            "x": jax.random.normal(first, (nodes, width)),
            "ends": jax.random.randint(second, (2, edges), 0, nodes),
        }

    return _from_module(
        make, lambda model, batch: jnp.mean((model(batch["x"], batch["ends"]) - batch["x"]) ** 2), batch
    )
