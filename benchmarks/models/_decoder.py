"""A decoder-only transformer of any published dimensions in plain JAX: bf16 compute, f32 parameters.

Llama, MPT and GPT-3 and its relatives in Pax and MaxText differ in few points, which are fields: perceptron, norm,
positions, shared heads of keys, tied embeddings. Runs of them differ in what is recomputed, in fused attention, and
in whether a loop runs the layers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.ad_checkpoint import checkpoint_name

from benchmarks.models._gpt import make_gpt_batch, next_token_loss
from benchmarks.models._llama import rotate
from benchmarks.models._optimizer import OPTIMIZERS
from benchmarks.models._spec import ModelSpec, Precision, family

EPSILON = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainDecoderConfig(Precision):
    """Sizes of a decoder and of its batch: `batch_size` sequences of `sequence_length` tokens per step.

    `num_kv_heads` heads of keys and values serve `num_heads` of queries. `mlp` is a name in `PERCEPTRONS`, `norm` "rms"
    or "layer", `positions` "rotary", "learned" or "none". `remat` is a name in `POLICIES`. `scan` runs the layers as
    one loop; `fused` calls the attention kernel of cuDNN. The batch is cut into `micro_batches`, whose gradients are
    added.
    """

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    ffn_width: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    mlp: str = "swiglu"
    norm: str = "rms"
    positions: str = "rotary"
    tied: bool = False
    remat: str = "none"
    scan: bool = False
    fused: bool = False
    micro_batches: int = 1
    optimizer: str = "clipped-adamw"


PERCEPTRONS: dict[str, tuple[bool, Callable[[jax.Array], jax.Array]]] = {
    "swiglu": (True, jax.nn.silu),
    "geglu": (True, jax.nn.gelu),
    "gelu": (False, jax.nn.gelu),
    "relu": (False, jax.nn.relu),
}
"""Name -> whether a second projection multiplies the hidden values, and their function."""

_saved = jax.checkpoint_policies
POLICIES: dict[str, Any] = {
    "full": _saved.nothing_saveable,
    "dots": _saved.dots_saveable,
    "parameter dots": _saved.dots_with_no_batch_dims_saveable,
    "attention": _saved.save_only_these_names("query", "key", "value", "mixed", "out"),
    "minimal": _saved.save_only_these_names("query", "key", "value", "out", "gate", "up", "down"),
    "minimal and mixed": _saved.save_only_these_names("query", "key", "value", "mixed", "out", "gate", "up", "down"),
}
"""Name -> values of a block that the backward pass reads; all others it recomputes. "none": no checkpoint."""


def _normed(config: PlainDecoderConfig, params: dict[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    """Root-mean-square or layer norm, computed in float32."""
    wide = x.astype(jnp.float32)
    if config.norm == "layer":
        wide = wide - wide.mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + EPSILON)
    return wide.astype(x.dtype) * params[name].astype(x.dtype)


def _attention(config: PlainDecoderConfig, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of heads `[B, T, H, D]`."""
    if config.fused:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    groups = config.num_heads // config.num_kv_heads
    q = q.reshape(*q.shape[:2], config.num_kv_heads, groups, config.head_width)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k) * jnp.asarray(config.head_width**-0.5, q.dtype)
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    scores = jnp.where(seen, scores.astype(jnp.float32), jnp.finfo(jnp.float32).min)
    mixed = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)
    return mixed.reshape(*mixed.shape[:2], config.num_heads, config.head_width)


