"""The benchmark models: sizes known from the architecture, and steps that trace without allocating."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.models import MODELS, build


def _gpt_parameters(num_layers: int, width: int, vocab_size: int, positions: int) -> int:
    """Tied embedding, positions, per layer 12 d^2 weights and 13 d biases and scales, and the last norm."""
    return (vocab_size + positions) * width + num_layers * (12 * width**2 + 13 * width) + 2 * width


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-tiny", _gpt_parameters(2, 64, 256, 32)),
        ("gpt2-small", _gpt_parameters(12, 768, 50304, 512)),
        ("gpt-1.3b", _gpt_parameters(24, 2048, 50304, 1024)),
        ("gpt-30b", _gpt_parameters(48, 7168, 50304, 2048)),
        ("mlp", 4 * (1024 * 1024 + 1024)),
    ],
)
def test_parameter_counts(name: str, expected: int) -> None:
    _, (state, _) = build(name)
    assert sum(leaf.size for leaf in jax.tree.leaves(state.params)) == expected
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("name", ["gpt-tiny", "mlp"])
def test_a_step_keeps_the_state_and_returns_a_scalar_loss(name: str) -> None:
    step, (state, batch) = build(name)
    new_state, loss = jax.eval_shape(step, state, batch)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), new_state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    assert (loss.shape, loss.dtype) == ((), jnp.float32)


def test_remat_checkpoints_every_block_and_changes_no_parameter() -> None:
    step, (state, batch) = build("gpt-tiny", remat=True)
    _, (plain, _) = build("gpt-tiny")
    assert jax.tree.structure(state.params) == jax.tree.structure(plain.params)
    names = [eqn.primitive.name for eqn in jax.make_jaxpr(step)(state, batch).eqns]
    assert names.count("remat2") + names.count("checkpoint") == MODELS["gpt-tiny"].config.num_layers


def test_overrides_and_unknown_names() -> None:
    _, (_, batch) = build("gpt-tiny", batch_size=3, sequence_length=8)
    assert batch["tokens"].shape == (3, 9)
    with pytest.raises(KeyError, match=r"gpt-huge.*expected one of gpt-tiny"):
        build("gpt-huge")
    with pytest.raises(TypeError, match="depth"):
        build("gpt-tiny", depth=3)


def test_every_model_donates_its_state() -> None:
    assert {spec.donate_argnums for spec in MODELS.values()} == {(0,)}
