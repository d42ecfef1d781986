"""Image models in Equinox: Equimo."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.compat._case import Case, cross_entropy, images
from benchmarks.compat._equinox import from_module


def vit(small: bool) -> Case:
    """`equimo` ViT."""
    models = importlib.import_module("equimo.models.vit")
    count, side, classes = (8, 32, 8) if small else (256, 224, 1000)

    def make(key: jax.Array) -> Any:
        depths, width, heads = ([2], 64, 4) if small else ([6], 768, 12)
        return models.VisionTransformer(
            img_size=side, in_channels=3, dim=width, patch_size=16, num_heads=heads, depths=depths,
            num_classes=classes, key=key,
        )  # fmt: skip

    return _image_classifier(make, count, side, classes)


def convnext(small: bool) -> Case:
    """`equimo` ConvNeXt: 7 by 7 depthwise convolutions and stochastic depth."""
    models = importlib.import_module("equimo.models.convnext")
    count, side, classes = (8, 32, 8) if small else (256, 224, 1000)

    def make(key: jax.Array) -> Any:
        return models.convnext_t(num_classes=classes, key=key, inference_mode=False)

    return _image_classifier(make, count, side, classes)


def _image_classifier(make: Callable[[jax.Array], Any], count: int, side: int, classes: int) -> Case:
    def loss(model: Any, batch: Any, key: jax.Array) -> jax.Array:
        image = jnp.moveaxis(batch["image"], -1, 1)
        logits = jax.vmap(lambda x, k: model(x, key=k, inference=False))(image, jax.random.split(key, count))
        return cross_entropy(logits, batch["label"])

    return from_module(make, loss, images(count, side, classes=classes))
