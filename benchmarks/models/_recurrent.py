"""The recurrent networks of FlexFlow, PaSE, TensorOpt and Tofu: LSTMs over time steps that are unrolled or scanned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from benchmarks.models._optimizer import make_train_state
from benchmarks.models._spec import ModelSpec, always, family


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentConfig:
    """A stack of LSTMs of `width` units over `num_steps` inputs of `embedding` values.

    Attributes:
      vocab_size: inputs are so many tokens with an embedding each; 0 where they are vectors.
      head: of every step over `num_outputs` (``tokens``), of the last step alone (``label``), or ``none``.
      scan: time steps in a `lax.scan` instead of unrolled.
    """

    num_layers: int
    width: int
    embedding: int
    num_steps: int
    batch_size: int
    vocab_size: int = 0
    num_outputs: int = 0
    head: Literal["tokens", "label", "none"] = "none"
    scan: bool = False
    optimizer: str = "sgd"


def _weights(module: nn.Module, name: str, rows: int, width: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Of one LSTM: for its input, for its own last output, and biases; the four gates are one product (MXNet)."""
    init = nn.initializers.lecun_normal()
    return (
        module.param(f"{name}_input", init, (rows, 4, width)),
        module.param(f"{name}_hidden", init, (width, 4, width)),
        module.param(f"{name}_bias", nn.initializers.zeros, (4, 1, width)),
    )


