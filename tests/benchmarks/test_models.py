"""The benchmark models: sizes known from the architecture, and steps that trace without allocating."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from benchmarks.models import MODELS, build
from benchmarks.models._moe import top_two
from tests.sampling import sampled

# Parameters as the literature and other libraries count them (torchvision, timm).
RESNET_50_PARAMETERS = 25_557_032
VIT_B16_PARAMETERS = 86_567_656
VIT_L16_PARAMETERS = 304_326_632
WIDE_RESNET_50_2_PARAMETERS = 68_883_240
INCEPTION_V3_PARAMETERS = 23_834_568  # without the auxiliary classifier
MIXER_B16_PARAMETERS = 59_880_472
CONVNEXT_T_PARAMETERS = 28_589_128
SWIN_T_PARAMETERS = 28_288_354
VGG_16_PARAMETERS = 138_357_544
CLIP_B32_PARAMETERS = 151_277_313  # of the checkpoint as published
DENSENET_121_PARAMETERS = 7_978_856
GEMMA_2_2B_PARAMETERS = 2_614_341_888  # of the checkpoint as published
EFFICIENTNET_B0_PARAMETERS = 5_288_548
WHISPER_BASE_PARAMETERS = 72_593_920 - 1500 * 512  # of the checkpoint as published, where sinusoids count
WAV2VEC2_BASE_PARAMETERS = 94_396_320  # of the checkpoint for CTC as published
PYTHIA_410M_PARAMETERS = 405_334_016  # of the checkpoint as published
REGNETY_4GF_PARAMETERS = 20_646_656
QWEN3_06B_PARAMETERS = 596_049_920  # of the checkpoint as published
MAE_B16_PARAMETERS = 111_907_840 - 197 * 1280  # of the checkpoint as published, where fixed positions count
OLMO2_1B_PARAMETERS = 1_484_916_736  # of the checkpoint as published
MOBILENETV3_LARGE_PARAMETERS = 5_483_032
MAMBA_130M_PARAMETERS = 129_135_360  # of the checkpoint as published
T5_BASE_PARAMETERS = 247_577_856  # version 1.1: gated, its head not tied to the embedding
# Of the checkpoint as published.
LLAMA_8B_PARAMETERS = 8_030_261_248
TINY_LLAMA_PARAMETERS = 1_100_048_384
LLAMA_2_7B_PARAMETERS = 6_738_415_616


def _gpt_parameters(num_layers: int, width: int, vocab_size: int, positions: int) -> int:
    """Tied embedding, positions, per layer 12 d^2 weights and 13 d biases and scales, and the last norm."""
    return (vocab_size + positions) * width + num_layers * (12 * width**2 + 13 * width) + 2 * width


def _conformer_parameters(
    num_layers: int, width: int, kernel_size: int, vocab_size: int, num_features: int
) -> int:
    """Per layer two perceptrons, attention, the gated and the last projection, a kernel per channel, biases and six
    norms; two convolutions that halve frames and features, the input, the head."""
    weights = 2 * 8 * width**2 + 4 * width**2 + 2 * width**2 + width**2 + kernel_size * width
    biases = 2 * 5 * width + 4 * width + 2 * width + width + width
    norms = 2 * 6 * width
    subsample = (9 * width + width) + (9 * width**2 + width)
    ends = num_features // 4 * width * width + width + width * vocab_size + vocab_size
    return num_layers * (weights + biases + norms) + subsample + ends


def _dit_parameters(
    num_layers: int, width: int, patch_size: int, tokens: int, channels: int, num_classes: int
) -> int:
    """Patches, positions, noise level, classes; per layer 12 d^2 + 9 d of attention and perceptron and 6 d^2 + 6 d of
    the modulation; the last modulation and the head."""
    patch = patch_size**2 * channels
    ends = patch * width + width + width * patch + patch + 2 * (width**2 + width)
    condition = 256 * width + width + width**2 + width + num_classes * width
    return ends + condition + tokens * width + num_layers * (18 * width**2 + 15 * width)


def _bert_parameters(num_layers: int, width: int, vocab_size: int, positions: int) -> int:
    """As a GPT's, with two segments, a norm of the embeddings instead of the last one, the transform of predicted
    tokens with its norm, and a bias per word."""
    transform = width**2 + 3 * width
    return _gpt_parameters(num_layers, width, vocab_size, positions) + 2 * width + transform + vocab_size


def _moe_parameters(num_layers: int, width: int, vocab_size: int, positions: int, experts: int) -> int:
    """As a GPT's, but in half of the layers the perceptron is many without biases, and a router."""
    one = 8 * width**2
    change = (experts - 1) * one - 5 * width + experts * width
    return _gpt_parameters(num_layers, width, vocab_size, positions) + num_layers // 2 * change


