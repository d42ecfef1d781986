"""Haiku: the networks that it ships, and its layers as its documentation puts them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from benchmarks.compat._case import Case, cross_entropy, images, next_token_loss, stateless, tokens


def mlp(small: bool) -> Case:
    """`hk.nets.MLP` with dropout on flat images."""
    widths, count = ([64, 64, 10], 16) if small else ([4096, 4096, 4096, 1000], 1024)
    side = 8 if small else 32

    def forward(image: jax.Array) -> jax.Array:
        return hk.nets.MLP(widths)(hk.Flatten()(image), dropout_rate=0.1, rng=hk.next_rng_key())

    return _classifier(forward, images(count, side, classes=widths[-1]), has_state=False)


def resnet50(small: bool) -> Case:
    """`hk.nets.ResNet50` with batch statistics."""
    if small:

        def forward(image: jax.Array) -> jax.Array:
            return hk.nets.ResNet18(10, resnet_v2=True)(image, is_training=True)

        return _classifier(forward, images(16, 32, classes=10))
    return _classifier(lambda image: hk.nets.ResNet50(1000)(image, is_training=True), images(256, 224))


def mobilenet(small: bool) -> Case:
    """`hk.nets.MobileNetV1`: depthwise convolutions."""
    count, side, classes = (16, 32, 10) if small else (256, 224, 1000)
    return _classifier(
        lambda image: hk.nets.MobileNetV1(num_classes=classes)(image, is_training=True),
        images(count, side, classes=classes),
    )


def _classifier(forward: Callable[[jax.Array], jax.Array], batch: Any, has_state: bool = True) -> Case:
    net = hk.transform_with_state(forward)

    def init(key: jax.Array) -> Any:
        return net.init(key, batch(key)["image"])

    def loss(params: Any, carried: Any, batch: Any, key: jax.Array) -> Any:
        logits, carried = net.apply(params, carried, key, batch["image"])
        return cross_entropy(logits, batch["label"]), carried

    return Case(init=init, loss=loss, batch=batch, optimizer="momentum" if has_state else "adamw")


def vqvae(small: bool) -> Case:
    """A VQ-VAE with `hk.nets.VectorQuantizerEMA`, as Haiku's example builds it."""
    width, codes, count, side = (32, 64, 16, 16) if small else (256, 2048, 256, 64)

    def forward(image: jax.Array) -> jax.Array:
        encode = hk.Sequential(
            [
                hk.Conv2D(width // 2, 4, 2),
                jax.nn.relu,
                hk.Conv2D(width, 4, 2),
                jax.nn.relu,
                hk.Conv2D(width, 3),
            ]
        )
        quantise = hk.nets.VectorQuantizerEMA(width, codes, commitment_cost=0.25, decay=0.99)
        decode = hk.Sequential(
            [
                hk.Conv2D(width, 3),
                jax.nn.relu,
                hk.Conv2DTranspose(width // 2, 4, 2),
                jax.nn.relu,
                hk.Conv2DTranspose(3, 4, 2),
            ]
        )
        found = quantise(encode(image), is_training=True)
        return jnp.mean((decode(found["quantize"]) - image) ** 2) + found["loss"]

    net, batch = hk.transform_with_state(forward), images(count, side)
    return Case(
        init=lambda key: net.init(key, batch(key)["image"]),
        loss=lambda params, carried, batch, key: net.apply(params, carried, key, batch["image"]),
        batch=batch,
    )


def lstm(small: bool) -> Case:
    """A language model of two stacked `hk.LSTM`, unrolled by `hk.dynamic_unroll`."""
    return _recurrent(lambda width: hk.DeepRNN([hk.LSTM(width), hk.LSTM(width)]), small)


def gru(small: bool) -> Case:
    """The same of `hk.GRU`."""
    return _recurrent(lambda width: hk.DeepRNN([hk.GRU(width), hk.GRU(width)]), small)


def _recurrent(make_core: Callable[[int], hk.RNNCore], small: bool) -> Case:
    width, vocabulary, count, length = (32, 64, 16, 8) if small else (2048, 32768, 256, 128)

    def forward(ids: jax.Array) -> jax.Array:
        core = make_core(width)
        embedded = hk.Embed(vocabulary, width)(ids)
        states, _ = hk.dynamic_unroll(core, embedded, core.initial_state(ids.shape[0]), time_major=False)
        return next_token_loss(hk.BatchApply(hk.Linear(vocabulary))(states), ids)

    return _language_model(forward, tokens(count, length, vocabulary))


def transformer(small: bool) -> Case:
    """A decoder of `hk.MultiHeadAttention`, `hk.LayerNorm` and dropout, as in Haiku's transformer example."""
    layers, width, heads, vocabulary = (2, 32, 4, 64) if small else (2, 1024, 16, 32768)
    count, length = (16, 8) if small else (64, 512)
    scale = hk.initializers.VarianceScaling(2 / layers)

    def block(hidden: jax.Array, mask: jax.Array) -> jax.Array:
        normed = hk.LayerNorm(-1, True, True)(hidden)
        attend = hk.MultiHeadAttention(heads, width // heads, w_init=scale)
        hidden += hk.dropout(hk.next_rng_key(), 0.1, attend(normed, normed, normed, mask=mask))
        normed = hk.LayerNorm(-1, True, True)(hidden)
        wide = jax.nn.gelu(hk.Linear(4 * width, w_init=scale)(normed))
        return hidden + hk.dropout(hk.next_rng_key(), 0.1, hk.Linear(width, w_init=scale)(wide))

    def forward(ids: jax.Array) -> jax.Array:
        positions = hk.get_parameter("positions", (length, width), init=hk.initializers.TruncatedNormal(0.02))
        hidden = hk.Embed(vocabulary, width)(ids) + positions
        mask = jnp.tril(jnp.ones((1, 1, length, length)))
        for _ in range(layers):
            hidden = block(hidden, mask)
        return next_token_loss(hk.Linear(vocabulary)(hk.LayerNorm(-1, True, True)(hidden)), ids)

    return _language_model(forward, tokens(count, length, vocabulary))


def _language_model(forward: Callable[[jax.Array], jax.Array], batch: Any) -> Case:
    net = hk.transform(forward)
    return stateless(
        lambda key: net.init(key, batch(key)), lambda params, ids, key: net.apply(params, key, ids), batch
    )
