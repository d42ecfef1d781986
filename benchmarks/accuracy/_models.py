"""Models and topologies with plans that are compiled, and the models that no rule was made after."""

from __future__ import annotations

from typing import Any

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt2-small", {"num_layers": 4}),
    "bert": ("bert-large", {"num_layers": 4}),
    "vit": ("vit-b16", {"num_layers": 4}),
    "resnet50": ("resnet50", {}),
    "lstm": ("lstm", {}),
    "moe": ("moe-8x", {"num_layers": 4}),
    "dlrm": ("dlrm", {}),
    "unet": ("unet", {}),
    "llama": ("llama-1b", {"num_layers": 4}),
    "inception": ("inception-v3", {}),
    "mixer": ("mixer-b16", {"num_layers": 4}),
    "t5": ("t5-base", {"num_layers": 2}),
    "convnext": ("convnext-t", {"stage_sizes": (2, 2, 3, 2)}),
    "dit": ("dit-b4", {"num_layers": 4}),
    "conformer": ("conformer-l", {"num_layers": 4}),
    "swin": ("swin-t", {"depths": (2, 2, 2, 2)}),
    "mamba": ("mamba-130m", {"num_layers": 2}),
    "whisper": ("whisper-base", {"num_layers": 2}),
    "efficientnet": ("efficientnet-b0", {}),
    "wav2vec": ("wav2vec2-base", {"num_layers": 4}),
    "neox": ("pythia-410m", {"num_layers": 4}),
    "regnet": ("regnety-4gf", {}),
    "qwen": ("qwen3-0.6b", {"num_layers": 4}),
    "mae": ("mae-b16", {"num_layers": 4, "decoder_layers": 2}),
    "olmo": ("olmo2-1b", {"num_layers": 4}),
    "mobilenet": ("mobilenetv3-large", {}),
    "vgg": ("vgg16", {}),
    "clip": ("clip-b32", {"num_layers": 4}),
    "densenet": ("densenet121", {"blocks": (2, 4, 6, 4)}),
    "deepseek": ("deepseek-v2-lite", {"num_layers": 4}),
    "gemma": ("gemma2-2b", {"num_layers": 4, "batch_size": 32, "sequence_length": 1024, "window": 512}),
}
"""Layers of a stack are equal: four of them stand for twelve, in a third of the compiler's time."""
HELD_OUT = {
    "deepseek": "",
    "olmo": "",
    "mobilenet": "",
    "qwen": " on TPUs",
    "mae": " on GPUs",
    "neox": " on GPUs",
    "dit": " on GPUs",
}
"""Models that no rule of the cost model was made after, and where that is so."""
TOPOLOGIES = ("h100:8", "h100:2x8", "v5e:2x4")