def _cell(weights: Any, state: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Output and memory `[B, W]` of one LSTM after input `[B, E]`."""
    hidden, memory = state
    read, again, bias = weights
    i, f, g, o = jnp.einsum("bi,igo->gbo", x, read) + jnp.einsum("bi,igo->gbo", hidden, again) + bias
    memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(memory), memory


def _run(layers: Any, states: Any, xs: jax.Array, scan: bool) -> tuple[Any, jax.Array]:
    """Last states and the outputs `[T, B, W]` of a stack of LSTMs over inputs `[T, B, E]`."""

    def advance(states: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        new = []
        for weights, state in zip(layers, states, strict=True):
            x, memory = _cell(weights, state, x)
            new.append((x, memory))
        return new, x

    if scan:
        return jax.lax.scan(advance, states, xs)
    outputs = []
    for t in range(xs.shape[0]):
        states, x = advance(states, xs[t])
        outputs.append(x)
    return states, jnp.stack(outputs)


def _zeros(num_layers: int, batch: int, width: int) -> list[Any]:
    return [(jnp.zeros((batch, width)),) * 2 for _ in range(num_layers)]


class Recurrent(nn.Module):
    """Tokens `[T, B]` or vectors `[T, B, E]` to logits `[T, B, V]`, `[B, V]`, or outputs `[B, W]`, by `head`."""

    config: RecurrentConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        if config.vocab_size:
            x = nn.Embed(config.vocab_size, config.embedding)(x)
        rows = [config.embedding, *(config.width for _ in range(config.num_layers - 1))]
        layers = [_weights(self, f"lstm_{n}", of, config.width) for n, of in enumerate(rows)]
        states, outputs = _run(layers, _zeros(config.num_layers, x.shape[1], config.width), x, config.scan)
        if config.head == "none":
            return states[-1][0]
        return nn.Dense(config.num_outputs)(outputs if config.head == "tokens" else states[-1][0])


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationConfig:
    """Encoder and decoder of `num_layers` LSTMs each, attention over the encoder's outputs, one softmax per token."""

    num_layers: int
    width: int
    vocab_size: int
    num_steps: int
    batch_size: int
    scan: bool = False
    optimizer: str = "sgd"


class Translation(nn.Module):
    """Tokens of source and target `[T, B]` to logits `[T, B, V]`; attention as in Luong et al. (arXiv 1508.04025)."""

    config: TranslationConfig

    @nn.compact
    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        config = self.config
        states = _zeros(config.num_layers, source.shape[1], config.width)
        outputs = []
        for side, tokens in (("encoder", source), ("decoder", target)):
            x = nn.Embed(config.vocab_size, config.width, name=f"{side}_embedding")(tokens)
            layers = [
                _weights(self, f"{side}_{n}", config.width, config.width) for n in range(config.num_layers)
            ]
            states, y = _run(layers, states, x, config.scan)
            outputs.append(y)
        encoded, decoded = outputs
        scores = jnp.einsum(
            "tbi,sbi->bts", nn.Dense(config.width, use_bias=False, name="attention")(decoded), encoded
        )
        context = jnp.einsum("bts,sbi->tbi", jax.nn.softmax(scores, axis=-1), encoded)
        merged = jnp.tanh(
            nn.Dense(config.width, use_bias=False, name="merge")(jnp.concatenate([context, decoded], -1))
        )
        return nn.Dense(config.vocab_size, name="softmax")(merged)


def recurrent_train_step(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, jax.Array]:
    """One optimizer step: cross entropy of `labels` given all other arrays, or the mean square where there are none."""

    def loss_fn(params: Any) -> jax.Array:
        inputs = [batch[name] for name in ("inputs", "target") if name in batch]
        outputs = state.apply_fn({"params": params}, *inputs)
        if "labels" not in batch:
            return jnp.mean(outputs**2)
        return optax.softmax_cross_entropy_with_integer_labels(outputs, batch["labels"]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def make_recurrent_state(config: RecurrentConfig) -> tuple[TrainState]:
    shape = (config.num_steps, 1)
    x = jnp.zeros(shape, jnp.int32) if config.vocab_size else jnp.zeros((*shape, config.embedding))
    return (make_train_state(Recurrent(config), config.optimizer, x),)


def make_recurrent_batch(config: RecurrentConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Random tokens or vectors, time first, and the labels that the head wants."""
    shape, labels = (config.num_steps, config.batch_size), {}
    if config.head != "none":
        of = shape if config.head == "tokens" else shape[1:]
        labels = {"labels": jax.random.randint(key, of, 0, config.num_outputs, jnp.int32)}
    if config.vocab_size:
        return {"inputs": jax.random.randint(key, shape, 0, config.vocab_size, jnp.int32), **labels}
    return {"inputs": jax.random.normal(key, (*shape, config.embedding)), **labels}


def make_translation_state(config: TranslationConfig) -> tuple[TrainState]:
    tokens = jnp.zeros((config.num_steps, 1), jnp.int32)
    return (make_train_state(Translation(config), config.optimizer, tokens, tokens),)


def make_translation_batch(config: TranslationConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Random tokens of a pair, time first; labels are the target's next tokens."""
    shape = (config.num_steps, config.batch_size)
    source, labels = (
        jax.random.randint(k, shape, 1, config.vocab_size, jnp.int32) for k in jax.random.split(key)
    )
    return {"inputs": source, "target": jnp.pad(labels[:-1], ((1, 0), (0, 0))), "labels": labels}


_recurrent = family(RecurrentConfig, make_recurrent_state, make_recurrent_batch, always(recurrent_train_step))
_translation = family(
    TranslationConfig, make_translation_state, make_translation_batch, always(recurrent_train_step)
)

_TOFU_EMBEDDING = 512
"""With inputs of so many values the weights of Tofu's Table 1 come out (arXiv 1602.02410 projects to 512 or 1,024)."""


def _tofu(num_layers: int, thousands: int) -> ModelSpec:
    return _recurrent(
        f"Tofu's RNN-{num_layers}-{thousands}K, 20 steps",
        num_layers=num_layers, width=1024 * thousands, embedding=_TOFU_EMBEDDING, num_steps=20, batch_size=512,
        optimizer="adagrad",
    )  # fmt: skip


_PENN = 10_000
"""Words of the Penn Treebank as Zaremba et al. (arXiv 1409.2329) take it."""
_PASE_WORDS = 102_400
"""PaSE does not say how many words of the billion-word corpus it keeps; data parallelism fits 11 GB with so many."""
_NMT: dict[str, Any] = {
    "num_layers": 2, "width": 1024, "vocab_size": 32_000, "num_steps": 40, "batch_size": 64
}  # fmt: skip
_RNNLM: dict[str, Any] = {
    "num_layers": 2, "width": 2048, "embedding": 2048, "num_steps": 40, "vocab_size": _PENN, "num_outputs": _PENN,
    "head": "tokens", "batch_size": 64,
}  # fmt: skip

PAPER_CONFIGS: dict[str, ModelSpec] = {
    **{f"rnn-{layers}-{k}k": _tofu(layers, k) for layers in (4, 6, 8, 10) for k in (4, 6, 8)},
    "rnntc": _recurrent(
        "FlexFlow's text classifier, 4 LSTMs of 1024 units, 40 steps",
        num_layers=4, width=1024, embedding=1024, num_steps=40, vocab_size=_PENN, num_outputs=2, head="label",
        batch_size=64,
    ),
    "rnnlm": _recurrent("FlexFlow's language model, 2 LSTMs of 2048 units, 40 steps", **_RNNLM),
    "rnnlm-scan": _recurrent("the same in a loop over time", scan=True, **_RNNLM),
    "rnnlm-100k": _recurrent(
        "PaSE's language model of 102,400 words, 2 LSTMs of 2048 units in a loop over 20 steps",
        num_layers=2, width=2048, embedding=1024, num_steps=20, vocab_size=_PASE_WORDS, num_outputs=_PASE_WORDS,
        head="tokens", batch_size=64, scan=True,
    ),
    "nmt": _translation("FlexFlow's translator, 2 + 2 LSTMs of 1024 units and attention, 40 steps", **_NMT),
    "nmt-scan": _translation("the same in loops over time", scan=True, **_NMT),
    "rnn-116gb": _recurrent(
        "29B parameters, as many as TensorOpt's RNN (Table 1: 108 GiB)",
        num_layers=4, width=28_672, embedding=28_672, num_steps=20, vocab_size=48_000, num_outputs=48_000,
        head="tokens", batch_size=256, scan=True,
    ),
    "recurrent-tiny": _recurrent(
        "unrolled LSTMs for tests",
        num_layers=2, width=16, embedding=8, num_steps=3, vocab_size=32, num_outputs=32, head="tokens", batch_size=16,
    ),
    "translation-tiny": _translation(
        "encoder, decoder and attention for tests", num_layers=1, width=16, vocab_size=32, num_steps=3, batch_size=16
    ),
}  # fmt: skip
