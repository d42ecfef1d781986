"""Every primitive of common train steps has a rule, and every rule fits the equation it is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

from jaxplan.ir.rules import has_rule
from tests.ir.rules._equations import equations, rule_of

_OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "adamw": lambda: optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 10))
    ),
    "momentum": lambda: optax.sgd(1e-2, momentum=0.9),
    "adafactor": lambda: optax.adafactor(1e-2),
}


class Gpt(nn.Module):
    """A GPT of one block, in bf16, with tied weights, dropout and remat."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(64, 16, dtype=jnp.bfloat16)
        x = embed(tokens) + nn.Embed(8, 16, dtype=jnp.bfloat16)(jnp.arange(tokens.shape[1]))
        x = nn.remat(GptBlock)()(x)
        return embed.attend(nn.LayerNorm()(x)).astype(jnp.float32)


class GptBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = nn.make_causal_mask(x[..., 0])
        attention = nn.MultiHeadDotProductAttention(
            2, dropout_rate=0.1, deterministic=False, dtype=jnp.bfloat16
        )
        x = x + attention(nn.LayerNorm()(x), mask=mask)
        x = x + nn.Dense(16)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
        return nn.Dropout(0.1, deterministic=False)(x)


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = jnp.reshape(x, (x.shape[0], -1))
        return nn.Dense(10)(nn.swish(nn.RMSNorm()(nn.relu(nn.Dense(32)(x)))))


class Cnn(nn.Module):
    """Convolutions with batch normalisation, a strided, a depthwise and a patch one, pooling."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(8, (3, 3))(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        x = nn.GroupNorm(2)(nn.Conv(8, (3, 3), feature_group_count=8)(x))
        x = nn.avg_pool(nn.Conv(16, (2, 2), (2, 2), padding="VALID")(x), (2, 2), (2, 2))
        return nn.Dense(10)(x.mean((1, 2)))


class Lstm(nn.Module):
    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        return nn.Dense(64)(nn.RNN(nn.OptimizedLSTMCell(16))(nn.Embed(64, 16)(tokens)))


_TOKENS = jax.ShapeDtypeStruct((4, 8), jnp.int32)
_IMAGES = jax.ShapeDtypeStruct((4, 16, 16, 3), jnp.float32)
_MODELS = {"gpt": (Gpt, _TOKENS), "mlp": (Mlp, _IMAGES), "cnn": (Cnn, _IMAGES), "lstm": (Lstm, _TOKENS)}


def _train_step(model: nn.Module, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    def step(variables: Any, opt_state: Any, x: Any, labels: Any, key: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits, updated = model.apply(
                {**variables, "params": params}, x, rngs={"dropout": key}, mutable=["batch_stats"]
            )
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), updated

        (loss, updated), grads = jax.value_and_grad(loss_fn, has_aux=True)(variables["params"])
        updates, new_opt_state = optimizer.update(grads, opt_state, variables["params"])
        return {**updated, "params": optax.apply_updates(variables["params"], updates)}, new_opt_state, loss

    return step


def _jaxpr(model_name: str, optimizer_name: str) -> Any:
    model_class, x = _MODELS[model_name]
    model, optimizer = model_class(), _OPTIMIZERS[optimizer_name]()
    key = jax.eval_shape(lambda: jax.random.key(0))
    variables = jax.eval_shape(lambda key, x: model.init({"params": key, "dropout": key}, x), key, x)
    opt_state = jax.eval_shape(optimizer.init, variables["params"])
    labels = jax.ShapeDtypeStruct(x.shape if x.dtype == jnp.int32 else x.shape[:1], jnp.int32)
    return jax.make_jaxpr(_train_step(model, optimizer))(variables, opt_state, x, labels, key)


@pytest.mark.parametrize(
    "model, optimizer", [("gpt", "adamw"), ("mlp", "adafactor"), ("cnn", "momentum"), ("lstm", "adamw")]
)
def test_every_primitive_of_a_train_step_has_a_rule_that_fits(model: str, optimizer: str) -> None:
    eqns = list(equations(_jaxpr(model, optimizer)))
    missing = {eqn.primitive.name for eqn in eqns if not has_rule(eqn.primitive.name)}
    assert not missing
    for eqn in eqns:
        rule = rule_of(eqn)  # raises where it does not fit
        assert rule.family != "unknown"


def test_batch_of_a_gpt_step_is_a_factor_of_every_dot() -> None:
    """The batch of 4 is mapped forwards and in input gradients, and reduced in weight gradients."""
    dots = [
        rule_of(eqn) for eqn in equations(_jaxpr("gpt", "adamw")) if eqn.primitive.name == "dot_general"
    ]
    kinds = [{factor.kind for factor in rule.factors if factor.size == _TOKENS.shape[0]} for rule in dots]
    assert all(kinds)
    assert {"map"} in kinds and {"reduce"} in kinds
