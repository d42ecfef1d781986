"""The models by name, and how a name becomes a step with abstract arguments."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.models._batch_norm import batch_norm_eval_step, batch_norm_train_step
from benchmarks.models._bert import BERTConfig, bert_train_step, make_bert_batch, make_bert_state
from benchmarks.models._clip import CLIPConfig, clip_train_step, make_clip_batch, make_clip_state
from benchmarks.models._conformer import (
    ConformerConfig,
    conformer_train_step,
    make_conformer_batch,
    make_conformer_state,
)
from benchmarks.models._convnext import ConvNeXtConfig, make_convnext_state
from benchmarks.models._deepseek import DeepSeekConfig, make_deepseek_state
from benchmarks.models._densenet import DenseNetConfig, make_densenet_state
from benchmarks.models._dit import DiTConfig, dit_train_step, make_dit_batch, make_dit_state
from benchmarks.models._dlrm import DLRMConfig, dlrm_train_step, make_dlrm_batch, make_dlrm_state
from benchmarks.models._efficientnet import EfficientNetConfig, make_efficientnet_state, stages_of
from benchmarks.models._gemma import GemmaConfig, make_gemma_state
from benchmarks.models._gpt import (
    GPTConfig,
    gpt_eval_step,
    gpt_train_step,
    make_gpt_batch,
    make_gpt_inference,
    make_gpt_params,
    make_gpt_state,
    make_gpt_step,
    make_gpt_tokens,
)
from benchmarks.models._gpt_nnx import make_nnx_gpt_state, nnx_gpt_train_step
from benchmarks.models._inception import InceptionConfig, make_inception_state
from benchmarks.models._llama import LlamaConfig, llama_train_step, make_llama_batch, make_llama_state
from benchmarks.models._lstm import LSTMConfig, make_lstm_state
from benchmarks.models._mae import MAEConfig, mae_train_step, make_mae_batch, make_mae_state
from benchmarks.models._mamba import MambaConfig, make_mamba_state
from benchmarks.models._mixed import MixedGPTConfig, make_mixed_state, make_mixed_step
from benchmarks.models._mixer import MixerConfig, make_mixer_state
from benchmarks.models._mlp import MLPConfig, make_mlp_batch, make_mlp_state, make_mlp_step, mlp_train_step
from benchmarks.models._mobilenet import MobileNetConfig, make_mobilenet_state, rows_of
from benchmarks.models._moe import MoEConfig, make_moe_state, make_moe_step
from benchmarks.models._neox import NeoXConfig, make_neox_state
from benchmarks.models._olmo import OlmoConfig, make_olmo_state
from benchmarks.models._qwen import QwenConfig, make_qwen_state
from benchmarks.models._regnet import RegNetConfig, make_regnet_state
from benchmarks.models._resnet import ResNetConfig, make_resnet_state
from benchmarks.models._spec import ModelSpec, Step
from benchmarks.models._swin import SwinConfig, make_swin_state
from benchmarks.models._t5 import T5Config, make_t5_state
from benchmarks.models._transformer import (
    TransformerConfig,
    make_transformer_batch,
    make_transformer_state,
    transformer_train_step,
)
from benchmarks.models._unet import UNetConfig, make_unet_batch, make_unet_state, unet_train_step
from benchmarks.models._vgg import VGGConfig, make_vgg_state
from benchmarks.models._vit import ViTConfig, make_image_batch, make_vit_state
from benchmarks.models._wav2vec import (
    Wav2VecConfig,
    make_wav2vec_batch,
    make_wav2vec_state,
    wav2vec_train_step,
)
from benchmarks.models._whisper import (
    WhisperConfig,
    make_whisper_batch,
    make_whisper_state,
    whisper_train_step,
)

_TINY_GPT: dict[str, Any] = {
    "num_layers": 2, "width": 64, "num_heads": 4, "vocab_size": 256, "batch_size": 16, "sequence_length": 32,
}  # fmt: skip


def _family(
    config: Any, make_state: Callable[[Any], Any], make_batch: Callable[..., Any], make_step: Callable[[Any], Step]
) -> Callable[..., ModelSpec]:
    """Makes a family's models of a summary and the fields of its configuration."""

    def model(summary: str, **fields: Any) -> ModelSpec:
        return ModelSpec(
            config=config(**fields),
            make_step=make_step,
            make_state=make_state,
            make_batch=make_batch,
            summary=summary,
        )

    return model


