"""The registry of rules on the compiler: each has a source and a test, and can be left out."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accuracy import rules as table
from benchmarks.accuracy._effects import made_after
from benchmarks.accuracy._models import HELD_OUT, MODELS
from jaxplan.errors import ArgumentError, RuleError
from jaxplan.ir import StepGraph, analyse, trace
from jaxplan.mesh import Topology
from jaxplan.xla import Target, _fusion, analyse_buffers
from jaxplan.xla._effects import Fuse
from jaxplan.xla._rule import CompilerRule, Fitted, Observed
from jaxplan.xla.rules import RULES, check_names

ROOT = Path(__file__).parents[2]
_CHIP_TEST = re.compile(
    r"chip\.(is_gpu|is_tiled|fuses_products|elementwise_16bit|f32_matmul)\b"
    r"|chip\.name (==|in)|(platform|backend) (==|!=|in|not in) [(\[{]?[\"'](cpu|gpu|cuda|tpu)\b"
)
"""A figure of the chip that stands for its compiler, or a comparison with the name of a chip or of a platform."""


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_a_rule_has_a_source_and_a_test(rule: CompilerRule) -> None:
    file, name = rule.test.split("::")
    assert f"def {name}(" in (ROOT / file).read_text()
    if isinstance(rule.source, str):
        assert rule.source.startswith("https://") or (ROOT / rule.source).exists()
    else:
        assert isinstance(rule.source, Fitted | Observed) and rule.source.command.startswith("python -m ")
    assert rule.does.endswith(".") and set(rule.made_after) <= set(MODELS)


def test_no_rule_was_made_after_a_held_out_model() -> None:
    """A model that is held out on one backend may have rules of the other."""
    names = {"": ("gpu", "tpu"), " on TPUs": ("tpu",), " on GPUs": ("gpu",)}
    for model, where in HELD_OUT.items():
        backends = {b for name in made_after(model) for b in RULES[name].backends}
        assert backends.isdisjoint(names[where]), f"{model}: {made_after(model)}"


def test_the_table_of_rules_is_current() -> None:
    """Mended by ``python -m benchmarks.accuracy.rules``."""
    assert table.DOCUMENT.read_text() == table.document()


def test_the_chip_is_tested_in_one_file() -> None:
    """Every other module asks `Target` for the behaviour that it depends on; `mesh` has the figures of the chips."""
    files = [f for f in (ROOT / "jaxplan").rglob("*.py") if "mesh" not in f.parts and f.name != "_target.py"]
    lines = [(f.name, line.strip()) for f in files for line in f.read_text().splitlines()]
    found = [f"{name}: {line}" for name, line in lines if _CHIP_TEST.search(line)]
    assert found == []


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ArgumentError, match=r"no compiler rule is named 'tanh'.*compiler_rules"):
        check_names(["tanh"])


def _two_dots() -> StepGraph:
    shapes = [jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((256, 64), jnp.float32)]
    return analyse(trace(lambda w, x: jnp.exp(x @ w) @ w, shapes, {}))


def test_a_rule_that_is_left_out_does_not_decide() -> None:
    """A dot that does not compute its operand inside of its kernel reads it from memory."""
    graph, chip = _two_dots(), Topology.parse("v5e:1x1").chip
    (exp,) = [e for e in graph.program.equations if e.name == "exp"]
    without = Target.of(chip, without=["dots-compute-their-operands"])
    assert not analyse_buffers(graph, Target.of(chip)).materialised[exp.results[0]]
    assert analyse_buffers(graph, without).materialised[exp.results[0]]


def test_a_rule_is_named_for_each_buffer_that_it_decides() -> None:
    graph, chip = _two_dots(), Topology.parse("h100:1").chip
    (exp,) = [e for e in graph.program.equations if e.name == "exp"]
    buffers = analyse_buffers(graph, Target.of(chip))
    assert buffers.decided_by[exp.results[0]] == "kernels-read-and-write-memory"
    assert buffers.decided_by[graph.program.inputs[0]] == "arguments-and-results-are-buffers"
    named = {name for name in buffers.decided_by if name}
    assert named <= set(RULES)
    assert all(name for t, name in enumerate(buffers.decided_by) if buffers.materialised[t])


def test_rules_that_disagree_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rules of one priority: one writes the operand of the second dot, the other fuses it."""
    chip = Topology.parse("h100:1").chip
    fuses = dataclasses.replace(
        RULES["kernels-read-and-write-memory"],
        name="nothing-is-written",
        find=lambda facts: map(Fuse, range(len(facts.tensors))),
    )
    rules = [RULES["kernels-read-and-write-memory"], fuses]
    monkeypatch.setattr(_fusion, "rules_of", lambda target, stage: rules)
    with pytest.raises(RuleError, match=r"'kernels-read-and-write-memory' and 'nothing-is-written' disagree"):
        analyse_buffers(_two_dots(), Target.of(chip))
