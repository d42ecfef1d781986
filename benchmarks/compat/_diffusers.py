"""`diffusers`, of the releases that had Flax models: the U-Net of Stable Diffusion and its autoencoder."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from diffusers.models.unets.unet_2d_condition_flax import FlaxUNet2DConditionModel
from diffusers.models.vae_flax import FlaxAutoencoderKL

from benchmarks.compat._case import Case, images, stateless


def unet(small: bool) -> Case:
    """`FlaxUNet2DConditionModel` predicts noise, conditioned on text: convolutions, group norms, cross-attention."""
    widths, side, count, text = ((32, 64), 8, 8, 16) if small else ((320, 640), 64, 32, 768)
    deep = len(widths) - 1
    model = FlaxUNet2DConditionModel(
        sample_size=side,
        block_out_channels=widths,
        down_block_types=("CrossAttnDownBlock2D",) * deep + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * deep,
        cross_attention_dim=text,
        attention_head_dim=8,
        layers_per_block=1,
    )

    def batch(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        latent = jax.random.normal(first, (count, 4, side, side))
        return {"latent": latent, "text": jax.random.normal(second, (count, 8 if small else 77, text))}

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        first, second, third = jax.random.split(key, 3)
        noise = jax.random.normal(first, batch["latent"].shape)
        time = jax.random.randint(second, (count,), 0, 1000)
        kept = jnp.cos(time / 1000 * jnp.pi / 2)[:, None, None, None]
        noisy = kept * batch["latent"] + jnp.sqrt(1 - kept**2) * noise
        rngs = {"dropout": third}
        found = model.apply({"params": params}, noisy, time, batch["text"], train=True, rngs=rngs).sample
        return jnp.mean((found - noise) ** 2)

    return stateless(model.init_weights, loss, batch)


def autoencoder(small: bool) -> Case:
    """`FlaxAutoencoderKL`: encoder, sampled code and decoder of images."""
    widths, side, count = ((32, 64), 16, 8) if small else ((128, 256, 512), 128, 32)
    model = FlaxAutoencoderKL(
        block_out_channels=widths,
        down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        layers_per_block=1,
        sample_size=side,
    )

    def loss(params: Any, batch: Any, key: jax.Array) -> jax.Array:
        image = jnp.moveaxis(batch["image"], -1, 1)
        rngs = {"gaussian": key, "dropout": key}
        found = model.apply(
            {"params": params}, image, sample_posterior=True, deterministic=False, rngs=rngs
        ).sample
        return jnp.mean((found - image) ** 2)

    return stateless(model.init_weights, loss, images(count, side))
