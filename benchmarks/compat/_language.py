"""Decoders of Google's packages: Gemma, and Penzai's Llama-like transformer with named axes."""

from __future__ import annotations

import importlib
from typing import Any

import jax

from benchmarks.compat._case import Case, next_token_loss, stateless, tokens


def gemma3(small: bool) -> Case:
    """`gemma`'s transformer with the sizes of Gemma 3 270M: one key head, 262,144 words, a local and a global layer."""
    configuration = importlib.import_module("gemma.gm.nn._config")
    kinds = importlib.import_module("gemma.gm.nn._modules").AttentionType
    width, hidden, head, vocabulary, window = (32, 64, 8, 64, 8) if small else (640, 2048, 256, 262144, 512)
    count, length = (8, 16) if small else (32, 1024)
    config = configuration.TransformerConfig(
        num_embed=vocabulary,
        embed_dim=width,
        hidden_dim=hidden,
        num_heads=4,
        head_dim=head,
        num_kv_heads=1,
        final_logit_softcap=None,
        use_post_attn_norm=True,
        use_post_ffw_norm=True,
        use_qk_norm=True,
        attention_types=(kinds.LOCAL_SLIDING, kinds.GLOBAL),
        sliding_window_size=window,
        transpose_gating_einsum=True,
        local_base_frequency=10_000,
        global_base_frequency=1_000_000,
    )
    model = importlib.import_module("gemma.gm.nn._transformer").Transformer(config=config)
    batch = tokens(count, length, vocabulary)

    def loss(params: Any, ids: jax.Array, key: jax.Array) -> jax.Array:
        return next_token_loss(model.apply({"params": params}, ids).logits, ids)

    return stateless(lambda key: model.init(key, batch(key))["params"], loss, batch)


def llama_like(small: bool) -> Case:
    """`penzai`'s Llama-like transformer, every axis named, four layers in one `LayerStack`."""
    from penzai import pz

    common = importlib.import_module("penzai.models.transformer.variants.llamalike_common")
    width, vocabulary, count, length = (32, 64, 8, 8) if small else (1024, 32000, 32, 512)
    config = common.LlamalikeTransformerConfig(
        num_kv_heads=4,
        query_head_multiplier=2,
        embedding_dim=width,
        projection_dim=width // 8,
        mlp_hidden_dim=3 * width,
        num_decoder_blocks=4,
        vocab_size=vocabulary,
        mlp_variant="swiglu",
        rope_wavelength=10_000,
        tie_embedder_and_logits=False,
        use_layer_stack=True,
        parameter_dtype=jax.numpy.float32,
        activation_dtype=jax.numpy.float32,
    )

    def make(key: jax.Array) -> Any:
        return pz.unbind_params(common.build_llamalike_transformer(config, init_base_rng=key))

    def loss(params: Any, ids: jax.Array, key: jax.Array) -> jax.Array:
        skeleton, _ = make(jax.random.key(0))  # its parameters are nobody's and are not computed
        model = pz.bind_variables(skeleton, params, unfreeze_as_copy=True)
        logits = model(pz.nx.wrap(ids).tag("batch", "seq"))
        return next_token_loss(logits.unwrap("batch", "seq", "vocabulary"), ids)

    return stateless(
        lambda key: [param.freeze() for param in make(key)[1]], loss, tokens(count, length, vocabulary)
    )