def _always(step: Step) -> Callable[[Any], Step]:
    """A step that no configuration changes."""
    return lambda _: step


_gpt = _family(GPTConfig, make_gpt_state, make_gpt_batch, make_gpt_step)
_mlp = _family(MLPConfig, make_mlp_state, make_mlp_batch, make_mlp_step)
_resnet = _family(ResNetConfig, make_resnet_state, make_image_batch, _always(batch_norm_train_step))
_regnet = _family(RegNetConfig, make_regnet_state, make_image_batch, _always(batch_norm_train_step))
_efficientnet = _family(
    EfficientNetConfig, make_efficientnet_state, make_image_batch, _always(batch_norm_train_step)
)
_mobilenet = _family(MobileNetConfig, make_mobilenet_state, make_image_batch, _always(batch_norm_train_step))
_inception = _family(InceptionConfig, make_inception_state, make_image_batch, _always(batch_norm_train_step))
_densenet = _family(DenseNetConfig, make_densenet_state, make_image_batch, _always(batch_norm_train_step))
# Images and labels instead of vectors and labels.
_vit = _family(ViTConfig, make_vit_state, make_image_batch, _always(mlp_train_step))
_mixer = _family(MixerConfig, make_mixer_state, make_image_batch, _always(mlp_train_step))
_convnext = _family(ConvNeXtConfig, make_convnext_state, make_image_batch, _always(mlp_train_step))
_vgg = _family(VGGConfig, make_vgg_state, make_image_batch, _always(mlp_train_step))
_mae = _family(MAEConfig, make_mae_state, make_mae_batch, _always(mae_train_step))
_swin = _family(SwinConfig, make_swin_state, make_image_batch, _always(mlp_train_step))
_mamba = _family(MambaConfig, make_mamba_state, make_gpt_batch, _always(gpt_train_step))
_lstm = _family(LSTMConfig, make_lstm_state, make_gpt_batch, _always(gpt_train_step))
_bert = _family(BERTConfig, make_bert_state, make_bert_batch, _always(bert_train_step))
_transformer = _family(
    TransformerConfig, make_transformer_state, make_transformer_batch, _always(transformer_train_step)
)
_t5 = _family(T5Config, make_t5_state, make_transformer_batch, _always(transformer_train_step))
_deepseek = _family(DeepSeekConfig, make_deepseek_state, make_gpt_batch, _always(gpt_train_step))
_neox = _family(NeoXConfig, make_neox_state, make_gpt_batch, _always(gpt_train_step))
_gemma = _family(GemmaConfig, make_gemma_state, make_gpt_batch, _always(gpt_train_step))
_qwen = _family(QwenConfig, make_qwen_state, make_gpt_batch, _always(gpt_train_step))
_olmo = _family(OlmoConfig, make_olmo_state, make_gpt_batch, _always(gpt_train_step))
_mixed = _family(MixedGPTConfig, make_mixed_state, make_gpt_batch, make_mixed_step)
_moe = _family(MoEConfig, make_moe_state, make_gpt_batch, make_moe_step)
_llama = _family(LlamaConfig, make_llama_state, make_llama_batch, _always(llama_train_step))
_dlrm = _family(DLRMConfig, make_dlrm_state, make_dlrm_batch, _always(dlrm_train_step))
_conformer = _family(
    ConformerConfig, make_conformer_state, make_conformer_batch, _always(conformer_train_step)
)
_clip = _family(CLIPConfig, make_clip_state, make_clip_batch, _always(clip_train_step))
_wav2vec = _family(Wav2VecConfig, make_wav2vec_state, make_wav2vec_batch, _always(wav2vec_train_step))
_whisper = _family(WhisperConfig, make_whisper_state, make_whisper_batch, _always(whisper_train_step))
_dit = _family(DiTConfig, make_dit_state, make_dit_batch, _always(dit_train_step))
_unet = _family(UNetConfig, make_unet_state, make_unet_batch, _always(unet_train_step))


