"""How far each compiler rule carries the predictions: errors with it, and with it left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _record
from benchmarks.accuracy._models import MODELS
from benchmarks.accuracy._record import read_records
from benchmarks.accuracy._references import analysed, predict_references
from jaxplan.ir import StepGraph
from jaxplan.mesh import Topology
from jaxplan.xla import Buffers, Target, analyse_buffers
from jaxplan.xla.rules import RULES

RECORDS = Path(__file__).parents[1] / "records"
EFFECTS = RECORDS / "compiler_rules.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect of a rule on the predicted memory of the reference plans on one topology.

    Attributes:
      rule, topology: names.
      plans: how many of them were compiled, and so have errors.
      changed: how many of all predictions it moves, of memory, time or collectives.
      models: of these plans, those that it moves.
      error_with, error_without: mean absolute errors of memory over ``plans``, of one.
    """

    rule: str
    topology: str
    plans: int
    changed: int
    models: tuple[str, ...]
    error_with: float
    error_without: float

    def __str__(self) -> str:
        moved = f"{self.error_with:6.2%} -> {self.error_without:6.2%}"
        models = ", ".join(self.models) or "none"
        return f"{self.topology:<8} {self.rule:<50} {moved} {self.changed:>4} plans of {models}"


def made_after(model: str) -> frozenset[str]:
    """Rules that were made after compiled programs of a model."""
    return frozenset(name for name, rule in RULES.items() if model in rule.made_after)


def effects_of_rules(models: Sequence[str], topologies: Sequence[str]) -> list[Effect]:
    """One `Effect` for each rule and each topology that it is a rule for."""
    compiled = compiled_memory()
    found: dict[tuple[str, str], dict[tuple[str, str], tuple[int, int, bool]]] = {}
    for model in models:
        graph = analysed(*MODELS[model])
        for topology in map(Topology.parse, topologies):
            target = Target.of(topology.chip)
            rules = [name for name, rule in RULES.items() if rule.applies_to(target)]
            plain, buffers = dict(predict_references(graph, topology)), _buffers(graph, topology)
            for name in rules:
                plans = found.setdefault((name, topology.name), {})
                has_effect = _buffers(graph, topology, [name]) != buffers
                for plan, prediction in predict_references(graph, topology, [name]) if has_effect else plain.items():
                    differs = prediction != plain[plan]
                    plans[model, plan] = plain[plan].memory_bytes, prediction.memory_bytes, differs
    return [_effect(rule, topology, plans, compiled) for (rule, topology), plans in sorted(found.items())]


def _buffers(graph: StepGraph, topology: Topology, without: Sequence[str] = ()) -> tuple[Buffers | None, ...]:
    """All that predictions take from the compiler rules, in both orders of execution; names are not compared."""
    target = Target.of(topology.chip, topology.num_devices)
    found = analyse_buffers(graph, dataclasses.replace(target, without=frozenset(without)))
    one = dataclasses.replace(found, target=target, decided_by=(), in_order=None)
    other = found.in_order and dataclasses.replace(found.in_order, target=target, decided_by=())
    return one, other


def _effect(
    rule: str,
    topology: str,
    plans: Mapping[tuple[str, str], tuple[int, int, bool]],
    compiled: Mapping[tuple[str, str, str], int],
) -> Effect:
    errors = [
        (abs(with_it / truth - 1), abs(without / truth - 1))
        for (model, plan), (with_it, without, _) in plans.items()
        if (truth := compiled.get((model, topology, plan)))
    ]
    number = max(1, len(errors))
    return Effect(
        rule=rule,
        topology=topology,
        plans=len(errors),
        changed=sum(differs for *_, differs in plans.values()),
        models=tuple(sorted({model for (model, _), (*_, differs) in plans.items() if differs})),
        error_with=round(sum(e for e, _ in errors) / number, 5),
        error_without=round(sum(e for _, e in errors) / number, 5),
    )


def compiled_memory() -> dict[tuple[str, str, str], int]:
    """(model, topology, strategy) -> bytes of the compiled program, as recorded by `benchmarks.accuracy`."""
    records = read_records([RECORDS / "accuracy.jsonl"])
    return {
        (r.model, r.topology, r.point): r.compiled_memory
        for r in records
        if r.kind == "reference" and not r.failure
    }


def read_effects(path: Path = EFFECTS) -> list[Effect]:
    """The effects of a file of JSON lines."""
    return _record.read_records(Effect, path)


def write_effects(effects: Collection[Effect], path: Path = EFFECTS) -> None:
    """One JSON line for each effect; those of other rules and topologies in the file stay."""
    kept = {(e.rule, e.topology): e for e in read_effects(path)} | {(e.rule, e.topology): e for e in effects}
    _record.write_lines(path, (effect for _, effect in sorted(kept.items())))


def effects_of(rule: str, effects: Collection[Effect]) -> Iterator[Effect]:
    """Those of one rule."""
    return (effect for effect in effects if effect.rule == rule)