def _transformer_parameters(num_layers: int, width: int, vocab_size: int) -> int:
    """One embedding; per layer of the encoder 12 d^2 weights and 13 d biases and scales, of the decoder an attention
    and its norm more."""
    encoder, attention = 12 * width**2 + 13 * width, 4 * width**2 + 6 * width
    return vocab_size * width + num_layers * (2 * encoder + attention)


def _lstm_parameters(num_layers: int, width: int, vocab_size: int) -> int:
    """Embedding and head with bias; per layer four gates of input and hidden weights, and one bias each."""
    return vocab_size * (2 * width + 1) + num_layers * 4 * (2 * width**2 + width)


def _llama_parameters(
    num_layers: int, width: int, num_kv_heads: int, head_width: int, ffn_width: int, vocab_size: int
) -> int:
    """Embedding and head of their own; per layer two norms, queries and output, keys and values, three of SwiGLU."""
    layer = 2 * width + 2 * width**2 + 2 * width * num_kv_heads * head_width + 3 * width * ffn_width
    return 2 * vocab_size * width + num_layers * layer + width


def _deepseek_parameters(
    num_layers: int, width: int, heads: int, head: int, rotary: int, latent: int, ffn_width: int, vocab_size: int
) -> int:
    """Embedding and head of their own; per layer queries, latent with its norm, the maps from it, output; SwiGLU."""
    attention = width * heads * (head + rotary) + width * (latent + rotary) + latent
    attention += latent * heads * 2 * head + heads * head * width
    return 2 * vocab_size * width + num_layers * (attention + 3 * width * ffn_width + 2 * width) + width


def _qwen_parameters(
    num_layers: int, width: int, heads: int, kv_heads: int, head: int, ffn_width: int, vocab_size: int
) -> int:
    """One embedding; per layer queries and output, keys and values, SwiGLU, two norms, and those of a head's queries
    and keys."""
    attention = 2 * width * heads * head + 2 * width * kv_heads * head + 2 * head
    return vocab_size * width + num_layers * (attention + 3 * width * ffn_width + 2 * width) + width


def _olmo_parameters(num_layers: int, width: int, ffn_width: int, vocab_size: int) -> int:
    """Embedding and head of their own; per layer attention and the norms of its queries and keys, SwiGLU, two
    norms."""
    layer = 4 * width**2 + 2 * width + 3 * width * ffn_width + 2 * width
    return 2 * vocab_size * width + num_layers * layer + width


def _mae_parameters(num_layers: int, width: int, decoder_layers: int, decoder_width: int, patch: int) -> int:
    """Layers of 12 d^2 + 13 d and a last norm on each side, `patch` numbers of pixels in and out, a map between the
    sides, a class token and a mask token."""
    encoder = num_layers * (12 * width**2 + 13 * width) + 2 * width
    decoder = decoder_layers * (12 * decoder_width**2 + 13 * decoder_width) + 2 * decoder_width
    ends = (patch + 1) * width + (width + 1) * decoder_width + (decoder_width + 1) * patch
    return encoder + decoder + ends + width + decoder_width


def _num_parameters(state: Any) -> int:
    if type(state) is tuple:  # parameters and optimizer state
        state = state[0]
    params = nnx.state(state, nnx.Param) if isinstance(state, nnx.Module) else getattr(state, "params", state)
    return sum(leaf.size for leaf in jax.tree.leaves(params))


