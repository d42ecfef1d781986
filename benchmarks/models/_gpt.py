"""A decoder-only transformer (GPT-2's architecture) in stock Flax Linen: bf16 compute, f32 parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, Precision, always, family, reading


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTConfig(Precision):
    """Sizes of a GPT and of its batch: `batch_size` sequences of `sequence_length` tokens per step.

    `tied` shares the token embedding with the output projection, as GPT-2 does. `remat` puts each block under
    `flax.linen.remat` (`jax.checkpoint`): its activations are recomputed in the backward pass. `scan` stacks the
    blocks' parameters and runs one block in a `lax.scan`. `dropout` is the rate after each half of a block;
    `optimizer` a name in `OPTIMIZERS`; `dtype` that of the computation, and parameters have `param_dtype`.
    """

    num_layers: int
    width: int
    num_heads: int
    vocab_size: int
    batch_size: int
    sequence_length: int
    mlp_factor: int = 4
    tied: bool = True
    remat: bool = False
    scan: bool = False
    dropout: float = 0.0
    optimizer: str = "clipped-adamw"


class Block(nn.Module):
    """Pre-norm attention and perceptron, each with a residual connection."""

    config: GPTConfig
    train: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        config = self.config
        drop = nn.Dropout(config.dropout, deterministic=not self.train)
        h = nn.LayerNorm(**config.dtypes)(x)
        h = nn.MultiHeadDotProductAttention(num_heads=config.num_heads, **config.dtypes)(h, mask=mask)
        x = x + drop(h)
        h = nn.LayerNorm(**config.dtypes)(x)
        h = nn.gelu(nn.Dense(config.mlp_factor * config.width, **config.dtypes)(h))
        return x + drop(nn.Dense(config.width, **config.dtypes)(h))


class _ScannedBlock(Block):
    """A block as the body of a scan: a carry in, and out with nothing beside it."""

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:  # pyright: ignore
        return super().__call__(x, mask), None


class GPT(nn.Module):
    """Tokens `[B, T]` to float32 logits `[B, T, V]`; learned positions."""

    config: GPTConfig

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool = False) -> jax.Array:
        config = self.config
        embed = nn.Embed(config.vocab_size, config.width, **config.dtypes, name="tokens")
        positions = nn.Embed(config.sequence_length, config.width, **config.dtypes, name="positions")
        x = embed(tokens) + positions(jnp.arange(tokens.shape[1]))
        x = self._blocks(x, nn.make_causal_mask(tokens), train)
        x = nn.LayerNorm(**config.dtypes)(x)
        logits_dtype = jnp.promote_types(config.dtype, jnp.float32)
        if config.tied:
            return embed.attend(x).astype(logits_dtype)
        head = nn.Dense(config.vocab_size, use_bias=False, **config.dtypes, name="head")
        return head(x).astype(logits_dtype)

    def _blocks(self, x: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
        config = self.config
        if config.scan:
            body = nn.remat(_ScannedBlock, prevent_cse=False) if config.remat else _ScannedBlock
            stack = nn.scan(
                body,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=nn.broadcast,
                length=config.num_layers,
            )
            x, _ = stack(config, train, name="blocks")(x, mask)
            return x
        block = nn.remat(Block) if config.remat else Block
        for layer in range(config.num_layers):
            x = block(config, train, name=f"block_{layer}")(x, mask)
        return x


class DropoutTrainState(TrainState):
    """With the key that every step folds its number into."""

    dropout_key: jax.Array


def next_token_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross entropy in nats per token."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def gpt_train_step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """One optimizer step on next-token cross entropy; `batch["tokens"]` is int32 `[B, T + 1]`."""
    inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

    def loss_fn(params: Any) -> jax.Array:
        return next_token_loss(state.apply_fn({"params": params}, inputs), targets)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def gpt_dropout_step(state: DropoutTrainState, batch: dict[str, Any]) -> tuple[TrainState, jax.Array]:
    """`gpt_train_step` with dropout."""
    inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    rngs = {"dropout": jax.random.fold_in(state.dropout_key, state.step)}

    def loss_fn(params: Any) -> jax.Array:
        return next_token_loss(state.apply_fn({"params": params}, inputs, True, rngs=rngs), targets)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def gpt_eval_step(state: TrainState, batch: dict[str, Any]) -> dict[str, jax.Array]:
    """Loss and share of tokens that are predicted best; the state is only read."""
    inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    logits = state.apply_fn({"params": state.params}, inputs)
    right = jnp.argmax(logits, axis=-1) == targets
    return {"loss": next_token_loss(logits, targets), "accuracy": right.mean()}


def make_gpt_inference(config: GPTConfig) -> Callable[..., jax.Array]:
    """The function of parameters and tokens `[B, T]` to the logits `[B, V]` of the next token."""
    model = GPT(config)

    def infer(params: Any, tokens: jax.Array) -> jax.Array:
        return model.apply({"params": params}, tokens)[:, -1]  # pyright: ignore

    return infer


def make_gpt_step(config: GPTConfig) -> Any:
    return gpt_dropout_step if config.dropout else gpt_train_step


def make_gpt_state(config: GPTConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((1, config.sequence_length), jnp.int32)
    if not config.dropout:
        return (make_train_state(GPT(config), config.optimizer, tokens),)
    fields = {"state_class": DropoutTrainState, "dropout_key": jax.random.key(1)}
    return (make_train_state(GPT(config), config.optimizer, tokens, **fields),)


def make_gpt_params(config: GPTConfig) -> tuple[Any]:
    return (make_gpt_state(config)[0].params,)


def make_gpt_batch(config: GPTConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Random tokens, one more per sequence than the model reads."""
    shape = (config.batch_size, config.sequence_length + 1)
    return {"tokens": jax.random.randint(key, shape, 0, config.vocab_size, jnp.int32)}


def make_gpt_tokens(config: GPTConfig, key: jax.Array) -> jax.Array:
    return make_gpt_batch(config, key)["tokens"][:, :-1]


_gpt = family(GPTConfig, make_gpt_state, make_gpt_batch, make_gpt_step)
TINY_GPT: dict[str, Any] = {
    "num_layers": 2, "width": 64, "num_heads": 4, "vocab_size": 256, "batch_size": 16, "sequence_length": 32,
}  # fmt: skip

CONFIGS: dict[str, ModelSpec] = {
    "gpt-tiny": _gpt("2-layer GPT for tests", **TINY_GPT),
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
    "gpt-tiny-scan": _gpt("2-layer GPT, scanned over its layers with remat", scan=True, remat=True, **TINY_GPT),
    "gpt-tiny-dropout": _gpt("2-layer GPT with dropout", dropout=0.1, **TINY_GPT),
    "gpt-tiny-eval": reading(
        _gpt("", **TINY_GPT), "2-layer GPT, loss and accuracy", make_step=always(gpt_eval_step)
    ),
    "gpt-tiny-inference": reading(
        _gpt("", **TINY_GPT), "2-layer GPT, logits of the next token",
        make_step=make_gpt_inference, make_state=make_gpt_params, make_batch=make_gpt_tokens,
    ),
}  # fmt: skip
