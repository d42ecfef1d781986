"""The models by name, and how a name becomes a train step with abstract arguments."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.models._gpt import GPTConfig, abstract_gpt_args, gpt_train_step
from benchmarks.models._mlp import MLPConfig, abstract_mlp_args, mlp_train_step

Config = GPTConfig | MLPConfig
TrainStep = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model of the benchmarks: its configuration and the functions that build its step and arguments.

    `config` is a frozen dataclass whose fields `build` may override; `train_step` is `(state, batch) ->
    (state, loss)`; `abstract_args` maps a config to `(state, batch)` of `jax.ShapeDtypeStruct`.
    """

    config: Config
    train_step: TrainStep
    abstract_args: Callable[[Any], tuple[Any, Any]]
    summary: str
    donate_argnums: tuple[int, ...] = field(default=(0,))


def _gpt(summary: str, **config: Any) -> ModelSpec:
    return ModelSpec(
        config=GPTConfig(**config),
        train_step=gpt_train_step,
        abstract_args=abstract_gpt_args,
        summary=summary,
    )


MODELS: dict[str, ModelSpec] = {
    "gpt-tiny": _gpt(
        "2-layer GPT for tests",
        num_layers=2, width=64, num_heads=4, vocab_size=256, batch_size=16, sequence_length=32,
    ),
    "gpt2-small": _gpt(
        "GPT-2 small, 124M parameters",
        num_layers=12, width=768, num_heads=12, vocab_size=50304, batch_size=64, sequence_length=512,
    ),
    "gpt-1.3b": _gpt(
        "GPT-3 XL shape, 1.3B parameters",
        num_layers=24, width=2048, num_heads=16, vocab_size=50304, batch_size=32, sequence_length=1024,
    ),
    "gpt-30b": _gpt(
        "OPT-30B shape, 30B parameters; `remat=True` for checkpointed blocks",
        num_layers=48, width=7168, num_heads=56, vocab_size=50304, batch_size=64, sequence_length=2048,
    ),
    "mlp": ModelSpec(
        config=MLPConfig(num_layers=4, width=1024, num_classes=1024, batch_size=4096),
        train_step=mlp_train_step,
        abstract_args=abstract_mlp_args,
        summary="4-layer perceptron, 4M parameters",
    ),
}  # fmt: skip


def build(name: str, **overrides: Any) -> tuple[TrainStep, tuple[Any, Any]]:
    """The train step of model `name` and its abstract `(state, batch)`, with config fields overridden.

    Raises `KeyError` for an unknown name and `TypeError` for an unknown field.
    """
    if name not in MODELS:
        raise KeyError(f"unknown model {name!r}; expected one of {', '.join(MODELS)}")
    spec = MODELS[name]
    return spec.train_step, spec.abstract_args(replace(spec.config, **overrides))