TINY_GPT_PARAMETERS = _gpt_parameters(2, 64, 256, 32)


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("name", "expected"),
    sampled([
        ("gpt2-small", _gpt_parameters(12, 768, 50304, 512)),
        ("gpt-1.3b", _gpt_parameters(24, 2048, 50304, 1024)),
        ("gpt-30b", _gpt_parameters(48, 7168, 50304, 2048)),
        ("gpt2-medium", _gpt_parameters(24, 1024, 50304, 512)),
        ("llama3-8b", LLAMA_8B_PARAMETERS),
        ("llama-1b", TINY_LLAMA_PARAMETERS),
        ("llama2-7b", LLAMA_2_7B_PARAMETERS),
        ("transformer-big", _transformer_parameters(6, 1024, 37120)),
        ("llama-tiny", _llama_parameters(2, 64, 4, 8, 128, 256)),
        ("bert-large", _bert_parameters(24, 1024, 30528, 512)),
        ("bert-tiny", _bert_parameters(2, 64, 256, 32)),
        ("moe-8x", _moe_parameters(12, 768, 50304, 512, 8)),
        ("moe-tiny", _moe_parameters(2, 64, 256, 32, 8)),
        ("mlp", 4 * (1024 * 1024 + 1024)),
        ("mlp-tiny", 2 * (128 * 128 + 128) + 128 * 16 + 16),
        ("vit-b16", VIT_B16_PARAMETERS),
        ("vit-l16", VIT_L16_PARAMETERS),
        ("resnet50", RESNET_50_PARAMETERS),
        ("wide-resnet50-2", WIDE_RESNET_50_2_PARAMETERS),
        ("inception-v3", INCEPTION_V3_PARAMETERS),
        ("mixer-b16", MIXER_B16_PARAMETERS),
        ("t5-base", T5_BASE_PARAMETERS),
        ("convnext-t", CONVNEXT_T_PARAMETERS),
        ("swin-t", SWIN_T_PARAMETERS),
        ("mamba-130m", MAMBA_130M_PARAMETERS),
        ("vgg16", VGG_16_PARAMETERS),
        ("clip-b32", CLIP_B32_PARAMETERS),
        ("densenet121", DENSENET_121_PARAMETERS),
        ("deepseek-v2-lite", _deepseek_parameters(27, 2048, 16, 128, 64, 512, 10944, 102400)),
        ("gemma2-2b", GEMMA_2_2B_PARAMETERS),
        ("efficientnet-b0", EFFICIENTNET_B0_PARAMETERS),
        ("whisper-base", WHISPER_BASE_PARAMETERS),
        ("wav2vec2-base", WAV2VEC2_BASE_PARAMETERS),
        ("pythia-410m", PYTHIA_410M_PARAMETERS),
        ("regnety-4gf", REGNETY_4GF_PARAMETERS),
        ("qwen3-0.6b", QWEN3_06B_PARAMETERS),
        ("qwen-tiny", _qwen_parameters(1, 32, 4, 2, 16, 64, 64)),
        ("olmo2-1b", OLMO2_1B_PARAMETERS),
        ("olmo-tiny", _olmo_parameters(1, 32, 64, 64)),
        ("mobilenetv3-large", MOBILENETV3_LARGE_PARAMETERS),
        ("mae-b16", MAE_B16_PARAMETERS),
        ("mae-tiny", _mae_parameters(1, 32, 1, 16, 4 * 4 * 3)),
        ("conformer-l", _conformer_parameters(17, 512, 31, 1024, 80)),
        ("conformer-tiny", _conformer_parameters(1, 32, 3, 16, 8)),
        ("dit-b4", _dit_parameters(12, 768, 4, 64, 4, 1000)),
        ("dit-tiny", _dit_parameters(2, 64, 2, 16, 4, 16)),
        ("lstm", _lstm_parameters(2, 1024, 1024)),
        ("lstm-8", _lstm_parameters(8, 1024, 1024)),
        ("mlp-huge-last", 3 * (4096**2 + 4096) + 4096 * 262144 + 262144),
        *((name, TINY_GPT_PARAMETERS) for name in MODELS if name.startswith("gpt-tiny")),
    ], 14),
)
def test_parameter_counts(name: str, expected: int) -> None:
    _, (state, *_) = build(name)
    assert _num_parameters(state) == expected
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state))


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "name", sampled([name for name, spec in MODELS.items() if "tiny" in name and spec.updates == "returned"], 12)
)
def test_a_step_keeps_the_state_and_returns_a_scalar_loss(name: str) -> None:
    step, (state, batch) = build(name)
    new_state, loss = jax.eval_shape(step, state, batch)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new_state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    assert (loss.shape, loss.dtype) == ((), jnp.float32)
    assert MODELS[name].donate_argnums == (0,)


