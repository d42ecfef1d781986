"""Every rule of the registry has an effect on some step, and none on a near one that lacks its condition."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.models import build
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology
from jaxplan.search._traced import analyse_step
from jaxplan.xla import Target, _found, _fusion, _residuals, analyse_buffers
from jaxplan.xla._facts import Facts
from jaxplan.xla._rule import CompilerRule
from jaxplan.xla.rules import RULES, rules_of
from tests.xla import near_steps

MACHINES = ("h100:8", "v5e:2x4", "a100-pcie:8")
MODELS = (
    *("bert", "conformer", "convnext", "densenet", "dlrm", "efficientnet", "gemma", "gpt", "llama", "lstm", "mae"),
    *("mamba", "moe", "regnet", "resnet", "swin", "transformer", "unet", "vgg", "vit", "wav2vec2", "whisper"),
)
IN_EVERY_STEP = frozenset({"arguments-and-results-are-buffers", "large-sums-are-reduced-at-once"})
"""Rules that find something in a step without dots too; those that do for every plan are known by their effect."""


def _shape(*dims: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def _trips(w: jax.Array, total: jax.Array, xs: jax.Array) -> Any:
    """An argument that a loop reads, one that it reads in another shape, and a sum over its trips."""

    def body(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return carry + x.T @ jnp.sin(x @ w), None

    return lax.scan(body, jnp.zeros_like(total), xs.reshape(4, 8, 64))[0]


def _branch(p: jax.Array, x: jax.Array) -> jax.Array:
    return lax.cond(p, lambda y: y, lambda y: y @ y, jnp.sin(x) @ x)


def _table(table: jax.Array, ids: jax.Array, w: jax.Array) -> Any:
    """Rows that are looked up, and logits of the same table, of four MiB; and a second one."""

    def loss(tables: Any) -> jax.Array:
        one, other = tables
        logits = jnp.tanh((one[ids] + other[ids]) @ w) @ one.T
        return jnp.sum(jax.nn.logsumexp(logits, axis=-1))

    return jax.tree.map(lambda t, g: t - 0.1 * g, (table, table * 2), jax.grad(loss)((table, table * 2)))


def _ragged(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return lax.ragged_dot(x, w, sizes)


def _mixer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.swapaxes(jnp.swapaxes(jnp.sin(x), 1, 2) @ w, 1, 2)


STEPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "trips": (_trips, (_shape(64, 64), _shape(64, 64), _shape(32, 64))),
    "branch": (_branch, (_shape(dtype=jnp.bool_), _shape(64, 64))),
    "table": (_table, (_shape(2**14, 64), _shape(32, dtype=jnp.int32), _shape(64, 64))),
    "ragged": (_ragged, (_shape(64, 64), _shape(4, 64, 64), _shape(4, dtype=jnp.int32))),
    "mixer": (_mixer, (_shape(8, 16, 64), _shape(16, 16))),
}


def _analysed(step: Callable[..., Any], arguments: tuple[Any, ...]) -> StepGraph:
    return analyse_step(step, arguments, {}, donate_argnums=None, static_argnums=())


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the rules that have had an effect."""
    names: set[str] = set()
    _watch(names, monkeypatch)
    return names


def _watch(names: set[str], patch: pytest.MonkeyPatch) -> None:
    """Note the name of each rule that finds something."""

    def watched(rule: CompilerRule) -> CompilerRule:
        def find(facts: Facts) -> Iterator[Any]:
            for effect in rule.find(facts):
                names.add(rule.name)
                yield effect

        return dataclasses.replace(rule, find=find)

    for module in (_found, _fusion, _residuals):
        patch.setattr(module, "rules_of", lambda target, stage: map(watched, rules_of(target, stage)))


def _analyse_on_all(graph: StepGraph) -> None:
    for machine in map(Topology.parse, MACHINES):
        analyse_buffers(graph, Target.of(machine.chip, machine.num_devices))


@functools.cache
def _found_in(name: str) -> frozenset[str]:
    """The rules that find something in a small step."""
    names: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        _watch(names, patch)
        _analyse_on_all(_analysed(*near_steps.STEPS[name]))
    return frozenset(names)


def test_each_rule_has_a_near_step() -> None:
    everywhere = {name for name, rule in RULES.items() if rule.find.__qualname__.startswith("always.")}
    assert near_steps.APPLIES.keys() == RULES.keys() - everywhere - IN_EVERY_STEP


@pytest.mark.parametrize("rule", near_steps.APPLIES)
def test_a_rule_finds_nothing_where_its_condition_fails(rule: str) -> None:
    applies, near = near_steps.APPLIES[rule]
    assert not applies or rule in _found_in(applies)
    assert rule not in _found_in(near)


@pytest.mark.slow
def test_every_rule_has_an_effect(found: set[str]) -> None:
    for step, arguments in STEPS.values():
        _analyse_on_all(_analysed(step, arguments))
    for model in MODELS:
        _analyse_on_all(_analysed(*build(f"{model}-tiny")))
    for rule in set(RULES) - found:  # of none of the models
        found |= _found_in(near_steps.APPLIES[rule][0])
    assert set(RULES) - found == set()