def _block(config: PlainDecoderConfig, params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Pre-norm attention and perceptron, each with a residual connection."""

    def product(subscripts: str, x: jax.Array, name: str) -> jax.Array:
        return checkpoint_name(jnp.einsum(subscripts, x, params[name].astype(x.dtype)), name)

    h = _normed(config, params, "attention_norm", x)
    q, k, v = (product("btd,dhk->bthk", h, name) for name in ("query", "key", "value"))
    if config.positions == "rotary":
        q, k = rotate(q), rotate(k)
    x = x + product("bthk,hkd->btd", checkpoint_name(_attention(config, q, k, v), "mixed"), "out")
    h = _normed(config, params, "ffn_norm", x)
    is_gated, function = PERCEPTRONS[config.mlp]
    hidden = function(product("btd,df->btf", h, "gate"))
    if is_gated:
        hidden = hidden * product("btd,df->btf", h, "up")
    return x + product("btf,fd->btd", hidden, "down")


def _logits(config: PlainDecoderConfig, params: dict[str, Any], tokens: jax.Array) -> jax.Array:
    """Float32 logits `[B, T, V]` of tokens `[B, T]`."""
    dtype = config.dtype
    x = params["tokens"].astype(dtype)[tokens]
    if config.positions == "learned":
        x = x + params["positions"].astype(dtype)
    block = partial(_block, config)
    if config.remat != "none":
        block = jax.checkpoint(block, policy=POLICIES[config.remat], prevent_cse=not config.scan)
    if config.scan:
        x, _ = jax.lax.scan(lambda x, layer: (block(layer, x), None), x, params["layers"])
    else:
        for layer in params["layers"]:
            x = block(layer, x)
    x = _normed(config, params, "norm", x)
    if config.tied:
        return jnp.einsum("btd,vd->btv", x, params["tokens"].astype(dtype)).astype(jnp.float32)
    return jnp.einsum("btd,dv->btv", x, params["head"].astype(dtype)).astype(jnp.float32)


def make_decoder_step(config: PlainDecoderConfig) -> Any:
    """One optimizer step on next-token cross entropy."""
    optimizer = OPTIMIZERS[config.optimizer]()

    def loss_fn(params: Any, tokens: jax.Array) -> jax.Array:
        return next_token_loss(_logits(config, params, tokens[:, :-1]), tokens[:, 1:])

    def gradients(params: Any, tokens: jax.Array) -> Any:
        if config.micro_batches == 1:
            return jax.value_and_grad(loss_fn)(params, tokens)

        def add(total: Any, part: jax.Array) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss_fn)(params, part)), None

        parts = tokens.reshape(config.micro_batches, -1, tokens.shape[1])
        zeros = jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params)
        return jax.tree.map(lambda total: total / config.micro_batches, jax.lax.scan(add, zeros, parts)[0])

    def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, slots = state
        loss, found = gradients(params, batch["tokens"])
        updates, slots = optimizer.update(found, slots, params)
        return (optax.apply_updates(params, updates), slots), loss

    return train_step


def _layer_shapes(config: PlainDecoderConfig) -> dict[str, tuple[int, ...]]:
    width, head, ffn = config.width, config.head_width, config.ffn_width
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (width,),
        "query": (width, config.num_heads, head),
        "key": (width, config.num_kv_heads, head),
        "value": (width, config.num_kv_heads, head),
        "out": (config.num_heads, head, width),
        "ffn_norm": (width,),
        "gate": (width, ffn),
        "down": (ffn, width),
    }
    return shapes | ({"up": (width, ffn)} if PERCEPTRONS[config.mlp][0] else {})


def make_decoder_state(config: PlainDecoderConfig) -> tuple[tuple[Any, Any]]:
    """Parameters and slots of the optimizer; layers are stacked where a loop runs them."""
    key = jax.random.key(0)

    def drawn(shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(key, shape, config.param_dtype) * config.width**-0.5

    shapes, layers = _layer_shapes(config), config.num_layers
    params: dict[str, Any] = {"tokens": drawn((config.vocab_size, config.width)), "norm": drawn((config.width,))}
    if config.scan:
        params["layers"] = {name: drawn((layers, *shape)) for name, shape in shapes.items()}
    else:
        params["layers"] = [{name: drawn(shape) for name, shape in shapes.items()} for _ in range(layers)]
    if config.positions == "learned":
        params["positions"] = drawn((config.sequence_length, config.width))
    if not config.tied:
        params["head"] = drawn((config.width, config.vocab_size))
    return ((params, OPTIMIZERS[config.optimizer]().init(params)),)


_decoder = family(PlainDecoderConfig, make_decoder_state, make_gpt_batch, make_decoder_step)

CONFIGS: dict[str, ModelSpec] = {
    "decoder-tiny": _decoder(
        "2-layer decoder for tests, to be given the dimensions of a published one",
        num_layers=2, width=64, num_heads=4, num_kv_heads=2, head_width=16, ffn_width=128, vocab_size=256,
        batch_size=16, sequence_length=32,
    ),
    "llama2-7b": _decoder(
        "Llama 2 7B (arXiv 2307.09288), dots of parameters saved, a loop over layers",
        num_layers=32, width=4096, num_heads=32, num_kv_heads=32, head_width=128, ffn_width=11008, vocab_size=32000,
        batch_size=32, sequence_length=4096, remat="parameter dots", scan=True,
    ),
    "mpt-7b": _decoder(
        "MPT 7B (github.com/mosaicml/llm-foundry), blocks checkpointed, a loop over layers",
        num_layers=32, width=4096, num_heads=32, num_kv_heads=32, head_width=128, ffn_width=16384, vocab_size=50368,
        batch_size=128, sequence_length=2048, mlp="gelu", norm="layer", positions="none", tied=True, remat="full",
        scan=True,
    ),
    "gpt3-175b": _decoder(
        "GPT-3 175B (arXiv 2005.14165, table 2.1), blocks checkpointed, a loop over layers",
        num_layers=96, width=12288, num_heads=96, num_kv_heads=96, head_width=128, ffn_width=49152, vocab_size=50304,
        batch_size=2048, sequence_length=2048, mlp="gelu", norm="layer", positions="learned", remat="full", scan=True,
    ),
}  # fmt: skip
