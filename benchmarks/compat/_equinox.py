"""Equinox: `eqx.nn` layers, vmapped over the batch as its documentation does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.compat._case import Case, cross_entropy, images, next_token_loss, tokens


def from_module(
    make: Callable[[jax.Array], Any],
    loss: Callable[[Any, Any, jax.Array], jax.Array],
    batch: Callable[[jax.Array], Any],
) -> Case:
    """A case of an Equinox module: ``make(key)`` to the module, ``loss(module, batch, key)``.

    Floating-point arrays are trained; other arrays, such as masks, are carried as they are. The rest is made
    in the step itself, because its functions may hold arrays of the trace that made them; nothing is computed there.
    """

    def init(key: jax.Array) -> tuple[Any, Any]:
        return eqx.partition(eqx.filter(make(key), _is_array), _is_trained)

    def of_params(params: Any, fixed: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        rest = eqx.filter(make(jax.random.key(0)), _is_array, inverse=True)
        return loss(eqx.combine(params, fixed, rest), batch, key), fixed

    return Case(init=init, loss=of_params, batch=batch)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def _is_trained(leaf: Any) -> bool:
    return _is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def mlp(small: bool) -> Case:
    """`eqx.nn.MLP`."""
    width, count, classes = (32, 16, 8) if small else (4096, 2048, 1024)

    def make(key: jax.Array) -> eqx.nn.MLP:
        return eqx.nn.MLP(width, classes, 4 * width, depth=3, key=key)

    def loss(model: eqx.nn.MLP, batch: Any, key: jax.Array) -> jax.Array:
        return cross_entropy(jax.vmap(model)(batch["x"]), batch["label"])

    def batch(key: jax.Array) -> Any:
        return {
            "x": jax.random.normal(key, (count, width)),
            "label": jax.random.randint(key, (count,), 0, classes),
        }

    return from_module(make, loss, batch)


class _Recurrent(eqx.Module):
    embedding: eqx.nn.Embedding
    cells: list[eqx.nn.GRUCell]
    head: eqx.nn.Linear

    def __init__(self, width: int, vocabulary: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.embedding = eqx.nn.Embedding(vocabulary, width, key=keys[0])
        self.cells = [eqx.nn.GRUCell(width, width, key=k) for k in keys[1:3]]
        self.head = eqx.nn.Linear(width, vocabulary, key=keys[3])

    def __call__(self, ids: jax.Array) -> jax.Array:
        hidden = jax.vmap(self.embedding)(ids)
        for cell in self.cells:

            def advance(
                carry: jax.Array, x: jax.Array, cell: eqx.nn.GRUCell = cell
            ) -> tuple[jax.Array, jax.Array]:
                carry = cell(x, carry)
                return carry, carry

            _, hidden = jax.lax.scan(advance, jnp.zeros(cell.hidden_size), hidden)
        return jax.vmap(self.head)(hidden)


def gru(small: bool) -> Case:
    """A language model of `eqx.nn.GRUCell` in `lax.scan`, vmapped."""
    width, vocabulary, count, length = (32, 64, 16, 8) if small else (1024, 32768, 256, 128)

    def loss(model: _Recurrent, ids: jax.Array, key: jax.Array) -> jax.Array:
        return next_token_loss(jax.vmap(model)(ids), ids)

    return from_module(
        lambda key: _Recurrent(width, vocabulary, key), loss, tokens(count, length, vocabulary)
    )


class _Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    mlp: eqx.nn.MLP
    dropout: eqx.nn.Dropout

    def __init__(self, width: int, heads: int, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(heads, width, dropout_p=0.1, key=first)
        self.norms = (eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width))
        self.mlp = eqx.nn.MLP(width, width, 4 * width, depth=1, activation=jax.nn.gelu, key=second)
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, hidden: jax.Array, key: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        normed = jax.vmap(self.norms[0])(hidden)
        mask = jnp.tril(jnp.ones((hidden.shape[0], hidden.shape[0]), bool))
        hidden = hidden + self.attention(normed, normed, normed, mask=mask, key=first)
        normed = jax.vmap(self.norms[1])(hidden)
        return hidden + self.dropout(jax.vmap(self.mlp)(normed), key=second)


class _Transformer(eqx.Module):
    embedding: eqx.nn.Embedding
    positions: jax.Array
    blocks: list[_Block]
    head: eqx.nn.Linear

    def __init__(
        self, layers: int, width: int, heads: int, vocabulary: int, length: int, key: jax.Array
    ) -> None:
        keys = jax.random.split(key, layers + 3)
        self.embedding = eqx.nn.Embedding(vocabulary, width, key=keys[0])
        self.positions = 0.02 * jax.random.normal(keys[1], (length, width))
        self.head = eqx.nn.Linear(width, vocabulary, use_bias=False, key=keys[2])
        self.blocks = [_Block(width, heads, k) for k in keys[3:]]

    def __call__(self, ids: jax.Array, key: jax.Array) -> jax.Array:
        hidden = jax.vmap(self.embedding)(ids) + self.positions
        for block, k in zip(self.blocks, jax.random.split(key, len(self.blocks)), strict=True):
            hidden = block(hidden, k)
        return jax.vmap(self.head)(hidden)


def transformer(small: bool) -> Case:
    """A decoder of `eqx.nn.MultiheadAttention`, `LayerNorm`, `MLP` and `Dropout`, one key per sequence."""
    layers, width, heads, vocabulary = (2, 32, 4, 64) if small else (2, 1024, 16, 32768)
    count, length = (16, 8) if small else (64, 512)

    def loss(model: _Transformer, ids: jax.Array, key: jax.Array) -> jax.Array:
        return next_token_loss(jax.vmap(model)(ids, jax.random.split(key, count)), ids)

    def make(key: jax.Array) -> _Transformer:
        return _Transformer(layers, width, heads, vocabulary, length, key)

    return from_module(make, loss, tokens(count, length, vocabulary))


def convnet(small: bool) -> Case:
    """A convolutional network of `eqx.nn.Conv2d`, `GroupNorm`, `MaxPool2d` and `AdaptiveAvgPool2d`, channels first."""
    widths, count, side, classes = ([8, 16], 16, 16, 8) if small else ([64, 128, 256, 512], 256, 128, 1000)

    def make(key: jax.Array) -> eqx.nn.Sequential:
        layers, channels = [], 3
        for width, k in zip(widths, jax.random.split(key, len(widths)), strict=True):
            layers += [eqx.nn.Conv2d(channels, width, 3, padding=1, key=k), eqx.nn.GroupNorm(8, width)]
            layers += [eqx.nn.Lambda(jax.nn.gelu), eqx.nn.MaxPool2d(2, 2)]
            channels = width
        layers += [eqx.nn.AdaptiveAvgPool2d(1), eqx.nn.Lambda(jnp.ravel)]
        return eqx.nn.Sequential([*layers, eqx.nn.Linear(channels, classes, key=key)])

    def loss(model: eqx.nn.Sequential, batch: Any, key: jax.Array) -> jax.Array:
        image = jnp.moveaxis(batch["image"], -1, 1)
        return cross_entropy(jax.vmap(model)(image), batch["label"])

    return from_module(make, loss, images(count, side, classes=classes))