def test_what_other_steps_return() -> None:
    step, args = build("gpt-tiny-inference")
    assert jax.eval_shape(step, *args).shape == (16, 256)
    for name in ("gpt-tiny-eval", "resnet-tiny-eval"):
        step, args = build(name)
        assert set(jax.eval_shape(step, *args)) == {"loss", "accuracy"}
        assert MODELS[name].donate_argnums == ()
    step, args = build("gpt-tiny-nnx")
    assert nnx.eval_shape(step, *args).shape == ()


def _names(name: str, **overrides: Any) -> list[str]:
    step, args = build(name, **overrides)
    return [eqn.primitive.name for eqn in jax.make_jaxpr(step)(*args).eqns]


def test_remat_checkpoints_every_block_and_changes_no_parameter() -> None:
    _, (state, _) = build("gpt-tiny", remat=True)
    _, (plain, _) = build("gpt-tiny")
    assert jax.tree.structure(state.params) == jax.tree.structure(plain.params)
    names = _names("gpt-tiny", remat=True)
    assert names.count("remat2") + names.count("checkpoint") == MODELS["gpt-tiny"].config.num_layers


def test_scanned_layers_are_one_scan_forward_and_one_backward() -> None:
    assert _names("gpt-tiny-scan").count("scan") == 2
    assert _names("gpt-tiny").count("scan") == 0
    assert _names("mlp-tiny", num_microbatches=4).count("scan") == 1


def test_gates_fill_slots_in_order_and_drop_what_finds_none() -> None:
    """Four tokens, three experts of two slots: counted by hand."""
    gates = jnp.array([[[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.7, 0.1, 0.2], [0.1, 0.2, 0.7]]])
    weights, balance = top_two(gates, 2)
    taken = jnp.asarray(weights > 0)[0].tolist()
    none, slot0, slot1 = [False, False], [True, False], [False, True]
    assert taken == [
        [slot0, slot0, none],  # expert 0 first, expert 1 second
        [slot1, slot1, none],
        [none, none, slot1],  # expert 0 is full; expert 2 has one token that chose it first
        [none, none, slot0],  # and expert 1 is full, too
    ]
    assert jnp.allclose(weights[0, 0].sum(axis=-1), jnp.array([0.6, 0.3, 0]) / 0.9)
    assert jnp.isclose(balance, 3 * (0.475 * 0.75 + 0.275 * 0.25))


def test_a_masked_autoencoder_sees_the_patches_of_least_noise_alone() -> None:
    """The prediction changes with pixels that it sees, and with no others; rows of four patches, 4 x 4 pixels."""
    spec = MODELS["mae-tiny"].override(dtype="float32", batch_size=1, optimizer="sgd")
    (state,) = jax.jit(lambda: spec.make_state(spec.config))()
    images = spec.make_batch(spec.config, jax.random.key(0))["images"]
    noise = jnp.arange(16, 0, -1, dtype=jnp.float32)[None]
    paint = jax.jit(lambda images: state.apply_fn({"params": state.params}, images, noise))
    predicted, masked = paint(images)
    assert masked[0].tolist() == [True] * 12 + [False] * 4  # the last row has the least noise
    for pixel, seen in ((11, False), (12, True)):
        changed, _ = paint(images.at[0, pixel].add(1.0))
        assert bool(jnp.any(changed != predicted)) is seen


def test_overrides_and_unknown_names() -> None:
    _, (_, batch) = build("gpt-tiny", batch_size=3, sequence_length=8)
    assert batch["tokens"].shape == (3, 9)
    with pytest.raises(KeyError, match=r"gpt-huge.*expected one of .*gpt-tiny"):
        build("gpt-huge")
    with pytest.raises(TypeError, match="depth"):
        build("gpt-tiny", depth=3)
