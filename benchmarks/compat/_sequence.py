"""State-space and recurrent language models: RecurrentGemma (Griffin), and Mamba of jaxonmodels."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.compat._case import Case, next_token_loss, stateless, tokens
from benchmarks.compat._equinox import from_module


def griffin(small: bool) -> Case:
    """`recurrentgemma.jax.Griffin` with its linear recurrence as a native scan, three blocks of the 2B model."""
    griffin_module = importlib.import_module("recurrentgemma.jax.griffin")
    common = importlib.import_module("recurrentgemma.common")
    width, heads, vocabulary, count, length = (32, 4, 64, 8, 8) if small else (2560, 10, 32768, 16, 1024)
    kinds = common.TemporalBlockType
    config = common.GriffinConfig(
        vocab_size=vocabulary,
        width=width,
        mlp_expanded_width=3 * width,
        num_heads=heads,
        block_types=(kinds.RECURRENT, kinds.RECURRENT, kinds.ATTENTION),
        embeddings_scale_by_sqrt_dim=True,
        attention_window_size=length,
        logits_soft_cap=30.0,
        scan_type=common.ScanType.LINEAR_NATIVE,
    )
    model, batch = griffin_module.Griffin(config), tokens(count, length, vocabulary)
    positions = jnp.broadcast_to(jnp.arange(length), (count, length))

    def loss(params: Any, ids: jax.Array, key: jax.Array) -> jax.Array:
        logits, _ = model.apply(params, ids, positions, return_cache=False)
        return next_token_loss(logits, ids)

    return stateless(lambda key: model.init(key, batch(key), positions), loss, batch)


def mamba(small: bool) -> Case:
    """`jaxonmodels` Mamba, vmapped over sequences; its state is as wide as its channels, so it is small."""
    models = importlib.import_module("jaxonmodels.models.mamba")
    width, layers, vocabulary, count, length = (16, 2, 64, 8, 8) if small else (128, 4, 32768, 64, 256)

    def loss(model: Any, ids: jax.Array, key: jax.Array) -> jax.Array:
        return next_token_loss(jax.vmap(model)(ids), ids)

    return from_module(
        lambda key: models.Mamba(n_embd=width, n_dims=vocabulary, n_layers=layers, key=key),
        loss,
        tokens(count, length, vocabulary),
    )
