"""Flax models of `transformers` 4 (later ones have none), from their configurations: no weights are loaded."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.compat._case import Case, cross_entropy, next_token_loss, stateless, tokens


def _load(kind: str, name: str) -> Any:
    return importlib.import_module(f"transformers.models.{kind}.{name}").__dict__


def _model(kind: str, network: str, config_class: str, **config: Any) -> Any:
    """A model of `transformers`, its parameters not made."""
    configuration = _load(kind, f"configuration_{kind}")[config_class](**config)
    return _load(kind, f"modeling_flax_{kind}")[network](configuration, _do_init=False)


def _case(model: Any, batch: Callable[[jax.Array], Any], loss: Callable[[Any, Any], jax.Array]) -> Case:
    """``loss`` takes (the model as a function of its inputs, batch)."""

    def call(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        return loss(lambda *a, **k: model(*a, params=params, dropout_rng=key, train=True, **k), batch)

    return stateless(lambda key: model.init_weights(key, model.input_shape), call, batch)


def bert(small: bool) -> Case:
    """`FlaxBertForMaskedLM`, two layers of BERT-large's width, every token predicted."""
    width, heads, vocabulary, layers = (32, 4, 64, 2) if small else (1024, 16, 30528, 2)
    count, length = (8, 8) if small else (64, 512)
    model = _model(
        "bert", "FlaxBertForMaskedLM", "BertConfig",
        hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width, num_hidden_layers=layers,
        vocab_size=vocabulary,
    )  # fmt: skip
    return _case(
        model,
        tokens(count, length, vocabulary),
        lambda run, ids: cross_entropy(run(ids, jnp.ones_like(ids)).logits, ids),
    )


def gpt2(small: bool) -> Case:
    """`FlaxGPT2LMHeadModel`, two layers."""
    width, heads, vocabulary, layers = (32, 4, 64, 2) if small else (768, 12, 50304, 2)
    count, length = (8, 8) if small else (64, 512)
    model = _model(
        "gpt2", "FlaxGPT2LMHeadModel", "GPT2Config",
        n_embd=width, n_head=heads, n_layer=layers, vocab_size=vocabulary, n_positions=length,
    )  # fmt: skip
    return _case(
        model, tokens(count, length, vocabulary), lambda run, ids: next_token_loss(run(ids).logits, ids)
    )


def llama(small: bool) -> Case:
    """`FlaxLlamaForCausalLM`, two layers of 2,048, grouped keys."""
    width, heads, vocabulary, layers = (32, 4, 64, 2) if small else (2048, 16, 32000, 2)
    count, length = (8, 8) if small else (32, 1024)
    model = _model(
        "llama", "FlaxLlamaForCausalLM", "LlamaConfig",
        hidden_size=width, num_attention_heads=heads, num_key_value_heads=heads // 4, num_hidden_layers=layers,
        intermediate_size=3 * width, vocab_size=vocabulary, max_position_embeddings=length,
    )  # fmt: skip
    return _case(
        model, tokens(count, length, vocabulary), lambda run, ids: next_token_loss(run(ids).logits, ids)
    )