def _nnx_gpt(summary: str, **config: Any) -> ModelSpec:
    return replace(
        _gpt(summary, **config),
        make_step=_always(nnx_gpt_train_step),
        make_state=make_nnx_gpt_state,
        updates="in place",
        donate_argnums=(0, 1),
    )


def _reading(spec: ModelSpec, summary: str, **fields: Any) -> ModelSpec:
    """A step that reads its state and returns something else."""
    return replace(spec, updates="none", donate_argnums=(), summary=summary, **fields)


_TINY_RESNET = _resnet(
    "ResNet of four bottleneck blocks for tests",
    stage_sizes=(1, 1, 1, 1), width=16, image_size=32, num_classes=16, batch_size=16,
)  # fmt: skip

MODELS: dict[str, ModelSpec] = {
    "gpt-tiny": _gpt("2-layer GPT for tests", **_TINY_GPT),
    "gpt2-small": _gpt(
        "GPT-2 small, 124M parameters",
        num_layers=12, width=768, num_heads=12, vocab_size=50304, batch_size=64, sequence_length=512,
    ),
    "gpt2-medium": _gpt(
        "GPT-2 medium, 355M parameters",
        num_layers=24, width=1024, num_heads=16, vocab_size=50304, batch_size=64, sequence_length=512,
    ),
    "gpt2-xl": _gpt(
        "GPT-2 XL, 1.6B parameters",
        num_layers=48, width=1600, num_heads=25, vocab_size=50304, batch_size=32, sequence_length=1024,
    ),
    "gpt-1.3b": _gpt(
        "GPT-3 XL shape, 1.3B parameters",
        num_layers=24, width=2048, num_heads=16, vocab_size=50304, batch_size=32, sequence_length=1024,
    ),
    "gpt-30b": _gpt(
        "OPT-30B shape, 30B parameters; `remat=True` for checkpointed blocks",
        num_layers=48, width=7168, num_heads=56, vocab_size=50304, batch_size=64, sequence_length=2048,
    ),
    "gpt-tiny-scan": _gpt("2-layer GPT, scanned over its layers with remat", scan=True, remat=True, **_TINY_GPT),
    "gpt-tiny-dropout": _gpt("2-layer GPT with dropout", dropout=0.1, **_TINY_GPT),
    "gpt-tiny-mixed": _mixed("2-layer GPT, bf16 parameters in the forward pass, scaled loss", **_TINY_GPT),
    "gpt-tiny-nnx": _nnx_gpt("2-layer GPT in NNX", **_TINY_GPT),
    "gpt-tiny-eval": _reading(
        _gpt("", **_TINY_GPT), "2-layer GPT, loss and accuracy", make_step=_always(gpt_eval_step)
    ),
    "gpt-tiny-inference": _reading(
        _gpt("", **_TINY_GPT), "2-layer GPT, logits of the next token",
        make_step=make_gpt_inference, make_state=make_gpt_params, make_batch=make_gpt_tokens,
    ),
    "bert-large": _bert(
        "BERT-large, 335M parameters, masked tokens",
        num_layers=24, width=1024, num_heads=16, vocab_size=30528, batch_size=64, sequence_length=512,
        num_predictions=80,
    ),
    "bert-tiny": _bert(
        "2-layer BERT for tests",
        num_layers=2, width=64, num_heads=4, vocab_size=256, batch_size=16, sequence_length=32, num_predictions=8,
    ),
    "moe-8x": _moe(
        "12-layer transformer, every second perceptron 8 experts, 323M parameters",
        num_layers=12, width=768, num_heads=12, vocab_size=50304, batch_size=64, sequence_length=512,
    ),
    "moe-tiny": _moe(
        "2-layer transformer, one of its perceptrons 8 experts, for tests",
        num_layers=2, width=64, num_heads=4, vocab_size=256, batch_size=16, sequence_length=32,
    ),
    "llama-tiny": _llama(
        "2-layer Llama for tests",
        num_layers=2, width=64, num_heads=8, num_kv_heads=4, ffn_width=128, vocab_size=256, batch_size=16,
        sequence_length=32,
    ),
    "llama-1b": _llama(
        "TinyLlama shape, 1.1B parameters",
        num_layers=22, width=2048, num_heads=32, num_kv_heads=4, ffn_width=5632, vocab_size=32000, batch_size=32,
        sequence_length=2048, remat=False,
    ),
    "llama3-8b": _llama(
        "Llama 3 8B shape, blocks checkpointed",
        num_layers=32, width=4096, num_heads=32, num_kv_heads=8, ffn_width=14336, vocab_size=128256,
        batch_size=128, sequence_length=4096,
    ),
    "llama3-70b": _llama(
        "Llama 3 70B shape, blocks checkpointed",
        num_layers=80, width=8192, num_heads=64, num_kv_heads=8, ffn_width=28672, vocab_size=128256,
        batch_size=1024, sequence_length=4096,
    ),
    "mlp": _mlp(
        "4-layer perceptron, 4M parameters", num_layers=4, width=1024, num_classes=1024, batch_size=4096
    ),
    "mlp-huge-last": _mlp(
        "4-layer perceptron onto 262,144 classes, 1.1B parameters",
        num_layers=4, width=4096, num_classes=262144, batch_size=4096, optimizer="adamw",
    ),
    "mlp-tiny": _mlp("3-layer perceptron for tests", num_layers=3, width=128, num_classes=16, batch_size=32),
    "vit-b16": _vit(
        "ViT-B/16, 86M parameters",
        num_layers=12, width=768, num_heads=12, patch_size=16, image_size=224, num_classes=1000,
        batch_size=256,
    ),
    "vit-l16": _vit(
        "ViT-L/16, 304M parameters",
        num_layers=24, width=1024, num_heads=16, patch_size=16, image_size=224, num_classes=1000,
        batch_size=256,
    ),
    "vit-tiny": _vit(
        "2-layer ViT for tests",
        num_layers=2, width=64, num_heads=4, patch_size=4, image_size=16, num_classes=16, batch_size=16,
    ),
    "mae-b16": _mae(
        "masked autoencoder of a ViT-B/16, 112M parameters",
        num_layers=12, width=768, num_heads=12, decoder_layers=8, decoder_width=512, decoder_heads=16,
        patch_size=16, image_size=224, num_visible=49, batch_size=512,
    ),
    "mae-tiny": _mae(
        "masked autoencoder of one layer on each side for tests",
        num_layers=1, width=32, num_heads=4, decoder_layers=1, decoder_width=16, decoder_heads=2, patch_size=4,
        image_size=16, num_visible=4, batch_size=16,
    ),
    "mixer-b16": _mixer(
        "MLP-Mixer-B/16, 60M parameters",
        num_layers=12, width=768, tokens_width=384, mlp_width=3072, patch_size=16, image_size=224,
        num_classes=1000, batch_size=256,
    ),
    "convnext-t": _convnext(
        "ConvNeXt-T, 29M parameters",
        stage_sizes=(3, 3, 9, 3), widths=(96, 192, 384, 768), image_size=224, num_classes=1000, batch_size=256,
    ),
    "convnext-tiny": _convnext(
        "ConvNeXt of three blocks for tests",
        stage_sizes=(1, 1, 1), widths=(16, 32, 64), image_size=32, num_classes=16, batch_size=16,
    ),
    "swin-t": _swin(
        "Swin-T, 28M parameters",
        depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), width=96, window=7, patch_size=4, image_size=224,
        num_classes=1000, batch_size=256,
    ),
    "swin-tiny": _swin(
        "Swin transformer of two stages for tests",
        depths=(2, 1), num_heads=(2, 4), width=32, window=4, patch_size=4, image_size=32, num_classes=16,
        batch_size=16,
    ),
    "resnet50": _resnet(
        "ResNet-50, 26M parameters",
        stage_sizes=(3, 4, 6, 3), width=64, image_size=224, num_classes=1000, batch_size=256,
    ),
    "wide-resnet50-2": _resnet(
        "Wide-ResNet-50-2, 69M parameters",
        stage_sizes=(3, 4, 6, 3), width=64, widen=2, image_size=224, num_classes=1000, batch_size=256,
    ),
    "wide-resnet50-8x": _resnet(
        "ResNet-50 with eight times the channels everywhere (Tofu, section 6.1), 1.5B parameters",
        stage_sizes=(3, 4, 6, 3), width=512, image_size=224, num_classes=1000, batch_size=64,
    ),
    "resnet-tiny": _TINY_RESNET,
    "resnet-tiny-eval": _reading(
        _TINY_RESNET, "the tiny ResNet, loss and accuracy with the running statistics",
        make_step=_always(batch_norm_eval_step),
    ),
    "regnety-4gf": _regnet(
        "RegNetY-4GF, 21M parameters",
        stage_sizes=(2, 6, 12, 2), widths=(128, 192, 512, 1088), group_width=64, stem_width=32, image_size=224,
        num_classes=1000, batch_size=256,
    ),
    "regnet-tiny": _regnet(
        "RegNetY of two blocks for tests",
        stage_sizes=(1, 1), widths=(16, 32), group_width=8, stem_width=16, image_size=16, num_classes=16,
        batch_size=16,
    ),
    "efficientnet-b0": _efficientnet(
        "EfficientNet-B0, 5.3M parameters",
        stages=stages_of(
            (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
            (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
        ),
        stem_width=32, head_width=1280, image_size=224, num_classes=1000, batch_size=256,
    ),
    "efficientnet-tiny": _efficientnet(
        "EfficientNet of two blocks for tests",
        stages=stages_of((1, 16, 1, 1, 3), (2, 16, 1, 1, 3)),
        stem_width=16, head_width=32, image_size=16, num_classes=16, batch_size=16,
    ),
    "mobilenetv3-large": _mobilenet(
        "MobileNetV3-Large, 5.5M parameters",
        rows=rows_of(
            (3, 16, 16, False, "RE", 1), (3, 64, 24, False, "RE", 2), (3, 72, 24, False, "RE", 1),
            (5, 72, 40, True, "RE", 2), (5, 120, 40, True, "RE", 1), (5, 120, 40, True, "RE", 1),
            (3, 240, 80, False, "HS", 2), (3, 200, 80, False, "HS", 1), (3, 184, 80, False, "HS", 1),
            (3, 184, 80, False, "HS", 1), (3, 480, 112, True, "HS", 1), (3, 672, 112, True, "HS", 1),
            (5, 672, 160, True, "HS", 2), (5, 960, 160, True, "HS", 1), (5, 960, 160, True, "HS", 1),
        ),
        stem_width=16, last_width=960, head_width=1280, image_size=224, num_classes=1000, batch_size=512,
    ),
    "mobilenet-tiny": _mobilenet(
        "MobileNetV3 of two blocks for tests",
        rows=rows_of((3, 16, 16, False, "RE", 1), (3, 32, 16, True, "HS", 1)),
        stem_width=16, last_width=32, head_width=32, image_size=16, num_classes=16, batch_size=16,
    ),
    "dlrm": _dlrm(
        "DLRM, 26 tables of 200k rows, 335M parameters",
        num_tables=26, rows=200_000, width=64, num_dense=13, bottom=(512, 256), top=(1024, 1024, 512, 256),
        batch_size=65536,
    ),
    "dlrm-large": _dlrm(
        "DLRM, 26 tables of 1M rows, 3.3B parameters",
        num_tables=26, rows=1_000_000, width=128, num_dense=13, bottom=(512, 256), top=(1024, 1024, 512, 256),
        batch_size=65536,
    ),
    "dlrm-tiny": _dlrm(
        "DLRM with 3 tables for tests",
        num_tables=3, rows=64, width=16, num_dense=4, bottom=(32,), top=(32, 16), batch_size=32,
    ),
    "unet": _unet(
        "diffusion U-Net of 4 levels, 24M parameters",
        width=128, widths=(1, 2, 2, 4), image_size=64, batch_size=128,
    ),
    "unet-tiny": _unet(
        "diffusion U-Net of 2 levels for tests", width=16, widths=(1, 2), image_size=8, batch_size=16,
    ),
    "conformer-l": _conformer(
        "Conformer-L for speech, 111M parameters",
        num_layers=17, width=512, num_heads=8, kernel_size=31, vocab_size=1024, num_frames=1600, num_features=80,
        num_labels=128, batch_size=64,
    ),
    "conformer-tiny": _conformer(
        "1-layer Conformer for tests",
        num_layers=1, width=32, num_heads=4, kernel_size=3, vocab_size=16, num_frames=32, num_features=8,
        num_labels=2, batch_size=16,
    ),
    "vgg16": _vgg(
        "VGG-16, 138M parameters",
        stage_sizes=(2, 2, 3, 3, 3), widths=(64, 128, 256, 512, 512), dense_width=4096, image_size=224,
        num_classes=1000, batch_size=256,
    ),
    "vgg-tiny": _vgg(
        "VGG of two stages for tests",
        stage_sizes=(1, 1), widths=(16, 32), dense_width=64, image_size=16, num_classes=16, batch_size=16,
    ),
    "densenet121": _densenet(
        "DenseNet-121, 8M parameters",
        blocks=(6, 12, 24, 16), growth=32, width=64, image_size=224, num_classes=1000, batch_size=256,
    ),
    "densenet-tiny": _densenet(
        "DenseNet of two blocks for tests",
        blocks=(1, 2), growth=8, width=16, image_size=32, num_classes=16, batch_size=16,
    ),
    "deepseek-v2-lite": _deepseek(
        "DeepSeek-V2-Lite's attention with dense perceptrons, 2.6B parameters",
        num_layers=27, width=2048, num_heads=16, head_width=128, rotary_width=64, latent_width=512, ffn_width=10944,
        vocab_size=102400, batch_size=64, sequence_length=1024,
    ),
    "deepseek-tiny": _deepseek(
        "1-layer transformer with DeepSeek's attention for tests",
        num_layers=1, width=32, num_heads=4, head_width=8, rotary_width=4, latent_width=16, ffn_width=64,
        vocab_size=64, batch_size=16, sequence_length=8,
    ),
    "gemma2-2b": _gemma(
        "Gemma 2 2B shape, 2.6B parameters",
        num_layers=26, width=2304, num_heads=8, num_kv_heads=4, head_width=256, ffn_width=9216, vocab_size=256000,
        window=4096, batch_size=64, sequence_length=8192,
    ),
    "gemma-tiny": _gemma(
        "2-layer Gemma for tests",
        num_layers=2, width=32, num_heads=4, num_kv_heads=2, head_width=8, ffn_width=64, vocab_size=64, window=4,
        batch_size=16, sequence_length=8,
    ),
    "qwen3-0.6b": _qwen(
        "Qwen3 0.6B, 596M parameters",
        num_layers=28, width=1024, num_heads=16, num_kv_heads=8, head_width=128, ffn_width=3072, vocab_size=151936,
        batch_size=32, sequence_length=1024,
    ),
    "qwen-tiny": _qwen(
        "1-layer Qwen3 for tests",
        num_layers=1, width=32, num_heads=4, num_kv_heads=2, head_width=16, ffn_width=64, vocab_size=64,
        batch_size=16, sequence_length=8,
    ),
    "olmo2-1b": _olmo(
        "OLMo 2 1B, 1.5B parameters",
        num_layers=16, width=2048, num_heads=16, ffn_width=8192, vocab_size=100352, batch_size=32,
        sequence_length=1024,
    ),
    "olmo-tiny": _olmo(
        "1-layer OLMo 2 for tests",
        num_layers=1, width=32, num_heads=4, ffn_width=64, vocab_size=64, batch_size=16, sequence_length=8,
    ),
    "pythia-410m": _neox(
        "Pythia 410M (GPT-NeoX), 405M parameters",
        num_layers=24, width=1024, num_heads=16, rotary_width=16, vocab_size=50304, batch_size=32,
        sequence_length=2048,
    ),
    "neox-tiny": _neox(
        "1-layer GPT-NeoX for tests",
        num_layers=1, width=32, num_heads=4, rotary_width=4, vocab_size=64, batch_size=16, sequence_length=8,
    ),
    "clip-b32": _clip(
        "CLIP of a ViT-B/32, 151M parameters",
        num_layers=12, image_width=768, text_width=512, head_width=64, patch_size=32, image_size=224,
        vocab_size=49408, num_tokens=77, embedding=512, batch_size=512,
    ),
    "clip-tiny": _clip(
        "CLIP of one layer for tests",
        num_layers=1, image_width=32, text_width=32, head_width=16, patch_size=8, image_size=16, vocab_size=64,
        num_tokens=8, embedding=16, batch_size=16,
    ),
    "whisper-base": _whisper(
        "Whisper base, 72M parameters",
        num_layers=6, width=512, num_heads=8, vocab_size=51865, num_frames=3000, num_features=80, num_tokens=448,
        batch_size=64,
    ),
    "whisper-tiny": _whisper(
        "1-layer Whisper for tests",
        num_layers=1, width=32, num_heads=4, vocab_size=16, num_frames=16, num_features=8, num_tokens=8,
        batch_size=16,
    ),
    "wav2vec2-base": _wav2vec(
        "wav2vec 2.0 base, 94M parameters, fine-tuned",
        num_layers=12, width=768, num_heads=12, features=512, position_kernel=128, position_groups=16, vocab_size=32,
        num_samples=80000, num_labels=64, batch_size=64,
    ),
    "wav2vec2-tiny": _wav2vec(
        "1-layer wav2vec 2.0 for tests",
        num_layers=1, width=32, num_heads=4, features=16, position_kernel=4, position_groups=4, vocab_size=16,
        num_samples=6400, num_labels=4, batch_size=16,
    ),
    "dit-b4": _dit(
        "DiT-B/4, diffusion transformer of 130M parameters",
        num_layers=12, width=768, num_heads=12, patch_size=4, latent_size=32, channels=4, num_classes=1000,
        batch_size=512,
    ),
    "dit-tiny": _dit(
        "2-layer diffusion transformer for tests",
        num_layers=2, width=64, num_heads=4, patch_size=2, latent_size=8, channels=4, num_classes=16, batch_size=16,
    ),
    "mamba-130m": _mamba(
        "Mamba, 129M parameters",
        num_layers=24, width=768, num_states=16, rank=48, kernel_size=4, vocab_size=50280, batch_size=32,
        sequence_length=256,
    ),
    "mamba-tiny": _mamba(
        "1-layer Mamba for tests",
        num_layers=1, width=32, num_states=4, rank=2, kernel_size=4, vocab_size=64, batch_size=16,
        sequence_length=16,
    ),
    "lstm": _lstm(
        "2-layer LSTM, 18M parameters",
        num_layers=2, width=1024, vocab_size=1024, batch_size=64, sequence_length=256,
    ),
    "lstm-8": _lstm(
        "8-layer LSTM, 69M parameters",
        num_layers=8, width=1024, vocab_size=1024, batch_size=64, sequence_length=256,
    ),
    "transformer-big": _transformer(
        "Transformer big, 6 layers on each side, 214M parameters",
        num_layers=6, width=1024, num_heads=16, vocab_size=37120, batch_size=256, sequence_length=256,
    ),
    "transformer-tiny": _transformer(
        "2-layer encoder and decoder for tests",
        num_layers=2, width=64, num_heads=4, vocab_size=256, batch_size=16, sequence_length=32,
    ),
    "t5-base": _t5(
        "T5 1.1 base, 12 layers on each side, 248M parameters",
        num_layers=12, width=768, num_heads=12, mlp_width=2048, vocab_size=32128, batch_size=64,
        sequence_length=512,
    ),
    "inception-v3": _inception(
        "Inception-v3, 24M parameters", image_size=299, num_classes=1000, batch_size=256,
    ),
    "lstm-tiny": _lstm(
        "1-layer LSTM for tests",
        num_layers=1, width=32, vocab_size=64, batch_size=16, sequence_length=8,
    ),
}  # fmt: skip


def build(name: str, **overrides: Any) -> tuple[Step, tuple[Any, ...]]:
    """The step of model `name` and its abstract arguments, with config fields overridden.

    Raises `KeyError` for an unknown name and `TypeError` for an unknown field.
    """
    if name not in MODELS:
        raise KeyError(f"unknown model {name!r}; expected one of {', '.join(MODELS)}")
    spec = MODELS[name].override(**overrides)
    return spec.make_step(spec.config), spec.abstract_args()