def bart(small: bool) -> Case:
    """`FlaxBartForConditionalGeneration`: encoder and decoder of two layers each."""
    width, heads, vocabulary, layers = (32, 4, 64, 2) if small else (1024, 16, 50264, 2)
    count, length = (8, 8) if small else (64, 256)
    model = _model(
        "bart", "FlaxBartForConditionalGeneration", "BartConfig",
        d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, vocab_size=vocabulary,
        max_position_embeddings=length, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return _case(
        model,
        lambda key: jax.random.randint(key, (2, count, length), 3, vocabulary),
        lambda run, ids: next_token_loss(run(ids[0], decoder_input_ids=ids[1]).logits, ids[1]),
    )


def big_bird(small: bool) -> Case:
    """`FlaxBigBirdForMaskedLM`: block-sparse attention, its random blocks gathered."""
    width, heads, vocabulary, layers = (32, 4, 64, 2) if small else (768, 12, 50368, 2)
    count, length, block = (8, 96, 8) if small else (16, 2048, 64)
    model = _model(
        "big_bird", "FlaxBigBirdForMaskedLM", "BigBirdConfig",
        hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width, num_hidden_layers=layers,
        vocab_size=vocabulary, max_position_embeddings=length, block_size=block, num_random_blocks=2,
    )  # fmt: skip
    return _case(
        model,
        tokens(count, length, vocabulary),
        lambda run, ids: cross_entropy(
            run(ids, jnp.ones_like(ids), indices_rng=jax.random.key(0)).logits, ids
        ),
    )


def whisper(small: bool) -> Case:
    """`FlaxWhisperForConditionalGeneration`: convolutions over spectra, then encoder and decoder."""
    width, heads, vocabulary, layers = (32, 4, 64, 2) if small else (768, 12, 51872, 2)
    count, length, frames = (8, 8, 32) if small else (32, 256, 1024)
    model = _model(
        "whisper", "FlaxWhisperForConditionalGeneration", "WhisperConfig",
        d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, vocab_size=vocabulary,
        max_source_positions=frames // 2, max_target_positions=length, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip

    def batch(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        spectrum = jax.random.normal(first, (count, 80, frames))
        return {"spectrum": spectrum, "ids": jax.random.randint(second, (count, length), 3, vocabulary)}

    return _case(
        model,
        batch,
        lambda run, batch: next_token_loss(
            run(batch["spectrum"], decoder_input_ids=batch["ids"]).logits, batch["ids"]
        ),
    )


def clip(small: bool) -> Case:
    """`FlaxCLIPModel`: a text and an image tower, and the contrastive loss over the whole batch."""
    width, heads, vocabulary, layers = (32, 4, 64, 2) if small else (768, 12, 49408, 2)
    count, length, side = (8, 8, 32) if small else (512, 77, 224)
    tower = {
        "hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
    }  # fmt: skip
    text = {**tower, "vocab_size": vocabulary, "max_position_embeddings": length}
    text |= {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    model = _model(
        "clip", "FlaxCLIPModel", "CLIPConfig",
        text_config=text, vision_config={**tower, "image_size": side, "patch_size": 16 if small else 32},
        projection_dim=width,
    )  # fmt: skip

    def batch(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        ids = jax.random.randint(second, (count, length), 3, vocabulary)
        return {"image": jax.random.normal(first, (count, 3, side, side)), "ids": ids}

    def loss(run: Any, batch: Any) -> jax.Array:
        scores = run(batch["ids"], batch["image"]).logits_per_image
        own = jnp.arange(count)
        return (cross_entropy(scores, own) + cross_entropy(scores.T, own)) / 2

    return _case(model, batch, loss)


def wav2vec2(small: bool) -> Case:
    """`FlaxWav2Vec2ForCTC`: strided convolutions over raw sound, a grouped one for positions, and the CTC loss."""
    import optax

    width, heads, vocabulary, layers = (32, 4, 32, 2) if small else (768, 12, 32, 2)
    count, samples, length = (8, 4000, 4) if small else (32, 80000, 32)
    sizes = {"conv_dim": (16,) * 7} if small else {}
    model = _model(
        "wav2vec2", "FlaxWav2Vec2ForCTC", "Wav2Vec2Config",
        hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width, num_hidden_layers=layers,
        vocab_size=vocabulary, feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True, **sizes,
    )  # fmt: skip

    def batch(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        sound = jax.random.normal(first, (count, samples))
        return {"sound": sound, "ids": jax.random.randint(second, (count, length), 1, vocabulary)}

    def loss(run: Any, batch: Any) -> jax.Array:
        logits = run(batch["sound"], mask_time_indices=None).logits
        frames, labels = jnp.zeros(logits.shape[:2]), jnp.zeros(batch["ids"].shape)
        return jnp.mean(optax.ctc_loss(logits, frames, batch["ids"], labels))

    return _case(model, batch, loss)
